"""Makes what Spark has written to a local file system survive a power cut, before anybody is told that it is durable.

Delta's log store for local files renames a commit into place and leaves the rest to the kernel, which writes it out
some 30 seconds later. By then the catalog and the slot have long moved on, and both are on disk. Object stores and HDFS
promise to keep what was put, or closed: nothing is done for them.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from bridge import remedies
from bridge.errors import StateError
from bridge.track.fsync import fsync

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MANY = 200
"""Files of one call, from which on one syncfs takes less time than an fsync for each."""


class LocalTables:
    """Delta tables' files, and which of them are on disk.

    Delta gives every file a name of its own and never writes to it again (but for the hint `_last_checkpoint`, which
    readers do without), so that each is flushed once: data, deletion vectors, the log, its checkpoints, and Hadoop's
    checksums of all these.
    """

    def __init__(self) -> None:
        self._flushed: dict[Path, frozenset[str]] = {}

    def flush(self, paths: Iterable[str]) -> None:
        """Return when all that was committed to these tables before the call survives a power cut.

        The first time of a table its whole file system is flushed: a process before this one may have left something.
        So it is for many files at once.

        Args:
            paths: Delta tables; those that are not on a local file system, or not there, are passed over.

        Raises:
            StateError: The disk does not take it.
        """
        for folder in filter(None, map(local_folder, paths)):
            if not folder.is_dir():
                continue
            found = frozenset(_files(folder))  # what comes after this is for the next time
            flushed = self._flushed.get(folder)
            try:
                if flushed is None or len(found - flushed) > _MANY:
                    _flush_file_system(folder)
                else:
                    _flush(folder, found - flushed)
            except OSError as error:
                raise StateError(
                    f"{error.filename or folder} cannot be made durable: {error.strerror or error}",
                    hint="check the disk; the kernel may have dropped what it could not write, so copy the table again "
                    f"after the repair: {remedies.resync('SUB', 'TABLE')}",
                ) from error
            self._flushed[folder] = found


def local_folder(path: str) -> Path | None:
    """The folder of a table's path; None where that names another file system."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(path) if path.startswith("/") else None


def _files(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        yield from (f"{parent}/{name}" for name in names)


def _flush(folder: Path, files: Iterable[str]) -> None:
    """Files below a folder, and the folders that name them: each after what it names."""
    parents: set[Path] = set()
    for file in files:
        if _flush_one(file):
            parents.update(parent for parent in Path(file).parents if parent.is_relative_to(folder))
    for parent in sorted(parents, key=lambda path: len(path.parts), reverse=True):
        _flush_one(str(parent))


def _flush_one(path: str) -> bool:
    """One file or folder; False where it has gone meanwhile, as a temporary one does, or with VACUUM."""
    try:
        fsync(path)
    except FileNotFoundError:
        return False
    return True


def _flush_file_system(folder: Path) -> None:
    """syncfs(2) of the file system that a folder lies on."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)

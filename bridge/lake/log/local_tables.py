"""Tables on a local file system: what Spark has written is flushed before it is confirmed.

Delta's log store for local files renames a commit into place and does not fsync. The kernel writes the files some 30
seconds later, when the catalog and the slot have long recorded the batch: a power cut in between would lose it. Object
stores and HDFS keep what was put or closed, so nothing is done for them.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import json
import os
import re
import threading
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from pgbridge.bridge.lake.log.local_log import (
    KEY_CHARACTERS,
    LARGE_ENTRY_BYTES,
    checkpoint_version,
    entry_of,
    identity,
    latest_version,
    local_folder,
)
from pgbridge.bridge.runtime import errors, process, remedies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

_MANY = 200
"""With more new files than this, one syncfs takes less time than an fsync of each."""

_SYNCFS_TELLS = (5, 8)
"""Since this version of Linux, syncfs tells of files that could not be written; before, it never does: syncfs(2)."""


class _Flushed(NamedTuple):
    """What was flushed of a table.

    Attributes:
        version: Up to this version.
        entry: The inode and the time of the version's entry: another table at the path has others.
        checkpoint: The version of the last checkpoint; -1 for none.
    """

    version: int
    entry: tuple[int, int]
    checkpoint: int


class LocalTables:
    """Remembers up to which versions local Delta tables were flushed.

    Delta never writes to a file again (except the hint `_last_checkpoint`, which readers can do without), so each file
    is flushed once: data, deletion vectors, the log, its checkpoints, and Hadoop's checksums of all these. The log says
    which files a version has: to look for new ones among all would take the longer, the older a table is.

    Args:
        place_of: Returns the path or URI of the files of the table at a location; None if there is none.
            By default the location is that path.
    """

    def __init__(self, place_of: Callable[[str], str | None] = str) -> None:
        self._place_of = place_of
        self._flushed: dict[Path, _Flushed] = {}
        self._failures = dict(_failures)  # files of a table that was not flushed yet came after these
        self._failures_at: dict[Path, int] = {}  # when it was flushed the last time, or its flush has failed

    def flush(self, paths: Iterable[str], begin: Callable[[], None] = lambda: None) -> None:
        """Flush all that was committed to these tables before the call, so that it survives a power cut.

        A table's whole file system is flushed the first time, because an earlier process may have left files unflushed;
        if many files are new; and if the log does not tell them, as after a table was put back from a backup. Where the
        kernel would not tell of an error then, each file is flushed instead.

        Args:
            paths: Delta tables; those that are not on a local file system, or do not exist, are ignored.
            begin: Called before the first of them is flushed. An error of the file system is reported once: whoever
                must not rely on a flush that fails has to remember beforehand that it was begun.

        Raises:
            StateError: The file system reports an error.
        """
        begun = False
        for folder in filter(None, (local_folder(place) for place in map(self._place_of, paths) if place is not None)):
            if not folder.is_dir():
                continue
            flushed, now = self._flushed.pop(folder, None), _state(folder / "_delta_log")
            if not begun:
                begin()
                begun = True
            with _told(folder):
                # what is committed from here on is left to the next call
                device = folder.stat().st_dev
                failures = _failures.get(device, 0)
                new = None if flushed is None or now is None else _new_files(folder, flushed, now)
                if _syncfs_tells() and (new is None or len(new) > _MANY):
                    before = self._failures_at.get(folder, self._failures.get(device, 0))
                    self._failures_at[folder], told = _flush_file_system(folder, device)
                    if told or self._failures_at[folder] != before:
                        raise OSError(told or errno.EIO, os.strerror(told or errno.EIO), str(folder))
                else:
                    _flush(folder, _files(folder) if new is None else new, folders_above=new is None)
                    self._failures_at[folder] = failures
            if now is not None:
                self._flushed[folder] = now

    def flush_files(self, path: str, files: Iterable[str]) -> None:
        """Flush data files of a table that no version has yet; raises as `flush`.

        Args:
            files: Delta's `add` actions, in JSON.
        """
        place = self._place_of(path)
        folder = None if place is None else local_folder(place)
        if folder is not None:
            names = [f"{folder}/{name}" for action in files for name in _named_in(action)]
            with _told(folder):
                _flush(folder, _with_checksums(names), folders_above=False)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Tell an error of the file system."""
    try:
        yield
    except OSError as error:
        raise errors.StateError(
            f"{error.filename or folder} cannot be made durable: {error.strerror or error}",
            hint="check the disk; what pgbridge wrote last is written again, to new files. The kernel may have "
            "dropped what others wrote at the time, as an OPTIMIZE: then copy the table again after the "
            f"repair: {remedies.resync('SUB', 'TABLE')}",
        ) from error


def _files(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        yield from (f"{parent}/{name}" for name in names)


def _state(log: Path) -> _Flushed | None:
    """A table as it is now; None if it has no version."""
    if (version := latest_version(log)) < 0:
        return None
    if (entry := identity(entry_of(log, version))) is None:
        return None
    checkpoint = checkpoint_version(log)
    return _Flushed(version, entry, -1 if checkpoint is None else checkpoint)


def _new_files(folder: Path, before: _Flushed, now: _Flushed) -> set[str] | None:
    """All files that versions after `before` have, up to `now`; None if the log does not tell them."""
    log, files = folder / "_delta_log", set[str]()
    try:
        if identity(entry_of(log, before.version)) != before.entry:
            return None
        for version in range(before.version + 1, now.version + 1):
            entry = entry_of(log, version)
            if entry.stat().st_size > LARGE_ENTRY_BYTES:
                return None  # to flush everything takes less time than to read it
            files.update((f"{log}/{entry.name}", f"{log}/{version:020}.crc"))
            files.update(f"{folder}/{name}" for name in _named(entry))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if now.checkpoint != before.checkpoint:
        if (log / "_sidecars").exists():
            return None
        names = (file.name for file in log.glob("*.checkpoint.*") if file.name[:20].isdigit())
        files.update(f"{log}/{name}" for name in names if int(name[:20]) > before.checkpoint)
    return _with_checksums(files)


def _with_checksums(files: Collection[str]) -> set[str]:
    """Files, and those in which Hadoop keeps their checksums."""
    hidden = (path.rpartition("/") for path in files)
    return {*files, *(f"{parent}/.{name}.crc" for parent, _, name in hidden if not name.startswith("."))}


def _named(entry: Path) -> Iterator[str]:
    """The files that a version adds, relative to the table; a clone's are another table's."""
    for line in entry.read_text(encoding="utf-8").split("\n"):  # a text in it may have other ends of lines
        key = line[:KEY_CHARACTERS]
        if '"add"' in key or '"cdc"' in key:
            yield from _named_in(line)


def _named_in(action: str) -> Iterator[str]:
    """The files that an `add` or `cdc` action names."""
    for file in json.loads(action).values():
        if not urlsplit(file["path"]).scheme and not file["path"].startswith("/"):
            yield unquote(file["path"])
        if (vector := file.get("deletionVector")) and vector["storageType"] == "u":
            yield _vector_file(vector["pathOrInlineDv"])


_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_PYTHONS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def _vector_file(prefix_and_uuid: str) -> str:
    """The file of a deletion vector, relative to its table. See: "Deletion Vector Descriptor Schema" in PROTOCOL.md."""
    prefix, encoded = prefix_and_uuid[:-20], prefix_and_uuid[-20:]
    name = uuid.UUID(bytes=base64.b85decode(encoded.encode().translate(bytes.maketrans(_Z85, _PYTHONS))))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def _syncfs_tells() -> bool:
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return version is not None and (int(version[1]), int(version[2])) >= _SYNCFS_TELLS


def _flush(folder: Path, files: Iterable[str], *, folders_above: bool) -> None:
    """Fsync files, then the folders from theirs up to `folder`, the deepest first; also those above, if wanted.

    A folder above that may not be opened was not made by pgbridge.
    """
    parents: set[Path] = set()
    for file in files:
        if _flush_one(file):
            parents.update(parent for parent in Path(file).parents if parent.is_relative_to(folder))
    for parent in sorted(parents, key=lambda path: len(path.parts), reverse=True):
        _flush_one(str(parent))
    device = folder.stat().st_dev
    for above in folder.parents if folders_above else ():
        with suppress(PermissionError):
            if above.stat().st_dev == device:
                _flush_one(str(above))


def _flush_one(path: str) -> bool:
    """Fsync a file or folder; False if it was removed meanwhile (a temporary file, or VACUUM)."""
    try:
        process.fsync(path)
    except FileNotFoundError:
        return False
    return True


_failures: Final[dict[int, int]] = {}
"""How often a file system could not be flushed, by its device. The files that were lost may be those of any table."""

_descriptors: Final[dict[int, int]] = {}
"""By the device, of a folder. The kernel tells of an error once for each that was open: so also if another process was
told before, and never of what was before it was opened and told."""

_syncing: Final = threading.Lock()  # so that a failure is counted before the next one asks


def _flush_file_system(folder: Path, device: int) -> tuple[int, int]:
    """Flush the file system of a folder; returns its `_failures`, and the number of the error, or 0."""
    with _syncing:
        if device not in _descriptors:
            _descriptors[device] = os.open(folder, os.O_RDONLY)
        number = _syncfs(_descriptors[device])
        if number:
            _failures[device] = _failures.get(device, 0) + 1
            os.close(_descriptors.pop(device))  # the file system may be mounted anew
        return _failures.get(device, 0), number


def _syncfs(descriptor: int) -> int:
    """Call syncfs(2); returns the number of its error, or 0."""
    return ctypes.get_errno() if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0 else 0

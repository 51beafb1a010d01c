"""Files that Spark on this machine reads or writes for a moment: in a folder of this process, of mode 0700.

What a process left that was killed is removed by the next one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX: Final = "pgbridge-scratch-"  # Spark ignores names that begin with "_" or "."


@contextmanager
def scratch_file() -> Iterator[Path]:
    """A new file for Parquet, which is removed at the end."""
    descriptor, name = tempfile.mkstemp(".parquet", "rows-", _existing())
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is removed at the end with all that is in it."""
    name = tempfile.mkdtemp(prefix="folder-", dir=_existing())
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def _existing() -> Path:
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)  # temporary folders are cleaned of what was not used for days
    return folder


@cache
def _folder() -> Path:
    """This process's folder; those of processes that were killed are removed.

    In a container the process before this one had the same number.
    """
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{_PREFIX}*"):
        number = left.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and (int(number) == os.getpid() or not _is_alive(int(number))):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        with suppress(PermissionError):
            os.kill(pid, 0)
        return True
    return False

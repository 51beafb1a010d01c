"""One daemon to a state directory: a lock that the kernel drops with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import TextIO

_PATIENCE_S = 1.0
"""A command that asks `is_running` holds the lock for some microseconds: no reason not to start."""


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold the state directory, so that no second daemon works on it. The lock goes with the process.

    Raises:
        StateError: Another process holds it, or it cannot be written.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        file = _path(state_dir).open("a+", encoding="ascii")
    except OSError as error:
        raise StateError(f"state_dir {state_dir} cannot be written: {error}") from error
    with file:
        if not _acquired(file):
            file.seek(0)
            raise StateError(
                f"another pgbridge daemon (process {file.read().strip() or 'unknown'}) works on {state_dir}",
                hint="one daemon runs all subscriptions of a file; a second file needs a state_dir of its own",
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_running(state_dir: Path) -> bool:
    """Whether a daemon holds the state directory. Any number of processes may ask, also while one starts."""
    try:
        with _path(state_dir).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _path(state_dir: Path) -> Path:
    return state_dir / "daemon.lock"


def _acquired(file: TextIO) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PATIENCE_S / 20)
        else:
            return True

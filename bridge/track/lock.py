"""One daemon to a state directory: a lock that the kernel drops with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold the state directory, so that no second daemon works on it. The lock goes with the process.

    Raises:
        StateError: Another process holds it, or it cannot be written.
    """
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        file = (state_dir / "daemon.lock").open("a+", encoding="ascii")
    except OSError as error:
        raise StateError(f"state_dir {state_dir} cannot be written: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise StateError(
                f"another pgbridge daemon (process {file.read().strip() or 'unknown'}) works on {state_dir}",
                hint="one daemon runs all subscriptions of a file; a second file needs a state_dir of its own",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_running(state_dir: Path) -> bool:
    """Whether a daemon holds the state directory."""
    try:
        with locked(state_dir):
            return False
    except StateError:
        return True

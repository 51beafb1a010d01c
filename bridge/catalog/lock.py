"""A lock that admits one daemon per state directory; the kernel releases it when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import shlex
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TextIO

from pgbridge.bridge.runtime import errors, log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PATIENCE_S = 1.0
"""How long to wait for the lock: a command that calls `is_running` holds it for microseconds."""

_SPARKS_PATIENCE_S = 60.0
"""Hadoop gives the hooks of a JVM that ends 30 s."""


_ONE_DAEMON = "one daemon runs all subscriptions of a configuration file; another file needs its own state_dir"
STOP_FIRST = "stop the daemon by SIGTERM, then repeat the command"
"""The remedy if a daemon holds the state directory that a command needs for itself."""
_READABLE = "run the command as pgbridge's user, or set another state_dir"


@contextmanager
def locked(state_dir: Path, in_use: str = _ONE_DAEMON) -> Iterator[None]:
    """Hold the lock on the state directory, so that no second daemon works on it.

    Args:
        state_dir: The state directory.
        in_use: What to do if a daemon holds it, for a process that is none.

    Raises:
        StateError: Another process holds it, or it cannot be written.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _path(state_dir).open("a+", encoding="ascii")
    except OSError as error:
        raise errors.StateError(f"state_dir {state_dir} cannot be written: {error}") from error
    with file:
        if not _acquired(file):
            file.seek(0)
            raise errors.StateError(
                f"another pgbridge daemon (process {file.read().strip() or 'unknown'}) works on {state_dir}",
                hint=in_use,
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def spark_lock(state_dir: Path, patience_s: float = _SPARKS_PATIENCE_S) -> Iterator[int]:
    """Hold a lock that Spark's JVM inherits, after waiting for the JVM of an earlier daemon that was killed.

    Such a JVM ends by itself, but may still be committing: on S3 over the commits of another one, elsewhere in between,
    and after what it has begun was made durable or undone.

    Args:
        state_dir: The state directory; its own lock is held.

    Yields:
        The descriptor to inherit: the lock is held until all processes that have it are gone.

    Raises:
        StateError: That JVM does not end, or the file cannot be written.
    """
    path = state_dir / "spark.lock"
    try:
        file = path.open("a", encoding="ascii")
    except OSError as error:
        raise errors.StateError(f"state_dir {state_dir} cannot be written: {error}") from error
    with file:
        waiting = partial(
            log.get().info, "waiting for the Spark of an earlier daemon to end", longest_s=patience_s, lock=str(path)
        )
        if not _acquired(file, patience_s, waiting):
            raise errors.StateError(
                f"the Spark of an earlier daemon still runs after {patience_s:.0f} s, and may still write",
                hint=f"kill its process, which is found by: fuser {shlex.quote(str(path))}",
                retry=True,
            )
        yield file.fileno()


def is_running(state_dir: Path) -> bool:
    """Whether a daemon holds the lock. Any number of processes may ask at once, also while a daemon starts.

    Raises:
        StateError: The state directory cannot be looked into.
    """
    try:
        with _path(state_dir).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise errors.StateError(f"state_dir {state_dir} cannot be read: {error}", hint=_READABLE) from error
    return False


def _path(state_dir: Path) -> Path:
    return state_dir / "daemon.lock"


def _acquired(file: TextIO, patience_s: float = _PATIENCE_S, waiting: Callable[[], object] = lambda: None) -> bool:
    """Wait for a lock; `waiting` is called once, if it is not free within `_PATIENCE_S`, as after an orderly end."""
    begun_s, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited_s = time.monotonic() - begun_s
            if waited_s > patience_s:
                return False
            if waited_s >= _PATIENCE_S and not told:
                waiting()
                told = True
            time.sleep(_PATIENCE_S / 20)
        else:
            return True

"""The limit of open file descriptors: raised as servers do, and whether it is enough for the subscriptions."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_MOST: Final = 65_536
"""The soft limit is not raised above this: some programs close every descriptor up to it when they start another."""

_BASE, _EACH = 512, 10
"""The larger of the two processes is the JVM: it had 412 open, mostly jars, with 20 subscriptions. Python had 5 to a
subscription: sockets to the server and to the JVM, and a pipe. The rest is for copies, spool files and commits."""


def needed(subscriptions: int) -> int:
    """Return how many descriptors a process should be allowed for so many subscriptions."""
    return _BASE + _EACH * subscriptions


def limit() -> int | None:
    """Return how many descriptors this process may have once it has raised its limit; None for any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def raise_limit() -> None:
    """Raise the soft limit to the hard one, up to 65 536. Spark's JVM inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MOST:
        return
    with contextlib.suppress(OSError, ValueError):  # a sandbox may not allow it; then the soft limit stays
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (_MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST), hard)
        )

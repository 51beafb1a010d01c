"""Wait until a descriptor can be read or written, by poll: select fails beyond 1023, and subscriptions open more."""

from __future__ import annotations

import select


def readable(fileno: int, timeout_s: float | None = None) -> bool:
    """Wait until bytes, an error or the end can be read; False after the timeout, None for no timeout."""
    return _ready(fileno, select.POLLIN, timeout_s)


def writable(fileno: int, timeout_s: float | None = None) -> bool:
    """Wait until bytes can be written, or an error can be read; False after the timeout, None for no timeout."""
    return _ready(fileno, select.POLLOUT, timeout_s)


def _ready(fileno: int, events: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fileno, events)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

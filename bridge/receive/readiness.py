"""Whether a descriptor can be read or written, by poll: select takes none beyond 1023, many subscriptions open more."""

from __future__ import annotations

import select


def readable(fileno: int, timeout_s: float | None = None) -> bool:
    """Whether bytes, an error or the end are there to be read, within a time; None waits for ever."""
    return _ready(fileno, select.POLLIN, timeout_s)


def writable(fileno: int, timeout_s: float | None = None) -> bool:
    """Whether there is room to write to, or an error to find, within a time; None waits for ever."""
    return _ready(fileno, select.POLLOUT, timeout_s)


def _ready(fileno: int, events: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fileno, events)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

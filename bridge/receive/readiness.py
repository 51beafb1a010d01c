"""Wait until a descriptor can be read or written, by poll: select fails beyond 1023, and subscriptions open more.

And how long a server may be silent, before it is asked for a reply, and taken for gone.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg

from pgbridge.bridge.runtime.threads import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator


def shut_down(fileno: int) -> None:
    """Shut a socket down, and leave it open: who waits for it reads its end.

    Raises:
        OSError: It is no open socket.
    """
    with socket.socket(fileno=os.dup(fileno)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def cut_after(fileno: int, timeout_s: float) -> Iterator[None]:
    """Shut a socket down unless the block ends in time; who waits for it in the block then reads its end.

    TCP's keepalives do not tell of a proxy that is there while the server behind it is gone.
    """

    def cut() -> None:
        with suppress(OSError):  # its end was noticed meanwhile
            shut_down(own)

    own = os.dup(fileno)  # the number may be another socket's by then
    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        os.close(own)


def readable(fileno: int, timeout_s: float | None = None) -> bool:
    """Wait until bytes, an error or the end can be read; False after the timeout, None for no timeout."""
    return _ready(fileno, select.POLLIN, timeout_s)


def writable(fileno: int, timeout_s: float | None = None) -> bool:
    """Wait until bytes can be written, or an error can be read; False after the timeout, None for no timeout."""
    return _ready(fileno, select.POLLOUT, timeout_s)


class Wakeable(Closing):
    """Waits for a descriptor, and can be woken up by another thread."""

    def __init__(self) -> None:
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wake(self) -> None:
        """End the present or the next `readable`."""
        os.eventfd_write(self._woken, 1)

    def readable(self, fileno: int, timeout_s: float) -> bool:
        """Whether something can be read before the timeout and before `wake`."""
        poll = select.poll()
        poll.register(fileno, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}
        if self._woken in ready:
            os.eventfd_read(self._woken)
        return fileno in ready

    def close(self) -> None:
        """Release the descriptor. `wake` must not be called any more."""
        os.close(self._woken)


def _ready(fileno: int, events: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fileno, events)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


# --- ErrorResponse and NoticeResponse messages, read from bytes -------------------------------------------------------
# For `copy_both` and `copy_out`, which read a connection's socket themselves; elsewhere libpq reads them.


def fields_of(body: bytes) -> dict[str, str]:
    """An ErrorResponse's or NoticeResponse's fields by their codes ("Error and Notice Message Fields")."""
    texts = (field.decode(errors="replace") for field in body.split(b"\0") if field)
    return {text[0]: text[1:] for text in texts}


def server_error(fields: dict[str, str]) -> psycopg.Error:
    """The error that psycopg would raise for these fields."""
    text = as_psql(fields.get("V"), fields.get("M"), fields.get("D"))
    try:
        return psycopg.errors.lookup(fields.get("C", ""))(text)
    except KeyError:
        return psycopg.OperationalError(text)


def as_psql(severity: str | None, primary: str | None, detail: str | None) -> str:
    """A message as psql would show it."""
    text = f"{severity}:  {primary}"
    return f"{text}\nDETAIL:  {detail}" if detail else text


class WalReceiverTimeout:
    """The time since the server last sent something.

    Args:
        timeout_s: How long the server may send nothing; 0 for any time.
        now_s: When the stream begins.
    """

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._half_s = timeout_s / 2
        self._received_s = now_s
        self._pinged_s: float | None = None

    def received(self, now_s: float) -> None:
        """Start anew: bytes came, or nothing was read until now."""
        self._received_s = now_s
        self._pinged_s = None

    def ping_due(self, now_s: float) -> bool:
        """Whether to ask the server for a reply now; True once until the server is heard again."""
        if not self._half_s or self._pinged_s is not None or now_s < self._received_s + self._half_s:
            return False
        self._pinged_s = now_s
        return True

    @property
    def due_s(self) -> float:
        """When the next of both is due."""
        if not self._half_s:
            return math.inf
        return (self._received_s if self._pinged_s is None else self._pinged_s) + self._half_s

    def expired(self, now_s: float) -> bool:
        """Whether the server has not replied to the ping for half of the timeout.

        Counted from the ping: a process that was stopped for hours pings first.
        """
        return self._pinged_s is not None and now_s >= self._pinged_s + self._half_s

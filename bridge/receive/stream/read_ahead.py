"""Reads a socket in a thread of its own, a little ahead of the thread that handles the bytes.

The server's end of a Unix socket holds only 170 to 270 small messages: a walsender fills it within 0.5 to 1 ms, and
then waits. Whoever handles messages looks away for longer than that, above all where another thread decodes, and has
the interpreter's lock in between. This thread does nothing but read and sleep.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from pgbridge.bridge.runtime.threads import Closing

if TYPE_CHECKING:
    import socket

    from pgbridge.protocol.values.value_array import Bytes

_ACCUMULATE_S = 0.00015
_ACCUMULATE_FEW_S = 0.0003
_FEW_BYTES = 1500
"""A walsender sends each message by itself. Waking once per message costs both sides more CPU than handling it, so
messages are allowed to accumulate briefly: for a shorter time if they come fast, before they fill the socket's
buffer."""

_MAX_READS = 60
"""Maximum reads before what they have read is handed over (about 15 ms); more gain little, fewer cost more per
message."""

_AHEAD: Final = 4
"""How many buffers may wait to be taken."""


class ReadAhead(Closing):
    """Reads what arrives, in the order in which it does, until the connection ends.

    Args:
        opened: The socket, not blocking; somebody else may write to it, and closes it.
        buffer_bytes: Size of a buffer; a few of them are read ahead.
    """

    def __init__(self, opened: socket.socket, buffer_bytes: int) -> None:
        self._socket = opened
        self._buffer: Bytes = np.empty(buffer_bytes, np.uint8)
        self._filled = 0
        self._arrived: list[Bytes] = []
        self._arrived_bytes = 0
        self._changed = threading.Condition()
        self._ended_by: str | None = None
        self._failure: BaseException | None = None
        self._stopping = self._waker_came = False
        self._woken, self._wake = os.pipe()
        self._poll = select.poll()
        self._poll.register(opened.fileno(), select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="read ahead", daemon=True)

    def _begin(self) -> None:
        """Read from the first `take` or `wait` on: what arrives before is libpq's."""
        if self._thread.ident is None:
            self._thread.start()

    @property
    def ended_by(self) -> str | None:
        """Why nothing more arrives after what can be taken; None while more may."""
        return self._ended_by

    def take(self) -> list[Bytes]:
        """Return what has arrived since the last `take`, in order; nothing is copied."""
        self._begin()
        if self._failure is not None:
            raise self._failure
        with self._changed:
            taken, self._arrived, self._arrived_bytes = self._arrived, [], 0
            self._changed.notify_all()
        return taken

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until something can be taken, or nothing more arrives.

        Returns:
            Whether that is so; False after the timeout (None for no timeout) and after `wake`.
        """
        self._begin()
        with self._changed:
            self._changed.wait_for(lambda: self._has_come() or self._waker_came, timeout_s)
            self._waker_came = False
            return self._has_come()

    def wake(self) -> None:
        """End the present or the next `wait`."""
        with self._changed:
            self._waker_came = True
            self._changed.notify_all()

    def _has_come(self) -> bool:
        return bool(self._arrived) or self._ended_by is not None

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        os.close(self._wake)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._woken)

    def _run(self) -> None:
        try:
            while self._ended_by is None and not self._stopping:
                self._poll.poll()
                self._hand_over(*self._read())
        except BaseException as error:  # noqa: BLE001 - whatever it is, who takes must hear of it
            self._failure = error
            self._hand_over(self._buffer[:0], f"reading failed: {error}")

    def _read(self) -> tuple[Bytes, str | None]:
        """Read until nothing comes for a moment, a buffer is full, or it has been long enough.

        Returns:
            What was read, and why it was the last, if so.
        """
        begin, ended_by = self._filled, None
        for _ in range(_MAX_READS):
            try:
                size = self._socket.recv_into(self._buffer[self._filled :].data)
            except BlockingIOError:
                break
            except OSError as error:
                ended_by = f"the connection is lost: {error}"
                break
            if size == 0:
                ended_by = "server closed the connection unexpectedly"
                break
            self._filled += size
            if self._filled == len(self._buffer):
                break
            time.sleep(_ACCUMULATE_S if size > _FEW_BYTES else _ACCUMULATE_FEW_S)
        arrived = self._buffer[begin : self._filled]
        if self._filled == len(self._buffer):
            self._buffer, self._filled = np.empty_like(self._buffer), 0
        return arrived, ended_by

    def _hand_over(self, arrived: Bytes, ended_by: str | None) -> None:
        """Hand over what was read, then wait until there is room for more."""
        with self._changed:
            if len(arrived):
                self._arrived.append(arrived)
                self._arrived_bytes += len(arrived)
            self._ended_by = ended_by
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._arrived_bytes < _AHEAD * len(self._buffer) or self._stopping)

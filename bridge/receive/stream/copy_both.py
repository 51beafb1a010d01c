"""A replication connection after START_REPLICATION: CopyData in both directions, through libpq or the socket itself.

libpq returns one message at a time, with two calls and an allocation for each: in Python that takes longer than the
walsender needs to produce the message. On a Unix socket, where libpq encrypts nothing, the messages are therefore read
from the socket, all at once that have arrived. libpq opens, authenticates and closes the connection.

Source: the documentation's "Message Formats"; `getCopyDataMessage` in PostgreSQL's fe-protocol3.c.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import psycopg

from pgbridge.bridge.receive.readiness import Wakeable, as_psql, fields_of, server_error, writable
from pgbridge.bridge.receive.stream.read_ahead import ReadAhead
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import PublisherError, StreamError
from pgbridge.protocol.bulk.copy import PREFIX_BYTES, copy_frames, stream_frames
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.values.value_array import PADDING, Bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgbridge.protocol.lsn import Lsn

_ACCUMULATE_S = 0.0003
"""How long libpq's messages may accumulate: waking once per message costs both sides more CPU than handling it."""
_MESSAGES_AT_ONCE = 10_000
_BUFFER_BYTES = 1 << 20
_SEND_TIMEOUT_S = 1.0

_COPY_BOTH, _ERROR, _NOTICE, _READY = b"WENZ"
_LENGTH: Final = struct.Struct(">I")


_UNDEFINED_OBJECT = "42704"
_NOT_CAUSED_BY_STREAMING = frozenset({"08", "53", "55", "57"})
"""SQLSTATE classes of errors that `streaming` does not cause: lost connection, insufficient resources, slot in use,
operator intervention."""


class StreamEnded(Exception):
    """The server ended the stream, or the connection is gone.

    Attributes:
        sqlstate: Of the server's error; None if it sent none.
    """

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate

    def error(self, subscription: str, handed_over_lsn: Lsn, finish_lsn: Lsn | None = None) -> PublisherError:
        """Return the error for it, with `retry` and a hint.

        Args:
            handed_over_lsn: The end of the last transaction that was received as a whole.
            finish_lsn: The finish LSN of the one that was being received, if that is known.
        """
        sqlstate, text = self.sqlstate, str(self)
        retry = sqlstate is None or sqlstate[:2] in {*_NOT_CAUSED_BY_STREAMING, "XX"}
        hint = "" if retry else "the change is in the WAL, so that nothing helps that is changed on the publisher now"
        if sqlstate == _UNDEFINED_OBJECT:
            hint = (
                "creating the publication again is not enough: WAL from before that lacks it; "
                f"to copy all tables again, run: {remedies.start_afresh(subscription)}"
            )
        message = f"the publisher ended the stream: {text or 'no reason given'}"
        if sqlstate is None or sqlstate[:2] in _NOT_CAUSED_BY_STREAMING or sqlstate == _UNDEFINED_OBJECT:
            return PublisherError(message, hint=hint, retry=retry)
        return StreamError(message, sqlstate, handed_over_lsn, finish_lsn, hint=hint, retry=retry)


class CopyBoth(Protocol):
    """A replication connection."""

    def start(self, command: str) -> None:
        """Send START_REPLICATION and wait for the response.

        Raises:
            psycopg.Error: The server refuses it; another command may be sent.
            PublisherError: The server closed the connection.
        """

    def read(self) -> MessageArray:
        """The contents of the CopyData messages that have arrived, up to some thousands; empty if none have.

        Raises:
            StreamEnded: No more messages will come.
            psycopg.Error: libpq lost the connection.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait until bytes arrive, after a `read` that returned no messages.

        Returns:
            Whether some arrived before the timeout and before `wake`.
        """

    def wake(self) -> None:
        """End a `wait`, or the next one; any thread may call it."""

    def send(self, content: bytes) -> None:
        """Send CopyData. Another thread may do so than the one that reads; never two at once.

        Raises:
            psycopg.Error: The connection is lost.
            OSError: The same.
        """

    def end(self) -> None:
        """Send CopyDone: the server handles what was sent before, and ends the stream. Raises as `send`."""

    def close(self) -> None:
        """Release the connection; the caller closes it."""


def copy_both(connection: psycopg.Connection[tuple[object, ...]], notice: Callable[[str], None]) -> CopyBoth:
    """Choose the socket if the connection allows it, else libpq.

    Args:
        connection: A replication connection without a running command.
        notice: Called with each notice or warning, as psql would show it.
    """
    opened = socket.socket(fileno=os.dup(connection.pgconn.socket))
    if opened.family == socket.AF_UNIX:
        return SocketCopyBoth(opened, notice)
    opened.close()
    connection.add_notice_handler(lambda d: notice(as_psql(d.severity, d.message_primary, d.message_detail)))
    return LibpqCopyBoth(connection)


class LibpqCopyBoth:
    """Reads and writes through libpq; works on every connection."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self._connection = connection
        self._ended_by: StreamEnded | None = None
        self._wakeable = Wakeable()
        self._in_libpq = threading.Lock()  # which does not let two threads use a connection at once

    def start(self, command: str) -> None:  # noqa: D102 - CopyBoth's
        self._connection.execute(command.encode())
        if self._connection.pgconn.status != psycopg.pq.ConnStatus.OK:
            raise PublisherError("the publisher closed the connection at START_REPLICATION", retry=True)

    def read(self) -> MessageArray:  # noqa: D102 - CopyBoth's
        with self._in_libpq:
            return self._read()

    def _read(self) -> MessageArray:
        pgconn = self._connection.pgconn
        get_copy_data = pgconn.get_copy_data
        messages: list[bytes] = []
        append = messages.append
        counted = size_bytes = 0
        while self._ended_by is None and len(messages) < _MESSAGES_AT_ONCE:
            size, data = get_copy_data(1)
            if size > 0:
                # keeping libpq's memoryview costs more than the copy: the garbage collector tracks it
                append(bytes(data))
            elif size < 0:
                self._ended_by = self._stream_ended()
                break
            else:
                size_bytes += sum(map(len, messages[counted:]))
                if counted == len(messages) or size_bytes > _BUFFER_BYTES:
                    break
                counted = len(messages)
                pgconn.consume_input()
        if not messages and self._ended_by is not None:
            raise self._ended_by
        return MessageArray.of(messages)

    def _stream_ended(self) -> StreamEnded:
        result = self._connection.pgconn.get_result()
        reason = (result.error_message if result else self._connection.pgconn.error_message).decode(errors="replace")
        sqlstate = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) if result else None
        return StreamEnded(reason.strip(), sqlstate.decode() if sqlstate else None)

    def wait(self, timeout_s: float) -> bool:  # noqa: D102 - CopyBoth's
        pgconn = self._connection.pgconn
        if not self._wakeable.readable(pgconn.socket, timeout_s):
            return False
        time.sleep(_ACCUMULATE_S)
        with self._in_libpq:
            pgconn.consume_input()
        return True

    def send(self, content: bytes) -> None:  # noqa: D102 - CopyBoth's
        with self._in_libpq:
            self._connection.pgconn.put_copy_data(content)
        self._flush()

    def end(self) -> None:  # noqa: D102 - CopyBoth's
        with self._in_libpq:
            self._connection.pgconn.put_copy_end()
        self._flush()

    def _flush(self) -> None:
        pgconn = self._connection.pgconn
        with self._in_libpq:
            unsent = pgconn.flush()
        while unsent:
            writable(pgconn.socket, _SEND_TIMEOUT_S)
            with self._in_libpq:
                unsent = pgconn.flush()

    def wake(self) -> None:  # noqa: D102 - CopyBoth's
        self._wakeable.wake()

    def close(self) -> None:  # noqa: D102 - CopyBoth's
        self._wakeable.close()


class SocketCopyBoth:
    """Reads and writes the socket of a connection without encryption; after `start` libpq can only close it.

    Args:
        opened: The socket; `close` closes it.
    """

    def __init__(self, opened: socket.socket, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._socket = opened
        self._socket.setblocking(False)
        self._ahead = ReadAhead(opened, _BUFFER_BYTES)
        self._unhandled: list[Bytes] = []
        self._unhandled_bytes = 0
        self._ended_by: StreamEnded | None = None

    def close(self) -> None:  # noqa: D102 - CopyBoth's
        self._ahead.close()
        self._socket.close()

    def start(self, command: str) -> None:  # noqa: D102 - CopyBoth's
        query = command.encode() + b"\0"
        self._send(b"Q" + _LENGTH.pack(len(query) + 4) + query)
        refused: psycopg.Error | None = None
        while self._first_has_come():
            data = np.concatenate(self._unhandled)
            end = _message_end(data)
            tag, body = int(data[0]), data[PREFIX_BYTES:end].tobytes()
            self._keep(data[end:])
            if tag == _COPY_BOTH:
                return
            if tag == _ERROR:
                refused = server_error(fields_of(body))
            elif tag == _READY and refused is not None:
                raise refused
            else:
                self._handle_other(tag, body)
        raise refused or PublisherError("the publisher closed the connection at START_REPLICATION", retry=True)

    def _first_has_come(self) -> bool:
        """Wait for the first message; False if the connection ended before all of it came."""
        ended_by = None
        while not self._take():
            if ended_by is not None:
                return False
            self._ahead.wait()
            ended_by = self._ahead.ended_by  # asked before what came before it is taken
        return True

    def read(self) -> MessageArray:  # noqa: D102 - CopyBoth's
        ended_by = self._ahead.ended_by  # asked before what came before it is taken
        if self._take():
            data = np.empty(self._unhandled_bytes + PADDING, np.uint8)
            at, parts = 0, deque(self._unhandled)
            self._unhandled.clear()
            while parts:  # each is released when it is copied: a message may have hundreds of megabytes
                part = parts.popleft()
                data[at : at + len(part)] = part
                at += len(part)
            messages, end = copy_frames(data, at, stream_frames, self._handle_other)
            self._keep(data[end:at])
            if len(messages):
                return messages
        if self._ended_by is not None or ended_by is not None:
            # The server's own reason, if it sent one, says more than how the connection ended.
            raise self._ended_by or StreamEnded(ended_by or "")
        return MessageArray.of()

    def wait(self, timeout_s: float) -> bool:  # noqa: D102 - CopyBoth's
        return self._ahead.wait(timeout_s)

    def wake(self) -> None:  # noqa: D102 - CopyBoth's
        self._ahead.wake()

    def send(self, content: bytes) -> None:  # noqa: D102 - CopyBoth's
        self._send(b"d" + _LENGTH.pack(len(content) + 4) + content)

    def end(self) -> None:  # noqa: D102 - CopyBoth's
        self._send(b"c" + _LENGTH.pack(4))

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                writable(self._socket.fileno(), _SEND_TIMEOUT_S)

    def _take(self) -> bool:
        """Take what has arrived. Whether the first message is whole: before that, a large one is not copied."""
        for part in self._ahead.take():
            self._unhandled.append(part)
            self._unhandled_bytes += len(part)
        if self._unhandled_bytes < PREFIX_BYTES:
            return False
        if len(self._unhandled[0]) < PREFIX_BYTES:
            self._unhandled = [np.concatenate(self._unhandled)]
        return _message_end(self._unhandled[0]) <= self._unhandled_bytes

    def _keep(self, rest: Bytes) -> None:
        """Keep these bytes only: the beginning of a message."""
        self._unhandled = [rest.copy()] if len(rest) else []
        self._unhandled_bytes = len(rest)

    def _handle_other(self, tag: int, body: bytes) -> None:
        """Handle a message that is not CopyData."""
        if tag == _NOTICE:
            fields = fields_of(body)
            self._notice(as_psql(fields.get("V"), fields.get("M"), fields.get("D")))
        elif tag == _ERROR:
            fields = fields_of(body)
            self._ended_by = StreamEnded(as_psql(fields.get("V"), fields.get("M"), fields.get("D")), fields.get("C"))
        elif tag not in b"SA":
            self._ended_by = self._ended_by or StreamEnded("")


def _message_end(data: Bytes) -> int:
    """Return the length of the message that begins with these bytes."""
    return 1 + int(_LENGTH.unpack_from(data.data, 1)[0])

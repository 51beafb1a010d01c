"""COPY … TO STDOUT (FORMAT binary): CopyData messages, many at a time, through libpq or the connection's socket.

Each row is a message. libpq returns them one by one, which in Python takes longer than decoding them; on a connection
without encryption they are therefore read from the socket, as in `copy_both`.

Source: the documentation's "COPY Operations" and "Message Formats".
"""

from __future__ import annotations

import os
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import psycopg

from pgbridge.bridge.receive.readiness import fields_of, readable, server_error, writable
from pgbridge.protocol.bulk import copy, decode_chunk
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.values.value_array import PADDING, Bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUFFER_BYTES: Final = decode_chunk.DECODE_CHUNK_BYTES
_LENGTH: Final = struct.Struct(">I")
_ERROR, _READY = b"EZ"
_READY_PREFIX: Final = b"Z\0\0\0\5"
_READY_BYTES: Final = len(_READY_PREFIX) + 1  # and the transaction's status


def copy_out(
    connection: psycopg.Connection[tuple[object, ...]], statement: str, columns: int
) -> Iterator[MessageArray]:
    """Run a COPY within the connection's transaction, from the socket if the connection allows it.

    Args:
        connection: The connection; afterwards it can only be closed.
        statement: COPY … TO STDOUT (FORMAT binary).
        columns: The number of columns of a row.

    Yields:
        Messages in order, some megabytes at a time; the next ones overwrite them.

    Raises:
        psycopg.Error: The server refuses the statement, or ends it.
    """
    opened = socket.socket(fileno=os.dup(connection.pgconn.socket))
    with opened:
        if _encrypted(connection, opened):
            yield from _by_libpq(connection.pgconn, statement)
        else:
            yield from _by_socket(opened, statement, columns)


def _encrypted(connection: psycopg.Connection[tuple[object, ...]], opened: socket.socket) -> bool:
    """Whether the socket's bytes are encrypted: by TLS, as libpq knows, or by GSSAPI, as only the server tells."""
    if opened.family == socket.AF_UNIX or connection.pgconn.ssl_in_use:
        return bool(connection.pgconn.ssl_in_use)
    row = connection.execute("SELECT encrypted FROM pg_stat_gssapi WHERE pid = pg_backend_pid()").fetchone()
    return row is None or bool(row[0])


def _by_libpq(pgconn: psycopg.pq.abc.PGconn, statement: str) -> Iterator[MessageArray]:
    pgconn.send_query(statement.encode())
    while pgconn.flush():
        writable(pgconn.socket)
    if (result := _result(pgconn)).status != psycopg.pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    messages: list[bytes] = []
    append = messages.append
    get_copy_data = pgconn.get_copy_data
    size_bytes = 0
    while True:
        size, data = get_copy_data(1)
        if size > 0:
            # keeping libpq's memoryview costs more than the copy: the garbage collector tracks it
            append(bytes(data))
            size_bytes += size
            if size_bytes >= _BUFFER_BYTES:
                yield MessageArray.of(messages)
                messages.clear()
                size_bytes = 0
        elif size == 0:
            readable(pgconn.socket)
            pgconn.consume_input()
        else:
            break
    if (result := _result(pgconn)).status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    if messages:
        yield MessageArray.of(messages)


def _result(pgconn: psycopg.pq.abc.PGconn) -> psycopg.pq.abc.PGresult:
    while pgconn.is_busy():
        readable(pgconn.socket)
        pgconn.consume_input()
    result = pgconn.get_result()
    if result is None:
        raise psycopg.OperationalError("the server gave no answer to COPY")
    return result


def _by_socket(opened: socket.socket, statement: str, columns: int) -> Iterator[MessageArray]:
    opened.setblocking(True)
    query = statement.encode() + b"\0"
    opened.sendall(b"Q" + _LENGTH.pack(len(query) + 4) + query)
    incoming = _Incoming(opened)
    done = False

    def handle_other(tag: int, content: bytes) -> None:
        nonlocal done
        if tag == _ERROR:
            raise server_error(fields_of(content))
        done = done or tag == _READY

    find = partial(copy.row_frames, columns=columns)
    while not done:
        incoming.fill()
        rows, end = copy.copy_frames(incoming.data, incoming.filled, find, handle_other)
        if len(rows):
            yield rows
        incoming.drop(end)


class _Incoming:
    """Bytes read from a socket, in a buffer that is used again and again.

    Attributes:
        data: The buffer, with PADDING more bytes at its end.
        filled: How many bytes it holds.
    """

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self.filled = 0
        self._closed = False
        self._allocate(_BUFFER_BYTES)

    def _allocate(self, size: int) -> None:
        self._buffer = bytearray(size + PADDING)
        self.data: Bytes = np.frombuffer(self._buffer, np.uint8)

    def fill(self) -> None:
        """Read bytes until the buffer is full or may hold the end of the COPY.

        Raises:
            psycopg.OperationalError: The server closed the connection.
        """
        view = memoryview(self._buffer)[:-PADDING]
        while self.filled < len(view):
            size = self._socket.recv_into(view[self.filled :])
            if size == 0 and self._closed:
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            self._closed = size == 0
            self.filled += size
            # before it closes a connection the server may have sent an error
            if self._closed or self._buffer.startswith(_READY_PREFIX, max(0, self.filled - _READY_BYTES), self.filled):
                return

    def _size(self, at: int) -> int:
        """The size of the message at a position; until its header has arrived, the header's."""
        if self.filled < at + copy.PREFIX_BYTES:
            return copy.PREFIX_BYTES
        return 1 + int(_LENGTH.unpack_from(self._buffer, at + 1)[0])

    def drop(self, size: int) -> None:
        """Remove the first bytes, and make room for the next message."""
        rest = self._buffer[size : self.filled]
        room = max(_BUFFER_BYTES, self._size(size))
        if room != len(self._buffer) - PADDING:
            self._allocate(room)
        self.filled = len(rest)
        self._buffer[: self.filled] = rest

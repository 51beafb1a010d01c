"""CopyData comes whole, in order and unchanged, however it was cut on the way, by libpq and from the socket."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import given, strategies as st

from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.stream import copy_both as module
from pgbridge.bridge.receive.stream.copy_both import LibpqCopyBoth, SocketCopyBoth, StreamEnded, copy_both
from pgbridge.protocol.codec.walsender import (
    PrimaryKeepalive,
    StandbyStatusUpdate,
    decode_copy_data,
    encode_standby_status_update,
    start_replication,
)
from pgbridge.protocol.lsn import INVALID
from tests.bridge.receive.streams import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgbridge.bridge.receive.stream.copy_both import CopyBoth
    from tests.fix_postgres import Publisher


def message(tag: bytes, body: bytes) -> bytes:
    """A message of the protocol."""
    return tag + struct.pack(">I", len(body) + 4) + body


def fields(**texts: str) -> bytes:
    """The body of an ErrorResponse or NoticeResponse."""
    return b"".join(code.encode() + text.encode() + b"\0" for code, text in texts.items()) + b"\0"


def of_all(stream: CopyBoth) -> tuple[list[bytes], StreamEnded]:
    """Everything up to the end: the contents, the end."""
    contents: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            arrived = stream.read()
        except StreamEnded as ended:
            return contents, ended
        if not len(arrived):
            stream.wait(0.1)
            assert time.monotonic() < deadline
        contents += arrived.messages()


def arriving(stream: CopyBoth, number: int) -> list[bytes]:
    """The next contents, at least so many."""
    contents: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(contents) < number and time.monotonic() < deadline:
        stream.wait(0.1)
        contents += stream.read().messages()
    return contents


@contextmanager
def socket_stream(notices: list[str] | None = None) -> Iterator[tuple[socket.socket, SocketCopyBoth]]:
    """A server's end of a socket, and the stream at the other."""
    server, client = socket.socketpair()
    stream = SocketCopyBoth(client, (notices if notices is not None else []).append)
    with server, closing(stream):
        yield server, stream


# what looks like the beginning of a message within one, among other bytes
_LOOKALIKE = message(b"d", b"w" + bytes(30))
_contents = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=80).map(lambda data: b"w" + data),
        st.binary(max_size=20).map(lambda data: b"k" + data),
        st.binary(max_size=60),
        st.tuples(st.binary(max_size=40), st.binary(max_size=40)).map(
            lambda ends: b"w" + ends[0] + _LOOKALIKE + ends[1]
        ),
    ),
    max_size=30,
)


@given(
    contents=_contents, cuts=st.lists(st.integers(0, 3000), max_size=8), buffer_bytes=st.sampled_from([16, 200, 4096])
)
def test_contents_however_they_are_cut(contents, cuts, buffer_bytes):
    """Also where they are larger than the buffer, look like beginnings of messages, or are nothing of a walsender's."""
    data = b"".join(message(b"d", content) for content in contents)
    came: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BUFFER_BYTES", buffer_bytes)
        with socket_stream() as (server, stream):
            for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
                server.sendall(data[begin:end])
                stream.wait(0.001)
                came += stream.read().messages()
            server.close()
            rest, ended = of_all(stream)
    assert came + rest == contents
    assert "closed the connection" in str(ended)


def test_an_error_comes_after_what_was_sent_before_it():
    error = fields(S="FEHLER", V="ERROR", C="42704", M='publication "p" does not exist', D="Really.")
    with socket_stream() as (server, stream):
        server.sendall(message(b"d", b"w" * 40) + message(b"E", error) + message(b"Z", b"I"))
        contents, ended = of_all(stream)
    assert contents == [b"w" * 40]
    assert (str(ended), ended.sqlstate) == ('ERROR:  publication "p" does not exist\nDETAIL:  Really.', "42704")


_FATAL = message(b"E", fields(S="FATAL", V="FATAL", C="57P01", M="shut down"))


@pytest.mark.parametrize(
    ("last", "reason"),
    [(_FATAL, "FATAL:  shut down"), (b"", "the connection is lost: [Errno 104] Connection reset by peer")],
)
def test_a_reset_comes_after_what_was_sent_before_it(last, reason):
    with socket_stream() as (server, stream):
        stream.send(b"unread by the server, which makes its close a reset")
        server.sendall(message(b"d", b"w1") + message(b"d", b"w2") + last)
        server.close()
        contents, ended = of_all(stream)
    assert contents == [b"w1", b"w2"]
    assert (str(ended), ended.sqlstate) == (reason, "57P01" if last else None)


def test_notices_and_parameters_do_not_end_it():
    notices: list[str] = []
    with socket_stream(notices) as (server, stream):
        server.sendall(
            message(b"d", b"w" * 40)
            + message(b"N", fields(S="WARNUNG", V="WARNING", M="look"))
            + message(b"S", b"TimeZone\0UTC\0")
            + message(b"d", b"w" * 50)
        )
        came = arriving(stream, 2)
        assert came == [b"w" * 40, b"w" * 50]
        assert notices == ["WARNING:  look"]
        server.sendall(message(b"c", b"") + message(b"C", b"COPY 0\0"))
        assert str(of_all(stream)[1]) == ""


def test_a_large_message_leaves_no_large_buffer():
    with socket_stream() as (server, stream):
        sender = threading.Thread(target=server.sendall, args=(message(b"d", bytes(9 << 20)) + message(b"d", b"w"),))
        sender.start()
        sizes: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(sizes) < 2:
            assert time.monotonic() < deadline
            arrived = stream.read()
            if not len(arrived):
                stream.wait(0.1)
            sizes += arrived.lengths.tolist()
        sender.join()
        assert sizes == [9 << 20, 1]
        assert sum(map(len, stream._unhandled)) == 0


def test_a_socket_that_is_full_is_waited_for():
    with socket_stream() as (server, stream):
        update = b"r" + bytes(33)

        def send() -> None:
            for _ in range(20_000):
                stream.send(update)

        sender = threading.Thread(target=send)
        sender.start()
        expected = message(b"d", update) * 20_000
        came = b""
        server.settimeout(PATIENCE_S)
        while len(came) < len(expected):
            came += server.recv(1 << 20)
        sender.join()
        assert came == expected


# --- beside a server --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[SocketCopyBoth, LibpqCopyBoth])
def opened(publisher, request) -> Iterator[CopyBoth]:
    """A connection with a slot, and publications all and none, that nothing has been started on."""
    if request.param is SocketCopyBoth:
        publisher.needs_unix_socket()
    publisher.execute("CREATE TABLE t (a text); CREATE PUBLICATION p FOR TABLE t")
    with closing(connect(publisher.conninfo, application_name="test", replication=True)) as connection:
        connection.execute(b"CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput")
        if request.param is LibpqCopyBoth:
            stream: CopyBoth = LibpqCopyBoth(connection)
        else:
            stream = copy_both(connection, lambda _: None)
            assert isinstance(stream, SocketCopyBoth)
        yield stream
        stream.close()


def start(stream: CopyBoth, slot_name: str = "s") -> None:
    """Stream the publication p."""
    stream.start(start_replication(slot_name, INVALID, {"proto_version": 1, "publication_names": ["p"]}))


def terminate(publisher: Publisher, slot_name: str = "s") -> None:
    """Have the server end the slot's walsender."""
    query = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active"
    publisher.execute(query, (slot_name,))


def test_what_a_walsender_sends(opened, publisher):
    """Every message, and the keepalive that answers a status update."""
    start(opened)
    publisher.execute("INSERT INTO t SELECT repeat('x', n) FROM generate_series(0, 3000) AS n")
    update = StandbyStatusUpdate(INVALID, INVALID, INVALID, 0, reply_requested=True)
    opened.send(encode_standby_status_update(update))
    payloads: list[bytes] = []
    keepalives = 0
    deadline = time.monotonic() + PATIENCE_S
    while (not keepalives or payloads[-1:] == [] or payloads[-1][:1] != b"C") and time.monotonic() < deadline:
        arrived = opened.read()
        for content in arrived.messages():
            decoded = decode_copy_data(content)
            if isinstance(decoded, PrimaryKeepalive):
                keepalives += 1
            else:
                payloads.append(decoded.payload)
        opened.wait(0.1)
    assert [payload[:1] for payload in payloads] == [b"B", b"R", *[b"I"] * 3001, b"C"]
    assert [len(payload) for payload in payloads[2:-1]] == [len(payloads[2]) + n for n in range(3001)]


def test_a_refused_start_is_psycopgs_error(opened):
    with pytest.raises(psycopg.errors.UndefinedObject, match='replication slot "missing" does not exist'):
        start(opened, "missing")


def test_a_refused_start_leaves_the_connection_to_start_again(opened, publisher):
    """The refused command's ReadyForQuery is not mistaken for the end of the stream that starts next."""
    # not the temporary one, which goes with the error
    publisher.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (publisher.name,))
    with pytest.raises(psycopg.errors.UndefinedObject):
        start(opened, "missing")
    start(opened, publisher.name)
    terminate(publisher, publisher.name)
    _, ended = of_all(opened)
    assert ended.sqlstate == "57P01"


def test_an_error_of_the_server_ends_it(opened, publisher):
    start(opened)
    terminate(publisher)
    _, ended = of_all(opened)
    assert "terminating connection due to administrator command" in str(ended)
    assert ended.sqlstate == "57P01"

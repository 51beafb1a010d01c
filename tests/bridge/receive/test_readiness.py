"""Descriptors are waited for whatever their numbers: a connection beyond 1023 opens, streams and copies like others."""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import ExitStack, closing

import pytest

from pgbridge.bridge.receive import copy_out as copying
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.readiness import Wakeable, readable, writable
from pgbridge.bridge.receive.stream import copy_both as streaming
from pgbridge.bridge.receive.stream.copy_both import LibpqCopyBoth, SocketCopyBoth
from pgbridge.protocol.bulk.copy import CopyDecoder
from pgbridge.protocol.codec.walsender import StandbyStatusUpdate, encode_standby_status_update, start_replication
from pgbridge.protocol.lsn import INVALID
from pgbridge.protocol.values.pg_type import BUILTIN
from pgbridge.protocol.values.types import resolve
from tests.bridge.receive.streams import PATIENCE_S

BEYOND = 1024
"""The first descriptor that select does not take."""


@pytest.fixture
def many_descriptors():
    """Descriptors that are opened now are beyond 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096) if hard < 0 else min(max(soft, 4096), hard), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        descriptor = 0
        while descriptor < BEYOND:
            descriptor = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, descriptor)
        yield


def test_a_wait_is_ended_by_another_thread():
    """One that comes before the wait counts, once; what can be read is told all the same."""
    read, write = os.pipe2(os.O_NONBLOCK)
    with Wakeable() as waiter:
        waiter.wake()
        waiter.wake()
        assert not waiter.readable(read, PATIENCE_S)
        assert not waiter.readable(read, 0.01)
        threading.Timer(0.05, waiter.wake).start()
        assert not waiter.readable(read, PATIENCE_S)
        os.write(write, b"x")
        waiter.wake()
        assert waiter.readable(read, PATIENCE_S)
    os.close(read)
    os.close(write)


@pytest.mark.usefixtures("many_descriptors")
def test_a_pipe():
    """A closed socket is readable, a full one is not writable; neither wait exceeds the timeout."""
    read, write = os.pipe2(os.O_NONBLOCK)
    assert read > BEYOND
    assert not readable(read, 0)
    assert writable(write)
    os.write(write, b"x")
    assert readable(read)
    while writable(write, 0):
        os.write(write, bytes(1 << 16))
    before = time.monotonic()
    assert not writable(write, 0.05)
    assert 0.04 < time.monotonic() - before < PATIENCE_S
    os.read(read, 1 << 20)
    os.close(write)
    assert readable(read)
    os.close(read)


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("way", [LibpqCopyBoth, SocketCopyBoth])
def test_a_stream(publisher, way):
    if way is SocketCopyBoth:
        publisher.needs_unix_socket()
    publisher.execute("CREATE TABLE t (a text); CREATE PUBLICATION p FOR TABLE t")
    with closing(connect(publisher.conninfo, application_name="test", replication=True)) as connection:
        assert connection.pgconn.socket >= BEYOND
        connection.execute(b"CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput")
        stream = LibpqCopyBoth(connection) if way is LibpqCopyBoth else streaming.copy_both(connection, lambda _: None)
        assert isinstance(stream, way)
        with closing(stream):
            stream.start(start_replication("s", INVALID, {"proto_version": 1, "publication_names": ["p"]}))
            publisher.execute("INSERT INTO t VALUES ('x')")
            update = encode_standby_status_update(StandbyStatusUpdate(INVALID, INVALID, INVALID, 0, False))
            stream.send(update)
            tags: list[bytes] = []
            deadline = time.monotonic() + PATIENCE_S
            while b"C" not in tags and time.monotonic() < deadline:
                tags += [content[25:26] for content in stream.read().messages() if content[:1] == b"w"]
                stream.wait(0.05)
    assert tags == [b"B", b"R", b"I", b"C"]


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("encrypted", [True, False])
def test_a_copy(publisher, monkeypatch, encrypted):
    monkeypatch.setattr(copying, "_encrypted", lambda *_: encrypted)
    with closing(connect(publisher.conninfo, application_name="test")) as connection:
        assert connection.pgconn.socket >= BEYOND
        decoder = CopyDecoder([resolve(23, -1, BUILTIN)], ["n"])
        query = "SELECT n FROM generate_series(1, 100000) n, pg_sleep(0.1)"
        arrived = copying.copy_out(connection, f"COPY ({query}) TO STDOUT (FORMAT binary)", 1)
        rows = [n for messages in arrived for n in decoder.decode(messages).column("n").to_pylist()]
    decoder.finish()
    assert rows == list(range(1, 100_001))

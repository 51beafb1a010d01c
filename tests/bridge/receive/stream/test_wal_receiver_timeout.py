"""A silent server is pinged at half of the timeout and given up at all of it, but never without a ping."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

from bridge.receive.stream import walreceiver
from bridge.receive.stream.wal_receiver_timeout import WalReceiverTimeout
from bridge.runtime.errors import PublisherError
from tests.bridge.receive.streams import Stream, ids, insert, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_ping_at_half_of_the_timeout():
    timeout = WalReceiverTimeout(60, now_s=100)
    assert not timeout.ping_due(129.9)
    assert timeout.ping_due(130)
    assert not timeout.ping_due(131)
    assert not timeout.expired(159.9)
    assert timeout.expired(160)


def test_anything_received_starts_it_anew():
    timeout = WalReceiverTimeout(60, now_s=100)
    assert timeout.ping_due(130)
    timeout.received(159)
    assert not timeout.expired(160)
    assert not timeout.ping_due(188)
    assert timeout.ping_due(189)


def test_no_timeout_without_a_ping():
    """The process itself may have been stopped."""
    timeout = WalReceiverTimeout(60, now_s=100)
    assert not timeout.expired(5000)
    assert timeout.ping_due(5000)
    assert not timeout.expired(5029)
    assert timeout.expired(5030)


def test_zero_is_no_timeout():
    timeout = WalReceiverTimeout(0, now_s=100)
    assert not timeout.ping_due(1e9)
    assert not timeout.expired(1e9)


# --- in a receiver ----------------------------------------------------------------------------------------------------


class Silencer:
    """A proxy in front of a server's Unix socket, which can go silent without closing anything, as a lost network."""

    def __init__(self, target: str, listening: socket.socket) -> None:
        self._target = target
        self._listening = listening
        self._open: list[socket.socket] = [listening]
        self.silent = threading.Event()
        self.swallowed_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._target)
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.silent.is_set():
                    self.swallowed_bytes += len(data)
                else:
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for opened in self._open:
            opened.close()


@pytest.fixture(params=["socket", "libpq"])
def silenced(request, publisher, tmp_path: Path, monkeypatch) -> Iterator[tuple[Stream, Silencer]]:
    """A stream through a proxy: read from a Unix socket, or by libpq from a TCP connection."""
    publisher.needs_unix_socket()  # the proxy's way to the server
    monkeypatch.setattr(walreceiver, "STATUS_INTERVAL_S", 0.05)
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    made = Stream(publisher.conninfo, f"{publisher.name}_slot", tmp_path / "spool")
    made.receiver.stop()
    server = publisher.server
    if request.param == "socket":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(f"{tmp_path}/.s.PGSQL.{server.port}")
        host, port = str(tmp_path), server.port
    else:
        listening = socket.create_server(("127.0.0.1", 0))
        host, port = "127.0.0.1", listening.getsockname()[1]
    listening.listen()
    proxy = Silencer(f"{server.host}/.s.PGSQL.{server.port}", listening)
    made.conninfo = make_conninfo(publisher.conninfo, host=host, port=port, sslmode="disable", gssencmode="disable")
    yield made, proxy
    proxy.silent.clear()
    made.receiver.stop()
    proxy.close()


def test_the_server_falls_silent(silenced, publisher):
    """Within the time, in PostgreSQL's words, and worth another try."""
    stream, proxy = silenced
    stream.open(stream.start_lsn, timeout_s=1.0)
    stream.start()
    insert(publisher, 1)
    assert ids(stream.take(1)) == [[1]]
    proxy.silent.set()
    began_s = time.monotonic()
    insert(publisher, 2)
    error = stream.failure()
    assert 0.9 < time.monotonic() - began_s < 5
    assert isinstance(error, PublisherError)
    assert error.retry
    assert str(error).startswith("terminating logical replication worker due to timeout: ")


def test_an_idle_server_answers_and_is_not_given_up(silenced, publisher):
    """Nor is a server given up to which nobody listens, because the queue is full for longer than the timeout."""
    stream, _ = silenced
    stream.open(stream.start_lsn, timeout_s=1.6, max_bytes=1)
    stream.start()
    time.sleep(1.9)
    insert(publisher, 1)
    wait_for(lambda: not stream.queue.wait_for_room(0))
    time.sleep(1.7)
    insert(publisher, 2)
    assert ids(stream.take(2)) == [[1], [2]]
    assert stream.receiver._thread.is_alive()

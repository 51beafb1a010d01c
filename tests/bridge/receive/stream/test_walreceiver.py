"""Transactions arrive whole and in order.

A silent server is pinged at half of the timeout and given up at all of it, but never without a ping.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.receive.readiness import WalReceiverTimeout
from pgbridge.bridge.receive.stream import copy_both, walreceiver
from pgbridge.bridge.receive.stream.queue import TransactionQueue
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.protocol.codec.messages import Delete, Insert, LogicalMessage, Relation, Truncate, Update
from pgbridge.protocol.codec.pgoutput import decode
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from tests.bridge.receive.streams import Stream, ids, insert, inserted, wait_for, wal_position

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.stream.transactions import Transaction


def test_transactions_in_order_with_rows_and_events(stream, publisher):
    """Each row message as it came, events at their places; nothing of rollbacks and of other tables."""
    stream.start()
    publisher.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    publisher.execute("BEGIN; INSERT INTO t VALUES (3, 'c'); ROLLBACK")
    publisher.execute("INSERT INTO u VALUES (1)")
    publisher.execute(
        "BEGIN; UPDATE t SET a = 'z' WHERE id = 1; INSERT INTO u VALUES (2); DELETE FROM t WHERE id = 2;"
        " TRUNCATE t; INSERT INTO t VALUES (4, 'd'); COMMIT"
    )
    first, second = stream.take(2)
    kinds = [[type(decode(row[HEADER_BYTES:])) for row in t.rows.messages()] for t in (first, second)]
    assert kinds == [[Insert, Insert], [Update, Delete, Insert]]
    ((position, relation),) = first.events
    assert (position, type(relation), relation.name) == (0, Relation, "t")
    assert [position for position, event in second.events if isinstance(event, Truncate)] == [2]
    assert ids([first]) == [[1, 2]]
    assert first.commit_lsn < first.end_lsn <= second.commit_lsn < second.end_lsn <= wal_position(publisher)
    assert second.rows_bytes == sum(map(len, second.rows.messages()))
    assert stream.nothing_comes()


def test_xids_are_the_servers(stream, publisher):
    stream.start()
    xid = publisher.query("INSERT INTO t VALUES (1) RETURNING pg_current_xact_id()::text::int")[0][0]
    assert [t.xid for t in stream.take(1)] == [xid]


def test_transaction_longer_than_a_turn(stream, publisher, monkeypatch):
    """And than the queue: it passes, whole."""
    monkeypatch.setattr(copy_both, "_MESSAGES_AT_ONCE", 100)
    monkeypatch.setattr(copy_both, "_BUFFER_BYTES", 10_000)
    stream.again(stream.start_lsn, max_bytes=1000)
    stream.start()
    publisher.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 5000) AS n")
    insert(publisher, 6000)
    long, short = stream.take(2)
    assert ids([long, short]) == [list(range(1, 5001)), [6000]]


def test_logical_messages(stream, publisher):
    """Transactional ones belong to their transaction; each of the others comes by itself, at its own LSN."""
    stream.options["messages"] = True
    stream.again(stream.start_lsn)
    stream.start()
    publisher.execute("SELECT pg_logical_emit_message(false, 'p', 'alone')")
    publisher.execute("BEGIN; INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(true, 'p', 'with'); COMMIT")
    alone, transaction = stream.take(2)
    found = [[e.content for _, e in t.events if isinstance(e, LogicalMessage)] for t in (alone, transaction)]
    assert found == [[b"alone"], [b"with"]]
    assert (alone.xid, len(alone.rows), alone.end_lsn == alone.commit_lsn) == (0, 0, True)
    stream.again(alone.end_lsn)
    stream.start()
    assert stream.take(1)[0].xid == transaction.xid


def test_values_in_text_are_in_a_fixed_form(stream, publisher):
    """Whatever the database's defaults are: the walsender writes them."""
    publisher.execute(
        f"ALTER DATABASE {publisher.name} SET datestyle = 'German'; ALTER TABLE t ADD d date, ADD f float8;"
        f"ALTER DATABASE {publisher.name} SET extra_float_digits = -5"
    )
    stream.again(stream.start_lsn)
    stream.start()
    publisher.execute("INSERT INTO t VALUES (1, 'x', '2026-03-01', 0.1::float8 + 0.2::float8)")
    (transaction,) = stream.take(1)
    assert inserted(transaction.rows.messages()[0]) == [b"1", b"x", b"2026-03-01", b"0.30000000000000004"]


def test_begins_where_it_is_told(stream, publisher):
    """Each life has what ends after its start: nothing is lost between two, and nothing comes twice."""
    stream.start()
    insert(publisher, 1, 2, 3)
    first, second, third = stream.take(3)
    for start_lsn, rest in [(first.end_lsn, [[2], [3], [4]]), (second.end_lsn, [[3], [4]]), (third.end_lsn, [[4]])]:
        stream.again(start_lsn)
        stream.start()
        if start_lsn == first.end_lsn:
            insert(publisher, 4)
        assert ids(stream.take(len(rest))) == rest


def test_handed_over_in_this_order(stream, publisher, monkeypatch):
    """First `after_receive`, then the queue, then `progress`: what it says was handed over can be taken."""
    seen: list[tuple[str, int, Lsn]] = []

    def note(step: str) -> None:
        seen.append((step, len(stream.queue._transactions), stream.progress.handed_over_lsn))

    def put(transaction: Transaction) -> None:
        TransactionQueue.put(stream.queue, transaction)
        note("put")

    stream.again(stream.start_lsn, after_receive=lambda _: note("received"))
    monkeypatch.setattr(stream.queue, "put", put)
    stream.start()
    insert(publisher, 1)
    wait_for(lambda: stream.progress.handed_over_lsn > stream.start_lsn)
    assert seen == [("received", 0, stream.start_lsn), ("put", 1, stream.start_lsn)]
    (transaction,) = stream.take(1)
    assert stream.progress.handed_over_lsn == transaction.end_lsn


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
    monkeypatch.setattr(walreceiver, "IDLE_STATUS_INTERVAL_S", 0.05)
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

"""Status updates confirm what is durable and nothing more, also while the queue is full."""

from __future__ import annotations

import threading
import time

import pytest
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.receive.owner import SILENT_S
from pgbridge.bridge.receive.stream import copy_both, walreceiver
from pgbridge.bridge.receive.stream.queue import BatchLimits
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.assembler import State
from tests.bridge.receive.streams import (
    PATIENCE_S,
    SETTLED_S,
    Stream,
    confirmed,
    ids,
    insert,
    wait_for,
    wait_until_confirmed,
    wal_position,
)


def test_confirms_what_is_durable_and_nothing_more(stream, publisher):
    """Received is not durable: the slot stays where it was until somebody says so, and then moves just there."""
    stream.start()
    insert(publisher, 1, 2, 3)
    transactions = stream.take(3)
    wait_for(lambda: stream.progress.received_lsn >= transactions[-1].end_lsn)
    time.sleep(SETTLED_S)
    assert confirmed(publisher, stream) == stream.start_lsn
    for transaction in transactions:
        stream.progress.durable(transaction.end_lsn)
        wait_until_confirmed(publisher, stream, transaction.end_lsn)
        time.sleep(0.1)
        assert confirmed(publisher, stream) == transaction.end_lsn


def test_reports_what_was_received(stream, publisher):
    """write_lsn in pg_stat_replication is what was received; flush_lsn and replay_lsn are what is durable."""
    stream.start()
    insert(publisher, 1)
    (transaction,) = stream.take(1)
    query = (
        "SELECT write_lsn::text, flush_lsn::text, replay_lsn::text, state FROM pg_stat_replication"
        " WHERE application_name = %s"
    )

    def positions() -> list[str]:
        return list(publisher.query(query, (f"{stream.slot_name}_receiver",))[0])

    wait_for(lambda: (positions()[0] or "0/0") != "0/0" and Lsn.parse(positions()[0]) >= transaction.end_lsn)
    assert positions()[1:] == [str(stream.start_lsn), str(stream.start_lsn), "streaming"]


def test_last_status_update_on_stopping(stream, publisher, monkeypatch):
    """A transaction that became durable just before a clean stop is confirmed, and not sent to the next receiver."""
    monkeypatch.setattr(stream.receiver, "_send_status_if_due", lambda: None)
    monkeypatch.setattr(stream.receiver, "_send_status_if_late", lambda: 3600.0)
    stream.start()
    insert(publisher, 1)
    (transaction,) = stream.take(1)
    stream.progress.durable(transaction.end_lsn)
    time.sleep(SETTLED_S)
    assert confirmed(publisher, stream) == stream.start_lsn
    stream.receiver.stop()
    wait_until_confirmed(publisher, stream, transaction.end_lsn)


@pytest.mark.parametrize("over", ["socket", "libpq"])
def test_last_status_update_while_the_server_sends(stream, publisher, monkeypatch, over):
    """Within a transaction it reads nothing, and it would not read the update of a connection that is closed on it."""
    if over == "libpq":
        monkeypatch.setattr(walreceiver, "copy_both", lambda connection, _: copy_both.LibpqCopyBoth(connection))
    monkeypatch.setattr(walreceiver, "_END_S", PATIENCE_S)
    stream.again(stream.start_lsn)
    receiver, send = stream.receiver, stream.receiver._send_status
    monkeypatch.setattr(receiver, "_send_status", lambda: send() if receiver._stop.is_set() else None)
    stream.start()
    insert(publisher, 1)
    (transaction,) = stream.take(1)
    publisher.execute("ALTER PUBLICATION p SET TABLE t WHERE (length(repeat(a, 1000000)) > 0)")  # slow to decode
    publisher.execute("INSERT INTO t SELECT n, 'x' FROM generate_series(2, 200) AS n")
    wait_for(lambda: receiver._assembler.state is State.IN_TRANSACTION)
    stream.progress.durable(transaction.end_lsn)
    assert confirmed(publisher, stream) == stream.start_lsn
    stream.again(transaction.end_lsn)
    assert confirmed(publisher, stream) == transaction.end_lsn


def test_keepalives_move_past_wal_with_nothing_published(stream, publisher):
    """Or an idle publication's slot would hold the WAL of all other tables for ever."""
    stream.start()
    insert(publisher, 1)
    (transaction,) = stream.take(1)
    publisher.execute("INSERT INTO u SELECT generate_series(1, 1000)")
    target = wal_position(publisher)
    time.sleep(SETTLED_S)
    assert stream.progress.quiet_lsn() is None  # the transaction before it is not durable yet
    stream.progress.durable(transaction.end_lsn)
    wait_for(lambda: (stream.progress.quiet_lsn() or 0) >= target)
    assert confirmed(publisher, stream) <= transaction.end_lsn
    quiet = stream.progress.quiet_lsn()
    stream.progress.durable(quiet)
    wait_until_confirmed(publisher, stream, quiet)
    assert confirmed(publisher, stream) == quiet


def test_asking_for_the_position(stream, publisher):
    """The server answers at once, where it would have slept; `take_until` needs that."""
    stream.start()
    publisher.execute("INSERT INTO u VALUES (1)")
    target = wal_position(publisher)

    def passed() -> bool:
        stream.receiver.request_keepalive()
        return bool(stream.progress.passed_lsn >= target)

    wait_for(passed)
    assert stream.queue.take_until(target, lambda: stream.progress.passed_lsn, BatchLimits(1, 1, 0), 0) == ([], True)


def test_full_queue_holds_the_server_and_not_the_stream(stream, publisher, monkeypatch):
    """Nobody takes for longer than wal_sender_timeout: status updates go on, memory does not grow, all arrives."""
    monkeypatch.undo()  # the status interval as it is in use
    monkeypatch.setattr(copy_both, "_BUFFER_BYTES", 100_000)  # what may come on top
    publisher.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 100) AS n")
    for _ in range(60):
        publisher.execute("UPDATE t SET a = a || 'y'")
    stream.conninfo = make_conninfo(stream.conninfo, options="-c wal_sender_timeout=1s")
    stream.again(stream.start_lsn, max_bytes=200_000)
    stream.start()
    time.sleep(2.5)
    assert stream.queue._bytes < 1_000_000
    transactions = stream.take(61)
    assert [len(t.rows) for t in transactions] == [100] * 61
    assert stream.receiver._thread.is_alive()
    insert(publisher, 1000)
    assert ids(stream.take(1)) == [[1000]]


@pytest.mark.parametrize("over", ["socket", "libpq"])
def test_a_receiver_that_is_late_has_its_status_updates_sent(publisher, tmp_path, monkeypatch, over):
    """As while it writes a spool file on a loaded machine; what became durable meanwhile is confirmed."""
    monkeypatch.setattr(walreceiver, "STATUS_INTERVAL_S", 0.2)
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t")
    stream = Stream(publisher.conninfo, f"{publisher.name}_slot", tmp_path / "spool")
    if over == "libpq":
        monkeypatch.setattr(walreceiver, "copy_both", lambda connection, _: copy_both.LibpqCopyBoth(connection))
    busy, free = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        busy.set()
        free.wait(PATIENCE_S)

    stream.again(stream.start_lsn, after_receive=hold)
    try:
        stream.start()
        insert(publisher, 1)
        assert busy.wait(PATIENCE_S)
        ((lsn,),) = publisher.query("SELECT pg_current_wal_flush_lsn()::text")
        stream.progress.durable(Lsn.parse(lsn))
        wait_until_confirmed(publisher, stream, Lsn.parse(lsn))
    finally:
        free.set()
        stream.receiver.stop()


def test_a_quiet_stream_tells_nothing_twice(stream, publisher, monkeypatch):
    """What is new is told as ever, and a standby that waits has its sign of life in time."""
    assert walreceiver.IDLE_STATUS_INTERVAL_S * 6 <= SILENT_S
    monkeypatch.setattr(walreceiver, "IDLE_STATUS_INTERVAL_S", 3600.0)
    sent: list[float] = []
    send = stream.receiver._copy_both.send

    def sending(data: bytes) -> None:
        sent.append(time.monotonic())
        send(data)

    monkeypatch.setattr(stream.receiver._copy_both, "send", sending)
    stream.start()
    insert(publisher, 1)
    assert ids(stream.take(1)) == [[1]]
    time.sleep(0.5)
    before = len(sent)
    time.sleep(1.0)
    assert len(sent) - before <= 5, "not 20 in a second: only for WAL that others write"
    ((lsn,),) = publisher.query("SELECT pg_current_wal_flush_lsn()::text")
    stream.progress.durable(Lsn.parse(lsn))
    stream.receiver.confirm()
    wait_until_confirmed(publisher, stream, Lsn.parse(lsn))

"""Transactions arrive whole and in order, and the server is told on time of what is durable, and of nothing more."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from bridge.demo.server import EmbeddedPostgres
from bridge.errors import PublisherError, StreamError
from bridge.receive import copy_both, walreceiver
from bridge.receive.queue import TransactionQueue
from protocol.lsn import Lsn
from protocol.messages import Delete, Insert, LogicalMessage, Relation, Truncate, Update
from protocol.pgoutput import decode
from protocol.walsender import HEADER_BYTES
from tests.bridge.receive.streams import (
    SETTLED_S,
    Stream,
    confirmed,
    ids,
    insert,
    inserted,
    wait_for,
    wait_until_confirmed,
    wal_position,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.transactions import Transaction


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Status updates every 50 ms: what comes of them is seen soon."""
    monkeypatch.setattr(walreceiver, "STATUS_INTERVAL_S", 0.05)


@pytest.fixture
def stream(publisher, tmp_path) -> Iterator[Stream]:
    """A stream of the publication p: the table t with a key; u is not published."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE TABLE u (n int); CREATE PUBLICATION p FOR TABLE t"
    )
    made = Stream(publisher.conninfo, f"{publisher.name}_slot", tmp_path / "spool")
    yield made
    made.receiver.stop()


# --- what arrives -----------------------------------------------------------------------------------------------------


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

    stream.again(stream.start_lsn, after_receive=lambda: note("received"))
    monkeypatch.setattr(stream.queue, "put", put)
    stream.start()
    insert(publisher, 1)
    wait_for(lambda: stream.progress.handed_over_lsn > stream.start_lsn)
    assert seen == [("received", 0, stream.start_lsn), ("put", 1, stream.start_lsn)]
    (transaction,) = stream.take(1)
    assert stream.progress.handed_over_lsn == transaction.end_lsn


# --- what the server is told ------------------------------------------------------------------------------------------


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
    """As write_lsn, for whoever watches pg_stat_replication; flush and replay are what is durable."""
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
    """What became durable just before a clean stop is confirmed: the next life is not sent it again."""
    monkeypatch.setattr(stream.receiver, "_report_if_due", lambda: None)
    stream.start()
    insert(publisher, 1)
    (transaction,) = stream.take(1)
    stream.progress.durable(transaction.end_lsn)
    time.sleep(SETTLED_S)
    assert confirmed(publisher, stream) == stream.start_lsn
    stream.receiver.stop()
    wait_until_confirmed(publisher, stream, transaction.end_lsn)


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
        stream.receiver.ask_for_position()
        return bool(stream.progress.passed_lsn >= target)

    wait_for(passed)
    assert stream.queue.take_until(target, lambda: stream.progress.passed_lsn, 0) == []


# --- backpressure -----------------------------------------------------------------------------------------------------


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


# --- ends -------------------------------------------------------------------------------------------------------------


def test_terminated_walsender(stream, publisher):
    """As a restart or a failover looks: what was received before is taken first, and it is worth trying again."""
    stream.start()
    insert(publisher, 1)
    wait_for(lambda: stream.progress.handed_over_lsn > stream.start_lsn)
    publisher.query(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s",
        (stream.slot_name,),
    )
    assert ids(stream.take(1)) == [[1]]
    error = stream.failure()
    assert isinstance(error, PublisherError)
    assert error.retry
    assert "terminating connection due to administrator command" in str(error)


@pytest.fixture
def private_server():
    """A server that a test may restart."""
    with EmbeddedPostgres(fsync=False) as server:
        yield server


def test_server_that_is_restarted(private_server, tmp_path):
    """The stream is lost; a new one goes on from what is durable, without loss and repetition.

    A server that shuts down cleanly sends all it has, and waits for it to be confirmed: an applier that has nothing
    left to apply must not hold it up, though the shutdown itself writes WAL.
    """
    conninfo = private_server.conninfo()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int); CREATE PUBLICATION p FOR TABLE t")
        stream = Stream(conninfo, "restarted", tmp_path / "spool")
        stream.start()
        connection.execute("INSERT INTO t VALUES (1)")
        (first,) = stream.take(1)
        stream.progress.durable(first.end_lsn)
    try:
        restarting = threading.Thread(target=private_server.restart, args=("fast",))
        restarting.start()
        while restarting.is_alive():
            stream.progress.durable(stream.progress.quiet_lsn() or first.end_lsn)
            restarting.join(0.02)
        error = stream.failure()
        assert isinstance(error, PublisherError)
        assert error.retry
        durable_lsn = stream.progress.durable_lsn
        for life, mode in enumerate(("immediate", None), 2):
            stream.again(durable_lsn)
            stream.start()
            with psycopg.connect(conninfo, autocommit=True) as connection:
                connection.execute(f"INSERT INTO t VALUES ({life})".encode())
            assert ids(stream.take(life - 1)) == [[n] for n in range(2, life + 1)]
            if mode is not None:
                private_server.restart(mode)
                error = stream.failure()
                assert isinstance(error, PublisherError)
                assert error.retry
    finally:
        stream.receiver.stop()


def test_slot_in_use(stream, publisher):
    """By a walsender whose client was killed a moment ago: tried again soon."""
    stream.start()
    second = Stream.__new__(Stream)
    second.__dict__.update(stream.__dict__)
    second.open(stream.start_lsn)
    try:
        with pytest.raises(PublisherError) as caught:
            second.receiver.start()
    finally:
        second.receiver.stop()
    assert str(caught.value).startswith(f'cannot stream from replication slot "{stream.slot_name}": ')
    assert "is active for PID" in str(caught.value)
    assert caught.value.retry
    insert(publisher, 1)
    assert ids(stream.take(1)) == [[1]]


def test_no_such_slot(stream, publisher):
    publisher.query("SELECT pg_drop_replication_slot(%s)", (stream.slot_name,))
    with pytest.raises(PublisherError, match="does not exist") as caught:
        stream.receiver.start()
    assert not caught.value.retry


def test_publication_that_is_dropped(stream, publisher):
    """The stream ends with the server's words; from 18 on the server only warns, and the warning is passed on."""
    notices: list[str] = []
    stream.again(stream.start_lsn, notice=notices.append)
    stream.start()
    insert(publisher, 1)
    stream.take(1)
    publisher.execute("DROP PUBLICATION p")
    insert(publisher, 2)
    if publisher.query("SHOW server_version_num")[0][0] >= "180000":
        wait_for(lambda: notices)
        assert notices[0].startswith('WARNING:  skipped loading publication "p"')
    else:
        error = stream.failure()
        assert isinstance(error, PublisherError)
        assert 'publication "p" does not exist' in str(error)
        assert "so that the tables are copied again" in error.hint
        assert not error.retry


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("XX000", StreamError),  # "could not map filenumber … to relation OID"
        ("22012", StreamError),  # a row filter that divides by zero
        ("42704", PublisherError),  # no such publication
        ("53100", PublisherError),
        ("55006", PublisherError),
        ("57P01", PublisherError),
        (None, PublisherError),
    ],
)
def test_errors_that_streaming_may_be_the_reason_of(sqlstate, kind):
    assert type(walreceiver._ended(copy_both.StreamEnded("why", sqlstate))) is kind


def test_any_other_error_reaches_the_queue(stream, publisher):
    """A receiver that died silently would look like an idle publication."""

    def fail() -> None:
        raise RuntimeError("a bug")

    stream.again(stream.start_lsn, after_receive=fail)
    stream.start()
    insert(publisher, 1)
    assert str(stream.failure()) == "a bug"


def test_stop_before_the_start_and_twice(stream):
    stream.receiver.stop()
    stream.receiver.stop()
    assert stream.receiver._connection.closed


def test_stop_frees_the_slot(stream, publisher):
    """And ends the thread, also while the queue is full."""
    stream.again(stream.start_lsn, max_bytes=1)
    stream.start()
    insert(publisher, 1, 2)
    wait_for(lambda: not stream.queue.wait_for_room(0))
    stream.receiver.stop()
    assert not stream.receiver._thread.is_alive()
    query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_for(lambda: publisher.query(query, (stream.slot_name,)) == [(False,)])

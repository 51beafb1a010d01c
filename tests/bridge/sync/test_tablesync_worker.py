"""Tables that come later: others go on, one that cannot be copied keeps back none, what is lost is made anew."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.slot import tablesync_slot
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import NeedsResync, PublisherError, SyncError, TakenOver, counts_in_copy
from pgbridge.bridge.sync import tablesync
from pgbridge.bridge.sync.tablesync_worker import TableSyncWorker
from pgbridge.bridge.track.progress import Progress
from pgbridge.protocol.lsn import Lsn
from tests.bridge.every_error import POLICY, name
from tests.bridge.subscribed import end, running, wait_until
from tests.oracle.memory_tables import MemoryTables

SETUP = """
    CREATE TABLE t (id int PRIMARY KEY, note text); CREATE TABLE later (id int PRIMARY KEY, note text);
    CREATE TABLE bad (id int PRIMARY KEY, d date);
    INSERT INTO later VALUES (1, 'copied'); INSERT INTO bad VALUES (1, 'infinity');
    CREATE PUBLICATION pub FOR TABLE t
"""


@pytest.mark.parametrize(("raised", "own", "retry"), POLICY, ids=name)
def test_errors_that_stay_count_and_the_subscriptions_own_disable(tmp_path, raised, own, retry):
    """As those of the subscription's worker: an object store that is away disables nothing; a missing GRANT counts."""
    spark: Any = MemoryTables()
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        for registered in ("s", sync_name("s")):
            catalog.register(registered, enabled=True)
        worker = TableSyncWorker(subscription("slot").model_copy(update={"disable_on_error": True}), spark, catalog)
        assert (worker._failed(raised) is None) is (own or isinstance(raised, TakenOver))
        row, error = catalog.subscription("s"), catalog.last_error(sync_name("s"))
        assert row is not None
        assert (row.sync_error_count, row.enabled) == (int(counts_in_copy(raised)), not own)
        assert error is not None
        assert re.search(
            r"\nThe copy is tried again at [-0-9]+ [:0-9]+ UTC; at once with: pgbridge refresh s", error.message
        )


def test_a_disable_meanwhile_is_not_a_failure(tmp_path):
    """So that ENABLE finds nothing that gave up."""
    spark: Any = MemoryTables()
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        for registered, enabled in (("s", False), (sync_name("s"), True)):
            catalog.register(registered, enabled=enabled)
        worker = TableSyncWorker(subscription("slot"), spark, catalog)
        worker._failed(SyncError("cut short"))
        assert not worker.gave_up


@pytest.fixture
def restored(monkeypatch):
    """Whatever a test installs is gone after it."""
    monkeypatch.setattr(faults, "_action", faults._action)


def subscription(name):
    return Subscription(name="s", connection="", publications=("p",), warehouse="lake", slot_name=name)


@pytest.mark.parametrize("name", ["shop", "a" * 63])
def test_the_slots_name(name):
    made = tablesync_slot(name)
    assert made.startswith("pgbridge_")
    assert made.endswith("_sync")
    assert name[:40] in made
    assert len(made) <= 63


def test_two_long_names_have_two_slots():
    assert tablesync_slot("a" * 60 + "b") != tablesync_slot("a" * 60 + "c")


def ids(bridge, table="t"):
    return sorted(row["id"] for row in bridge.rows(table))


def asked(bridge, *tables, copy_data=True):
    refresh.ask(bridge.catalog, bridge.subscription.name, tables or [None], copy_data=copy_data)


def coming(bridge):
    return {rel.name: rel.state for rel in bridge.catalog.rels(sync_name(bridge.subscription.name))}


@pytest.mark.usefixtures("restored")
def test_others_go_on_and_a_copy_is_cut_short(publisher, memory_pipeline):
    """While the copy hangs on a lock; a stop does not wait for it."""
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    bridge.catch_up()
    publisher.execute("ALTER PUBLICATION pub ADD TABLE later")
    asked(bridge)
    lock = publisher.connect()
    locked = threading.Event()

    def reached(point):
        if point == "slot_created":
            lock.execute("BEGIN; LOCK TABLE later")
            locked.set()

    faults.install(reached)
    worker = running(bridge)
    try:
        wait_until(locked.is_set)
        wait_until(lambda: coming(bridge) == {"later": "d"})
        publisher.execute("INSERT INTO t VALUES (1, 'while later is being copied')")
        wait_until(lambda: ids(bridge) == [1])
        assert coming(bridge) == {"later": "d"}
        wait_until(lambda: publisher.query(WAITING) == [(1,)])
    finally:
        started_s = time.monotonic()
        end(worker)
    assert time.monotonic() - started_s < 30
    assert worker.error is None
    assert bridge.catalog.subscription(bridge.subscription.name).sync_error_count == 0
    faults.install(lambda _: None)
    lock.close()
    bridge.catch_up()
    assert bridge.rows("later") == [{"id": 1, "note": "copied"}]


def test_a_table_that_is_locked_does_not_hold_up_the_others_of_a_start(publisher, memory_pipeline, monkeypatch):
    """After a while it is copied beside their stream; who has it locked is told."""
    publisher.execute(SETUP + "; ALTER PUBLICATION pub ADD TABLE later")
    bridge = memory_pipeline(workers__retry_max_s=0.2)
    monkeypatch.setattr(tablesync, "_LOCK_PATIENCE_S", 0.5)
    lock = publisher.connect()

    def reached(point):
        if point == "slot_created" and lock.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            lock.execute("BEGIN; LOCK TABLE later")

    faults.install(reached)
    worker = running(bridge)
    try:
        wait_until(lambda: coming(bridge) == {"later": "d"})
        publisher.execute("INSERT INTO t VALUES (1, 'while later is locked')")
        wait_until(lambda: ids(bridge) == [1])
        (problem,) = [row for row in bridge.catalog.rows("SELECT message FROM error") if "later" in row[0]]
        assert f"is locked by process {lock.info.backend_pid} (" in problem[0]
        faults.install(lambda _: None)
        publisher.query(problem[0].partition("on the server: ")[2].partition(";")[0])
        wait_until(lambda: coming(bridge) == {} and bridge.rows("later") != [])
    finally:
        end(worker)
        lock.close()


WAITING = "SELECT count(*)::int FROM pg_locks WHERE NOT granted AND relation = 'later'::regclass"


@pytest.mark.soak
def test_a_table_cannot_be_copied(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(workers__retry_max_s=0.2)
    bridge.catch_up()
    publisher.execute("ALTER PUBLICATION pub ADD TABLE bad, later; INSERT INTO later VALUES (2, 'streamed')")
    asked(bridge)
    with pytest.raises(SyncError, match=r'column "d": value \'infinity\''):
        bridge.catch_up()
    assert bridge.state("later") in {"s", "r"}
    assert ids(bridge, "later") == [1, 2]
    assert coming(bridge) == {"bad": "d"}
    assert bridge.catalog.subscription(bridge.subscription.name).sync_error_count >= 3
    publisher.execute("UPDATE bad SET d = '2024-02-29'; INSERT INTO t VALUES (1, 'a')")
    bridge.catch_up()
    assert [row["d"].isoformat() for row in bridge.rows("bad")] == ["2024-02-29"]
    assert ids(bridge) == [1]


@pytest.mark.soak
def test_a_lost_slot_and_a_table_that_is_gone(publisher, memory_pipeline, monkeypatch):
    """The tables are copied again under another slot; what is not published any more waits for a refresh."""
    publisher.execute(SETUP)
    bridge = memory_pipeline(workers__retry_max_s=0.2)
    bridge.catch_up()
    publisher.execute("ALTER PUBLICATION pub ADD TABLE later, bad; UPDATE bad SET d = NULL")
    asked(bridge)

    worker = bridge.worker()
    points = []

    def reached(point):
        points.append(point)
        if points.count("table_copied") == 2:
            worker.stop()

    with monkeypatch.context() as patch:
        patch.setattr(faults, "_action", reached)
        worker.thread.start()
        worker.thread.join(60)
    assert set(coming(bridge).values()) <= {"f", "s", "r"}
    publisher.query("SELECT pg_drop_replication_slot(%s)", (tablesync_slot(bridge.subscription.slot_name),))
    publisher.execute("ALTER PUBLICATION pub DROP TABLE bad; INSERT INTO later VALUES (2, 'b')")
    # the subscription's stream is past it, so that the slot is needed
    ((lsn,),) = publisher.query("SELECT pg_current_wal_flush_lsn()::text")
    bridge.catalog.advance_origin(bridge.subscription.name, Lsn.parse(lsn))
    with pytest.raises(PublisherError, match='table "public.bad" not found on publisher') as caught:
        bridge.catch_up()
    assert "pgbridge refresh" in caught.value.hint
    assert ids(bridge, "later") == [1, 2]
    asked(bridge)
    bridge.catch_up()
    assert coming(bridge) == {}
    assert [rel.name for rel in bridge.catalog.rels(bridge.subscription.name)] == ["later", "t"]
    assert publisher.query("SELECT count(*)::int FROM pg_replication_slots WHERE database = current_database()") == [
        (1,)
    ]


def test_a_table_whose_columns_changed_is_copied_afresh(publisher, memory_pipeline):
    """It waits while the stream goes on without it, and comes back with its columns as they are."""
    publisher.execute(SETUP + "; INSERT INTO t VALUES (1, '5')")
    bridge = memory_pipeline(workers__retry_max_s=0.2)
    bridge.catch_up()
    publisher.execute("ALTER TABLE t ALTER note TYPE int USING note::int; ALTER TABLE t ADD x numeric(5,2) DEFAULT 1.5")
    publisher.execute("INSERT INTO t VALUES (2, 6, 2)")
    with pytest.raises(NeedsResync):
        bridge.catch_up()
    asked(bridge, ("public", "t"))
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (3, 7, 3)")
    bridge.catch_up()
    assert sorted(tuple(map(str, row.values())) for row in bridge.rows("t")) == [
        ("1", "5", "1.50"),
        ("2", "6", "2.00"),
        ("3", "7", "3.00"),
    ]
    assert bridge.catalog.last_error(bridge.subscription.name) is None


@pytest.mark.parametrize(("stretch_s", "within_reach"), [(29, True), (31, False)])
def test_a_subscription_that_is_always_ahead_is_within_reach(tmp_path, monkeypatch, stretch_s, within_reach):
    """Who comes soon to where it was is near enough; who takes long goes on first."""
    ahead, now_s = [Lsn(100)], [0.0]
    catalog = Catalog(catalog_path(tmp_path))
    monkeypatch.setattr(catalog, "remote_lsn", lambda _: ahead[0])
    monkeypatch.setattr("pgbridge.bridge.sync.tablesync_worker.time.monotonic", lambda: now_s[0])
    worker = TableSyncWorker(subscription("shop"), None, catalog)  # type: ignore[arg-type]  # nothing is copied
    assert worker.should_continue(Progress(Lsn(50)))
    ahead[0], now_s[0] = Lsn(200), stretch_s
    assert worker.should_continue(Progress(Lsn(90)))
    assert not worker.within_reach.is_set()
    assert worker.should_continue(Progress(Lsn(110)))
    assert worker.within_reach.is_set() == within_reach
    assert worker.should_continue(Progress(Lsn(200)))
    assert worker.within_reach.is_set()
    catalog.close()

"""One subscription's worker: caught up, disabled, failed, tried again, stopped.

Where Delta has no part in it, the tables are in memory.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.recovery import manifest_table
from pgbridge.bridge.runtime.errors import ApplyError, ConfigError, PublisherError, TakenOver, counts_in_copy
from pgbridge.bridge.service.subscriber import SubscriptionWorker
from pgbridge.protocol.lsn import Lsn
from tests.bridge.every_error import POLICY, name
from tests.bridge.subscribed import SETUP, batches, confirmed, end, ids, running, wait_until
from tests.oracle.memory_tables import MemoryTables


def test_everything_flushed_before_is_applied_and_confirmed(publisher, pipeline):
    """By one commit for each batch, which carries the stamp."""
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, 'b'); UPDATE t SET note = 'c'")
    flushed = Lsn.parse(publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    bridge.catch_up()
    assert ids(bridge) == [1, 2]
    assert bridge.remote_lsn() >= flushed
    assert flushed <= confirmed(publisher, bridge.subscription.slot_name) <= bridge.remote_lsn()
    commits = batches(bridge)
    assert len(commits) >= 1
    assert commits[-1]["txn"]["version"] <= bridge.remote_lsn()
    assert commits[-1]["txn"]["appId"].startswith("pgbridge/")
    assert f"/{bridge.subscription.name}/" in commits[-1]["txn"]["appId"]


def test_an_idle_publication_does_not_hold_wal(publisher, memory_pipeline):
    """PEERS.md 2, 1-4: only tables that are not published are written; the slot moves on by keepalives."""
    publisher.execute(SETUP + "; CREATE TABLE other (a text)")
    bridge = memory_pipeline()
    worker = running(bridge)
    try:
        for _ in range(3):
            publisher.execute("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 100)")
            flushed = Lsn.parse(publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
            wait_until(lambda at=flushed: confirmed(publisher, bridge.subscription.slot_name) >= at, 20)
        assert bridge.remote_lsn() >= flushed
        assert bridge.rows("t") == []
    finally:
        end(worker)
    assert batches(bridge) == [], "nothing to commit, no commit"


def test_disable_stops_and_enable_is_needed(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    name = bridge.subscription.name
    worker = running(bridge)
    bridge.catalog.set_enabled(name, enabled=False)
    worker.thread.join(30)
    assert not worker.thread.is_alive()
    assert worker.error is None
    assert worker.disabled
    assert bridge.catalog.subscription(name).state == "disabled"
    publisher.execute("INSERT INTO t VALUES (1, 'a')")
    bridge.catch_up()  # a disabled subscription has nothing to catch up with
    assert bridge.rows("t") == []
    bridge.catalog.set_enabled(name, enabled=True)
    bridge.catch_up()
    assert ids(bridge) == [1]


@pytest.mark.parametrize("is_outdated", [False, True])
def test_an_outdated_state_does_not_tell_the_warehouse_that_it_is_disabled(
    publisher, memory_pipeline, monkeypatch, is_outdated
):
    """A recovery would take what was for what is: which tables wait, and what is prepared."""
    publisher.execute(SETUP)
    bridge = memory_pipeline(workers__retry_max_s=1)
    bridge.catch_up()
    name = bridge.subscription.name
    told = list[bool]()
    if is_outdated:
        slot_name = bridge.subscription.slot_name
        publisher.execute("INSERT INTO t VALUES (1, 'a')")
        publisher.query(f"SELECT pg_replication_slot_advance('{slot_name}', pg_current_wal_lsn())")
    monkeypatch.setattr(
        manifest_table, "record", lambda _, catalog, __: told.append(catalog.subscription(name).enabled)
    )
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()
    wait_until(lambda: is_outdated == (bridge.catalog.last_error(name) is not None) and bool(told) != is_outdated)
    bridge.catalog.set_enabled(name, enabled=False)
    worker.thread.join(30)
    assert not worker.thread.is_alive()
    assert (False in told) != is_outdated


def test_the_connection_is_lost(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(workers__retry_max_s=1)
    worker = running(bridge)
    try:
        publisher.execute("INSERT INTO t VALUES (1, 'a')")
        publisher.query(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
            (bridge.subscription.slot_name,),
        )
        publisher.execute("INSERT INTO t VALUES (2, 'b')")
        flushed = Lsn.parse(publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        wait_until(lambda: bridge.remote_lsn() >= flushed)
    finally:
        end(worker)
    assert ids(bridge) == [1, 2]
    assert bridge.catalog.subscription(bridge.subscription.name).apply_error_count == 0


def failing(bridge):
    """Let the target refuse ids of 100 and more."""
    bridge.spark.checks[bridge.path("t")] = lambda row: row["id"] < 100


def test_an_apply_error_is_recorded_with_its_finish_lsn_until_a_later_batch(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(workers__retry_max_s=0.1)
    bridge.catch_up()
    failing(bridge)
    before = bridge.remote_lsn()
    publisher.execute("INSERT INTO t VALUES (100, 'too large')")
    with pytest.raises(ApplyError, match='relation "public.t" in transaction'):
        bridge.catch_up()
    name = bridge.subscription.name
    error = bridge.catalog.last_error(name)
    assert error.relation == "public.t"
    assert f"finished at {error.finish_lsn}" in error.message
    assert bridge.catalog.subscription(name).apply_error_count >= 1
    assert before <= error.finish_lsn
    assert bridge.remote_lsn() <= error.finish_lsn
    assert confirmed(publisher, bridge.subscription.slot_name) <= error.finish_lsn
    bridge.spark.checks.clear()
    bridge.catch_up()
    assert ids(bridge) == [100]
    assert bridge.catalog.last_error(name) is None


def test_disable_on_error(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(disable_on_error=True)
    bridge.catch_up()
    failing(bridge)
    publisher.execute("INSERT INTO t VALUES (100, 'too large')")
    with pytest.raises(ApplyError):
        bridge.catch_up()
    row = bridge.catalog.subscription(bridge.subscription.name)
    assert not row.enabled
    assert row.state == "disabled"
    assert row.apply_error_count == 1


@pytest.mark.parametrize("copying", [False, True], ids=["applying", "copying"])
@pytest.mark.parametrize(("raised", "own", "retry"), POLICY, ids=name)
def test_only_the_subscriptions_own_errors_count_and_disable(tmp_path, raised, own, retry, copying):
    """Others are tried again, except those of the configuration, and of a subscription that goes on elsewhere."""
    spark: Any = MemoryTables()
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        subscription = Subscription(
            name="sub", connection="", publications=("pub",), warehouse="/lake", disable_on_error=True
        )
        worker = SubscriptionWorker(subscription, spark, catalog)
        worker._copying = copying
        assert (worker._failed(raised) is None) is (own or isinstance(raised, (ConfigError, TakenOver)))
        error, row = catalog.last_error("sub"), catalog.subscription("sub")
        assert error is not None
        assert row is not None
        assert error.message == str(raised)
        counts = (row.apply_error_count, row.sync_error_count)
        assert counts == (
            (0, int(counts_in_copy(raised))) if copying else (int(own and isinstance(raised, ApplyError)), 0)
        )
        assert row.enabled is not own


def test_a_missing_publication_fails_at_once_with_what_to_run(publisher, memory_pipeline, monkeypatch):
    """Of a server whose walsender would not go on without it."""
    monkeypatch.setattr("pgbridge.bridge.receive.publisher._MISSING_VERSION", 990000)
    bridge = memory_pipeline()
    started = time.monotonic()
    with pytest.raises(PublisherError, match='publication "pub" does not exist') as caught:
        bridge.catch_up()
    assert "CREATE PUBLICATION" in caught.value.hint
    assert time.monotonic() - started < 10
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]


def test_a_connection_string_that_cannot_be_read_ends_it(publisher, memory_pipeline):
    bridge = memory_pipeline()
    bridge.subscription = bridge.subscription.model_copy(update={"connection": "host=localhost nonsense"})
    with pytest.raises(ConfigError, match="not a libpq connection string"):
        bridge.catch_up()


def stopped_in_time(worker, within_s=10):
    """Stop a worker as the daemon does: again and again, for what it has begun since."""
    end_s = time.monotonic() + within_s
    while worker.thread.is_alive():
        assert time.monotonic() < end_s, "it goes on"
        worker.stop()
        worker.thread.join(0.5)


def test_stopped_while_the_slot_waits(publisher, memory_pipeline):
    """The server makes a slot once all open transactions have ended; a half-made one must not be left there."""
    publisher.execute(SETUP + "; INSERT INTO t VALUES (1, 'a')")
    bridge = memory_pipeline()
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    with publisher.connect() as connection:
        connection.execute("BEGIN; SELECT pg_current_xact_id()")
        worker = bridge.worker(until_caught_up=False)
        worker.thread.start()
        wait_until(lambda: publisher.query(slots) == [(1,)])
        for _ in range(3):  # that may take hours: the daemon must not be taken for dead
            beaten_s = worker.heartbeat.at_s
            wait_until(lambda before=beaten_s: worker.heartbeat.at_s > before)
        stopped_in_time(worker, 5)
        assert publisher.query(slots) == [(0,)]
        connection.execute("ROLLBACK")
    assert worker.error is None
    assert bridge.catalog.last_error(bridge.subscription.name) is None
    bridge.catch_up()
    assert ids(bridge) == [1]


@pytest.mark.parametrize(
    "on_executors", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["here", "on executors"]
)
def test_stopped_during_a_copy(publisher, pipeline, monkeypatch, on_executors):
    """It is cut short, which is no error; the next start goes on."""
    if on_executors:
        monkeypatch.setattr("pgbridge.bridge.spark.driver.Local.copied_bytes", -1)
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t SELECT g, 'x' FROM generate_series(1, 5000) g;"
        "CREATE PUBLICATION pub FOR TABLE t WHERE (length(repeat(note, 10000000)) > 0)"  # some milliseconds a row
    )
    bridge = pipeline(workers__max_sync_workers=1)
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()
    copying = "SELECT count(*) FROM pg_stat_progress_copy WHERE datname = current_database()"
    wait_until(lambda: publisher.query(copying) == [(1,)])
    stopped_in_time(worker)
    assert bridge.state("t") == "d"
    assert worker.error is None
    assert bridge.catalog.last_error(bridge.subscription.name) is None
    publisher.execute("ALTER PUBLICATION pub SET TABLE t")
    bridge.catch_up()
    assert ids(bridge) == list(range(1, 5001))

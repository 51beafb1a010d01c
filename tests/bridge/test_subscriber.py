"""One subscription's life: caught up, disabled, failed, tried again; and the traps that peers fell into."""

from __future__ import annotations

import resource
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.config import Subscription
from bridge.errors import ApplyError, ConfigError, PublisherError, TargetBusy
from bridge.sync.copy_limit import CopyLimit
from bridge.track import database
from bridge.track.catalog import Catalog, catalog_path
from protocol.lsn import Lsn

SETUP = "CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION pub FOR TABLE t"


def ids(bridge):
    return sorted(row["id"] for row in bridge.rows("t"))


def batches(bridge):
    """The commits that batches made; a copy's has an application id of its own."""
    return [
        commit for commit in bridge.commits("t") if not commit.get("txn", {"appId": "/copy"})["appId"].endswith("/copy")
    ]


def confirmed(publisher, slot_name):
    return Lsn.parse(
        publisher.query(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (slot_name,)
        )[0][0]
    )


def running(bridge):
    """A worker that runs until it is stopped; waits until it streams."""
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()
    name = bridge.subscription.name
    wait_until(lambda: bridge.catalog.subscription(name).state == "streaming")
    return worker


def end(worker):
    worker.stop()
    worker.thread.join(60)
    assert not worker.thread.is_alive()


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_everything_flushed_before_is_applied_and_confirmed(publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    flushed = Lsn.parse(publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    bridge.catch_up()
    assert ids(bridge) == [1, 2]
    assert bridge.remote_lsn() >= flushed
    assert flushed <= confirmed(publisher, bridge.subscription.slot_name) <= bridge.remote_lsn()


def test_one_commit_a_batch_carries_the_stamp(publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, 'b'); UPDATE t SET note = 'c'")
    bridge.catch_up()
    commits = batches(bridge)
    assert len(commits) >= 1
    assert commits[-1]["txn"]["version"] <= bridge.remote_lsn()
    assert commits[-1]["txn"]["appId"].startswith("pgbridge/")
    assert f"/{bridge.subscription.name}/" in commits[-1]["txn"]["appId"]


def test_an_idle_publication_does_not_hold_wal(publisher, pipeline):
    """PEERS.md 2, 1-4: only tables that are not published are written; the slot moves on by keepalives."""
    publisher.execute(SETUP + "; CREATE TABLE other (a text)")
    bridge = pipeline()
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


def test_disable_stops_and_enable_is_needed(publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
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


def test_a_lost_connection_is_made_again(publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline(retry_max_s=1)
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


def failing(spark, bridge):
    """Let the target refuse ids of 100 and more."""
    spark.sql(f"ALTER TABLE delta.`{bridge.path('t')}` ADD CONSTRAINT small CHECK (id < 100)")


def test_an_apply_error_is_recorded_with_its_finish_lsn_until_a_later_batch(spark, publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline(retry_max_s=0.1)
    bridge.catch_up()
    failing(spark, bridge)
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
    spark.sql(f"ALTER TABLE delta.`{bridge.path('t')}` DROP CONSTRAINT small")
    bridge.catch_up()
    assert ids(bridge) == [100]
    assert bridge.catalog.last_error(name) is None


def test_disable_on_error(spark, publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline(disable_on_error=True)
    bridge.catch_up()
    failing(spark, bridge)
    publisher.execute("INSERT INTO t VALUES (100, 'too large')")
    with pytest.raises(ApplyError):
        bridge.catch_up()
    row = bridge.catalog.subscription(bridge.subscription.name)
    assert not row.enabled
    assert row.state == "disabled"
    assert row.apply_error_count == 1


def test_a_table_that_others_hold_up_is_the_fault_of_no_transaction(tmp_path):
    """It is tried again, with no LSN to skip, no count, and without disable_on_error."""
    from bridge.subscriber import SubscriptionWorker

    catalog = Catalog(catalog_path(tmp_path))
    catalog.register("sub", enabled=True)
    subscription = Subscription(
        name="sub", connection="", publications=("pub",), warehouse="/lake", disable_on_error=True
    )
    spark: Any = None
    assert SubscriptionWorker(subscription, spark, catalog, until_caught_up=True)._failed(TargetBusy("busy"))
    error, row = catalog.last_error("sub"), catalog.subscription("sub")
    assert error is not None
    assert row is not None
    assert (error.message, error.finish_lsn) == ("busy", None)
    assert (row.enabled, row.apply_error_count, row.sync_error_count) == (True, 0, 0)
    catalog.close()


def test_a_missing_publication_fails_at_once_with_what_to_run(publisher, pipeline, monkeypatch):
    """Of a server whose walsender would not go on without it."""
    monkeypatch.setattr("bridge.receive.publisher._MISSING_VERSION", 990000)
    bridge = pipeline()
    started = time.monotonic()
    with pytest.raises(PublisherError, match='publication "pub" does not exist') as caught:
        bridge.catch_up()
    assert "CREATE PUBLICATION" in caught.value.hint
    assert time.monotonic() - started < 10
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]


def test_a_connection_string_that_cannot_be_read_ends_it(publisher, pipeline):
    bridge = pipeline()
    bridge.subscription = bridge.subscription.model_copy(update={"connection": "host=localhost nonsense"})
    with pytest.raises(ConfigError, match="not a libpq connection string"):
        bridge.catch_up()


def test_origin_none_leaves_out_what_came_from_elsewhere(publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline(origin="none")
    bridge.catch_up()
    publisher.query("SELECT pg_replication_origin_create('elsewhere_' || current_database())")
    try:
        with publisher.connect() as connection:
            connection.execute("SELECT pg_replication_origin_session_setup('elsewhere_' || current_database())")
            connection.execute("INSERT INTO t VALUES (1, 'from elsewhere')")
        publisher.execute("INSERT INTO t VALUES (2, 'from here')")
        bridge.catch_up()
        assert ids(bridge) == [2]
    finally:
        publisher.query("SELECT pg_replication_origin_drop('elsewhere_' || current_database())")


def test_values_that_have_no_binary_reader_make_the_stream_textual(publisher, pipeline):
    publisher.execute(
        "CREATE TYPE pair AS (a int, b text); CREATE TABLE t (id int PRIMARY KEY, p pair, at point, m money);"
        "INSERT INTO t VALUES (1, '(1,x)', '(1,2)', 5); CREATE PUBLICATION pub FOR TABLE t"
    )
    bridge = pipeline(binary=True)
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (2, '(2,\"y z\")', '(3,4.5)', -1.5)")
    bridge.catch_up()
    texts = publisher.query("SELECT id, p::text, at::text, m::text FROM t ORDER BY id")
    assert sorted(tuple(row.values()) for row in bridge.rows("t")) == texts


def test_large_values_that_did_not_change_stay(publisher, pipeline):
    """Unchanged TOAST: kept by updates, by key changes, and from earlier changes of the batch."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, large text, n int); ALTER TABLE t ALTER large SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT g, repeat(g::text, 3000), 0 FROM generate_series(1, 4) g;"
        "CREATE PUBLICATION pub FOR TABLE t"
    )
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute("UPDATE t SET n = 1 WHERE id = 1")
    publisher.execute("UPDATE t SET id = 20, n = 2 WHERE id = 2")
    publisher.execute("INSERT INTO t VALUES (2, repeat('new', 2000), 3), (5, repeat('five', 2000), 0)")
    publisher.execute("UPDATE t SET n = 4 WHERE id IN (2, 5)")
    publisher.execute("UPDATE t SET id = 50 WHERE id = 5")
    bridge.catch_up()
    expected = publisher.query("SELECT id, large, n FROM t ORDER BY id")
    assert sorted(tuple(row.values()) for row in bridge.rows("t")) == expected


def test_truncate_in_the_middle(publisher, pipeline):
    publisher.execute(SETUP + "; INSERT INTO t VALUES (1, 'copied')")
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute(
        "BEGIN; INSERT INTO t VALUES (2, 'before'); TRUNCATE t; INSERT INTO t VALUES (1, 'after'); COMMIT"
    )
    bridge.catch_up()
    assert [(row["id"], row["note"]) for row in bridge.rows("t")] == [(1, "after")]


def test_a_deferrable_key_is_no_key(publisher, pipeline):
    """Within a transaction two rows may have the same value of it: going by it would mix rows up."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, note text, at int UNIQUE NOT NULL);"
        "ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2);"
        "CREATE PUBLICATION pub FOR TABLE t"
    )
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute("UPDATE t SET id = 3 - id")
    bridge.catch_up()
    assert sorted((row["id"], row["note"]) for row in bridge.rows("t")) == [(1, "two"), (2, "one")]


def test_keys_that_trade_places(publisher, pipeline):
    publisher.execute(SETUP + "; INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute(
        "BEGIN; UPDATE t SET id = 0 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; "
        "UPDATE t SET id = 2 WHERE id = 0; COMMIT"
    )
    bridge.catch_up()
    assert sorted((row["id"], row["note"]) for row in bridge.rows("t")) == [(1, "two"), (2, "one")]


BROKEN_OFF = """
BEGIN;
INSERT INTO t SELECT n, 'a' FROM generate_series(1, 3) AS n;
CREATE TABLE made (id int PRIMARY KEY, a text);
SAVEPOINT s;
ALTER TABLE made ADD c int DEFAULT 1;
ROLLBACK TO s;
INSERT INTO made SELECT n, 'x' FROM generate_series(1, 3) AS n;
ALTER TABLE made ALTER id TYPE bigint;
INSERT INTO t SELECT n, 'b' FROM generate_series(4, 6) AS n;
COMMIT
"""
"""What a walsender that streams it ends with "could not map filenumber … to relation OID" (seen with 18.6)."""


def test_a_transaction_that_the_server_cannot_stream(publisher, pipeline):
    """It breaks the stream off; the next one begins further on, or without streaming, and the transaction is whole."""
    publisher.stream_everything()
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION pub FOR ALL TABLES")
    bridge = pipeline(streaming="on", retry_max_s=1)
    bridge.catch_up()
    publisher.execute(BROKEN_OFF)
    publisher.execute("INSERT INTO t VALUES (7, 'after')")
    with capture_logs() as events:
        bridge.catch_up()
    # a later minor release may stream it
    failed = [event["error"] for event in events if event["event"] == "subscription failed"]
    assert all("could not map filenumber" in error for error in failed)
    assert ids(bridge) == [1, 2, 3, 4, 5, 6, 7]


def stopped_in_time(worker, within_s=10):
    """Stop a worker as the daemon does: again and again, for what it has begun since."""
    end_s = time.monotonic() + within_s
    while worker.thread.is_alive():
        assert time.monotonic() < end_s, "it goes on"
        worker.stop()
        worker.thread.join(0.5)


def test_stopped_while_the_slot_waits(publisher, pipeline):
    """The server makes a slot once all open transactions have ended; a half-made one must not be left there."""
    publisher.execute(SETUP + "; INSERT INTO t VALUES (1, 'a')")
    bridge = pipeline()
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    with publisher.connect() as connection:
        connection.execute("BEGIN; SELECT pg_current_xact_id()")
        worker = bridge.worker(until_caught_up=False)
        worker.thread.start()
        wait_until(lambda: publisher.query(slots) == [(1,)])
        stopped_in_time(worker, 5)
        assert publisher.query(slots) == [(0,)]
        connection.execute("ROLLBACK")
    assert worker.error is None
    assert bridge.catalog.last_error(bridge.subscription.name) is None
    bridge.catch_up()
    assert ids(bridge) == [1]


def test_stopped_during_a_copy(publisher, pipeline):
    """It is cut short, which is no error, and starts again at the next start."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t SELECT g, 'x' FROM generate_series(1, 5000) g;"
        "CREATE PUBLICATION pub FOR TABLE t WHERE (length(repeat(note, 10000000)) > 0)"  # some milliseconds a row
    )
    bridge = pipeline(max_sync_workers=1)
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


@contextmanager
def full(bridge):
    """The catalog's file may not grow, and whoever writes wants pages of it: SQLITE_FULL, as on a full disk."""
    db = bridge.catalog._database.connection
    events = ("INSERT ON error", "UPDATE ON subscription", "INSERT ON batch")
    with bridge.catalog._lock:
        db.execute("CREATE TABLE filler (content BLOB)")
        for number, event in enumerate(events):
            filling = "INSERT INTO filler VALUES (zeroblob(1000000))"
            db.execute(f"CREATE TRIGGER full_{number} BEFORE {event} BEGIN {filling}; END")
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")
    yield
    with bridge.catalog._lock:
        for number in range(len(events)):
            db.execute(f"DROP TRIGGER full_{number}")
        db.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def locked(bridge):
    """Another process holds the catalog's write lock, for longer than the busy timeout."""
    path = catalog_path(bridge.catalog.state_dir)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("COMMIT")


@pytest.mark.parametrize("unusable", [full, locked])
def test_a_catalog_that_cannot_be_written(publisher, pipeline, unusable, monkeypatch):
    """The worker goes on trying, and goes on when it can; then status has the error until a batch is applied."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)
    publisher.execute(SETUP)
    bridge = pipeline(retry_max_s=0.5)
    bridge.catalog.close()
    bridge.catalog = Catalog(catalog_path(bridge.folder / "state"))
    worker = running(bridge)
    try:
        with unusable(bridge):
            publisher.execute("INSERT INTO t VALUES (1, 'a')")
            wait_until(lambda: worker._failures >= 2)
            assert worker.thread.is_alive()
            assert bridge.rows("t") == []
        wait_until(lambda: ids(bridge) == [1])
        wait_until(lambda: bridge.catalog.subscription(bridge.subscription.name).state == "streaming")
        assert bridge.catalog.last_error(bridge.subscription.name) is None, "a batch was applied since"
    finally:
        end(worker)
    assert worker.error is None
    assert len(batches(bridge)) == 1


@contextmanager
def no_room(process, limit_bytes):
    """Files of a process may not become larger: what it writes fails with EFBIG, as with ENOSPC on a full disk."""
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


def test_a_warehouse_without_room(spark, publisher, pipeline):
    """A batch whose files cannot be written is tried again, and applied once when there is room."""
    publisher.execute(SETUP + "; CREATE TABLE u (id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE u")
    bridge = pipeline(retry_max_s=0.5)
    worker = running(bridge)
    try:
        with no_room(spark.sparkContext._gateway.proc.pid, 100_000):
            publisher.execute(
                "BEGIN; INSERT INTO t SELECT g, md5(g::text) || sha512(g::text::bytea)::text "
                "FROM generate_series(1, 3000) g; INSERT INTO u VALUES (1); COMMIT"
            )
            wait_until(lambda: worker._failures >= 2)
            assert worker.thread.is_alive()
            assert bridge.catalog.last_error(bridge.subscription.name) is not None
            assert bridge.rows("t") == []
        wait_until(lambda: len(bridge.rows("t")) == 3000 and len(bridge.rows("u")) == 1)
        wait_until(lambda: bridge.catalog.last_error(bridge.subscription.name) is None)
    finally:
        end(worker)
    assert ids(bridge) == list(range(1, 3001))


def python_workers(jvm):
    """Processes of Python below the JVM: what is forked for its tasks, and what forks them."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"pyspark" in (path / "cmdline").read_bytes():
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    forking = [pid for pid, parent in parents.items() if parent == jvm]
    return len(forking), sum(parent in forking for parent in parents.values())


@pytest.mark.soak  # `test_copies_take_turns` shows who waits
def test_many_subscriptions(spark, publisher, pipeline):
    """Twenty at once on one server: the Python workers that they have are those of the copies that have a turn."""
    publisher.execute(SETUP + "; INSERT INTO t SELECT g, 'x' FROM generate_series(1, 1000) g")
    copy_limit, jvm, peak = CopyLimit(2), spark.sparkContext._gateway.proc.pid, 0
    bridges = [pipeline(slot_name=f"{publisher.name}_{number}") for number in range(20)]
    workers = [bridge.worker() for bridge in bridges]
    for worker in workers:
        worker._copy_limit = copy_limit
        worker.thread.start()
    while any(worker.thread.is_alive() for worker in workers):
        forking, working = python_workers(jvm)
        peak = max(peak, working)
        assert forking <= 4, "one for each of Spark's kinds of workers, whatever the number of sessions"
        time.sleep(0.2)
    assert [worker.error for worker in workers] == [None] * 20
    # for each of two copies one that looks the source up, one that makes it, one that plans; and two tasks on two cores
    assert 1 <= peak <= 2 * 3 + 2
    assert all(len(bridge.rows("t")) == 1000 for bridge in bridges)
    wait_until(lambda: python_workers(jvm)[1] == 0, 120)

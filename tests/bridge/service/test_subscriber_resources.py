"""Without room on a disk, with a catalog that is locked, and with many subscriptions a worker goes on."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from pgbridge.bridge.catalog import database
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.sync.copy_progress import CopyLimit
from tests.bridge.subscribed import SETUP, batches, end, ids, running, wait_until

SHARED = {"catalog looks", "commits", "completeness", "late status updates", "sequences", "verify"}
"""Threads of the process, in which all subscriptions have turns."""


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
def test_the_state_directory_cannot_be_written(publisher, memory_pipeline, unusable, monkeypatch):
    """The worker goes on trying, and goes on when it can; then status has the error until a batch is applied."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)
    publisher.execute(SETUP)
    bridge = memory_pipeline(workers__retry_max_s=0.5)
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
        # a batch was applied since: its rows are there before that is recorded
        wait_until(lambda: bridge.catalog.last_error(bridge.subscription.name) is None)
    finally:
        end(worker)
    assert worker.error is None
    assert len(batches(bridge)) == 1


def test_a_worker_that_waits_has_three_threads(publisher, memory_pipeline):
    """Itself, its receiver, and what reads its socket: of hundreds most wait. The others are there once for all."""
    publisher.execute(SETUP)
    bridge, before = memory_pipeline(), set(threading.enumerate())
    worker = running(bridge)

    def kinds():
        names = {thread.name for thread in set(threading.enumerate()) - before} - SHARED
        return sorted(name.removesuffix(f" {bridge.subscription.name}") for name in names)

    try:
        publisher.execute("INSERT INTO t VALUES (1, 'a')")
        wait_until(lambda: ids(bridge) == [1])
        wait_until(lambda: kinds() == ["read ahead", "subscription", "walreceiver"])
    finally:
        end(worker)


@contextmanager
def no_room(process, limit_bytes):
    """Files of a process may not become larger: what it writes fails with EFBIG, as with ENOSPC on a full disk."""
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


def test_the_warehouse_has_no_room(spark, publisher, pipeline):
    """A batch whose files cannot be written is tried again, and applied once when there is room."""
    publisher.execute(SETUP + "; CREATE TABLE u (id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE u")
    bridge = pipeline(workers__retry_max_s=0.5)
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

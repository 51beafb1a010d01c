"""Crashes and errors while tables come later: added and copied afresh in one refresh, with changes at every step.

Each life goes on from what the one before left, and meets its fault a step later; at the end all tables are as a
native subscriber has them. A crash is an exception that nothing handles; `test_kill_while_tables_come` has real ones.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest
from pyspark.errors import PySparkException

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.runtime import faults
from tests.fix_bridge import ROOT
from tests.oracle.delta import differences
from tests.oracle.load import Load
from tests.oracle.native import NativeSubscriber

TABLES = ("here", "afresh", "later", "last")
SCHEMA = "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, n int);" for name in TABLES)
CHANGES = """
    INSERT INTO {table} VALUES ({n}, 0); UPDATE {table} SET n = n + 1 WHERE id > {n} - 3;
    DELETE FROM {table} WHERE id = {n} - 5; UPDATE {table} SET id = -id WHERE id = {n} - 4;
"""
STEPS = (
    ("refresh_taken", 1),
    ("slot_created", 1),
    ("table_copied", 1),  # no table is copied: all begin anew
    ("table_copied", 2),  # one is, and goes on with the slot of its copy
    ("batch_begun", 1),
    ("table_committed", 2),
    ("batch_committed", 1),
    ("sync_caught_up", 1),
    ("handed_over", 1),
    ("sync_slot_dropped", 1),
)
"""In the order of a table's way. Only the tables that come change, so the batches are those of their own stream."""

LAST_SLOT = "batch_committed"
"""After it no slot is made, which would wait for prepared transactions."""

KILLS = ("refresh_taken", "table_copied:2", "table_committed", "sync_caught_up", "handed_over", "sync_slot_dropped")


class Crash(BaseException):
    """The end of the process, but for its threads."""


class Lives:
    """A bridge that runs into faults, and what is written meanwhile."""

    def __init__(self, publisher, bridge):
        self.publisher, self.bridge = publisher, bridge
        self.lock = threading.Lock()
        self.number = 1000

    def write(self) -> None:
        """A transaction over the tables that come."""
        with self.publisher.connect() as connection, connection.transaction():
            self.change(connection)

    def change(self, connection) -> None:
        """What is in it."""
        self.number += 1
        for table in TABLES[1:]:
            connection.execute(CHANGES.format(table=table, n=self.number))

    def prepare(self) -> None:
        """A transaction over all tables that is prepared while some come, and committed when they are there."""
        changes = (f"INSERT INTO {table} VALUES (5000, 1); DELETE FROM {table} WHERE id = 50;" for table in TABLES)
        with self.publisher.connect() as connection:
            connection.execute(f"BEGIN; {''.join(changes)} PREPARE TRANSACTION '{self.publisher.name}'")

    def live(self, point: str = "", number: int = 0, error: type[BaseException] = Crash) -> Counter[str]:
        """Until caught up or in trouble, with a fault at the point's n-th passing; how often each was passed."""
        passed: Counter[str] = Counter()
        crashed = threading.Event()
        worker = self.bridge.worker()

        def reached(here: str) -> None:
            if crashed.is_set():
                raise Crash
            with self.lock:
                passed[here] += 1
                if here in {"slot_created", "table_copied", "sync_caught_up", "handed_over"}:
                    self.write()
                now = (here, passed[here]) == (point, number)
            if now and error is Crash:
                crashed.set()
                worker.stop()
                raise Crash
            if now:
                raise error("a fault")

        catalog = self.bridge.catalog
        transaction = catalog._transaction

        def until_crashed():
            if crashed.is_set():
                raise Crash  # whatever other threads still do, nobody records it
            return transaction()

        catalog._transaction = until_crashed
        faults.install(reached)
        try:
            worker.thread.start()
            worker.thread.join(180)
            assert not worker.thread.is_alive()
        finally:
            faults.install(lambda _: None)
            catalog._transaction = transaction
        if not crashed.is_set() and worker.error is not None:
            raise worker.error
        return passed


def prepared(publisher, make):
    """A bridge and a native subscriber with two tables, of which one is spoilt, and two more that are published."""
    publisher.execute(SCHEMA)
    for table in TABLES:
        publisher.execute(f"INSERT INTO {table} SELECT g, 0 FROM generate_series(1, 100) g")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE here, afresh")
    native = NativeSubscriber(publisher.conninfo, ["pub"])
    native.wait_caught_up()
    bridge = make()
    publisher.execute("ALTER PUBLICATION pub ADD TABLE later, last")
    native.execute(f"ALTER SUBSCRIPTION {native.name} REFRESH PUBLICATION")
    return native, bridge


def slots(publisher):
    (row,) = publisher.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    return row[0]


@pytest.mark.soak  # `tests.bridge.sync.test_tablesync_worker` has what may befall tables that come later, one by one
def test_a_crash_at_every_step(spark, publisher, pipeline, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # crashes of threads are meant

    def make():
        bridge = pipeline(batch__max_rows=20, two_phase=True)
        bridge.catch_up()
        return bridge

    native, bridge = prepared(publisher, make)
    with native:
        name = bridge.subscription.name
        spark.sql(f"DELETE FROM delta.`{bridge.path('afresh')}` WHERE id % 2 = 0").collect()
        refresh.ask(bridge.catalog, name, [None, ("public", "afresh")], copy_data=True)
        lives = Lives(publisher, bridge)
        for point, number in STEPS:
            lives.write()
            passed = lives.live(point, number)
            assert passed[point] >= number, (point, number, passed)
            if point == LAST_SLOT:
                lives.prepare()
        lives.live()
        publisher.execute(f"COMMIT PREPARED '{publisher.name}'")
        assert bridge.catalog.subscription(sync_name(name)) is None
        assert sorted(rel.name for rel in bridge.catalog.rels(name)) == sorted(TABLES)
        lives.live()
        native.wait_caught_up()
        for table in TABLES:
            assert differences(spark, bridge.path(table), native, table) == []
        assert slots(publisher) == 2, "the bridge's and the native subscriber's"


@pytest.mark.soak
def test_an_error_at_every_step(spark, publisher, pipeline):
    """After it the same life goes on to the end, so that each step has a refresh of its own."""

    def make():
        bridge = pipeline(batch__max_rows=20)
        bridge.catch_up()
        return bridge

    native, bridge = prepared(publisher, make)
    with native:
        name = bridge.subscription.name
        lives = Lives(publisher, bridge)
        wanted: list[tuple[str, str] | None] = [None, ("public", "afresh")]
        for point, number in STEPS:
            spark.sql(f"DELETE FROM delta.`{bridge.path('afresh')}` WHERE id % 2 = 0").collect()
            refresh.ask(bridge.catalog, name, wanted, copy_data=True)
            lives.write()
            passed = lives.live(point, number, PySparkException)
            assert passed[point] >= number, (point, number, passed)
            assert bridge.catalog.subscription(sync_name(name)) is None, point
            wanted = [("public", table) for table in TABLES[1:]]
        lives.live()
        native.wait_caught_up()
        for table in TABLES:
            assert differences(spark, bridge.path(table), native, table) == []
        assert slots(publisher) == 2, "the bridge's and the native subscriber's"


@pytest.mark.soak
def test_kill_while_tables_come(spark, publisher, daemon):
    """Kill -9, each time a step later."""

    def make():
        bridge = daemon(batch__max_age_s=0.0)
        assert bridge.run_until_caught_up() == 0, bridge.log_tail()
        return bridge

    native, bridge = prepared(publisher, make)
    with native:
        spark.sql(f"DELETE FROM delta.`{bridge.path('afresh')}` WHERE id % 2 = 0").collect()
        for options in ([], ["--resync", "afresh"]):
            command = [
                sys.executable,
                "-m",
                "bridge",
                "refresh",
                bridge.name,
                *options,
                "--config",
                str(bridge.config),
            ]
            subprocess.run(command, cwd=ROOT, check=True)
        lives = Lives(publisher, bridge)
        # all the time: at each step there is something to catch up with
        with Load(publisher, lambda connection, _: lives.change(connection), pause_s=0.3):
            for point in KILLS:
                code = bridge.run_until_caught_up(fault=point)
                assert code == -signal.SIGKILL, f"{point} was not reached (exit code {code}):\n{bridge.log_tail()}"
        assert bridge.run_until_caught_up() == 0, bridge.log_tail()
        native.wait_caught_up()
        for table in TABLES:
            assert differences(spark, bridge.path(table), native, table) == []
        assert slots(publisher) == 2, "the bridge's and the native subscriber's"

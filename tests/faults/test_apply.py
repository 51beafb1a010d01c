"""Crashes, errors and lost answers at every step of a batch, of its undo, of its division, and of skipping.

The steps are not chosen: the tests assert that they have gone through all points. The tables are in memory; with `soak`
they are Delta's, too, and each kind of fault comes at the first passing of each step, and at every one, as counted in a
life without. A crash is an exception that nothing handles; `test_kill` has real ones.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError, OutcomeUnknown
from tests.oracle.delta import differences
from tests.oracle.memory_tables import MemoryTables
from tests.oracle.native import NativeSubscriber

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = ("one", "two")
SCHEMA = "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, n int);" for name in TABLES)
GOOD = "BEGIN; INSERT INTO one VALUES ({0}, 1); INSERT INTO two VALUES ({0}, 2); UPDATE one SET n = n + 1; COMMIT"
BAD = "BEGIN; INSERT INTO one VALUES ({0}, 1); UPDATE one SET n = -1; INSERT INTO two VALUES ({0}, 100); COMMIT"

OF_A_BATCH = ("batch_begun", "table_begun", "table_committed", "batch_committed", "before_confirm")


class Crash(BaseException):
    """The end of the process, but for its threads."""


FAULTS: dict[str, Callable[[], BaseException]] = {
    "crash": Crash,
    "error": lambda: PySparkException("a fault"),
    "no answer": lambda: Py4JNetworkError("a fault"),
}


class Lives:
    """A bridge whose table `two` takes no n of 100 and more, one life after the other; its subscriber native beside."""

    def __init__(self, publisher, native, bridge):
        self.publisher, self.native, self.bridge = publisher, native, bridge
        self.name = bridge.subscription.name
        self.lock = threading.Lock()
        self.next_id = 1
        native.execute("ALTER TABLE two ADD CONSTRAINT small CHECK (n < 100)")
        if isinstance(bridge.spark, MemoryTables):
            bridge.spark.checks[bridge.path("two")] = lambda row: row["n"] < 100
        else:
            bridge.spark.sql(f"ALTER TABLE delta.`{bridge.path('two')}` ADD CONSTRAINT small CHECK (n < 100)").collect()

    def write(self, *transactions: str) -> None:
        """Transactions, each with an id of its own."""
        for statements in transactions:
            self.publisher.execute(statements.format(self.next_id))
            self.next_id += 1

    def live(self, point: str = "", number: int = 0, error: Callable[[], BaseException] = Crash) -> Counter[str]:
        """Until caught up or in trouble, with a fault at the point's n-th passing; how often each was passed."""
        passed: Counter[str] = Counter()

        def reached(here: str) -> None:
            with self.lock:
                passed[here] += 1
                now = (here, passed[here]) == (point, number)
            if now:
                raise error()

        faults.install(reached)
        worker = self.bridge.worker()
        try:
            worker.thread.start()
            worker.thread.join(120)
            assert not worker.thread.is_alive()
        finally:
            faults.install(lambda _: None)
        expected = (Crash, ApplyError, PySparkException, Py4JNetworkError)
        assert worker.error is None or isinstance(worker.error, expected)
        return passed

    def skip(self) -> None:
        """The transaction that the error names, on both sides."""
        error = self.bridge.catalog.last_error(self.name)
        assert error is not None
        assert error.finish_lsn is not None
        assert "in transaction" in error.message
        assert "CHECK" in error.message
        self.bridge.catalog.set_skip_lsn(self.name, error.finish_lsn)
        self.native.execute(f"ALTER SUBSCRIPTION {self.native.name} SKIP (lsn = '{error.finish_lsn}')")

    def end(self) -> Counter[str]:
        """Without faults: into the error, past it, and to the end."""
        passed = self.live()
        self.skip()
        passed += self.live()
        assert self.bridge.catalog.last_error(self.name) is None
        return passed

    def compare(self) -> None:
        self.native.wait_caught_up()
        for table in TABLES:
            assert differences(self.bridge.spark, self.bridge.path(table), self.native, table) == []


@pytest.fixture
def make_lives(publisher, monkeypatch):
    """Makes both, with their tables copied."""
    monkeypatch.setattr("pgbridge.bridge.service.subscriber._GIVE_UP_APPLYING_AFTER", 1)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # crashes of threads are meant
    publisher.execute(SCHEMA + "CREATE PUBLICATION pub FOR ALL TABLES")
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        native.wait_caught_up()

        def make(pipeline):
            bridge = pipeline()
            bridge.catch_up()
            return Lives(publisher, native, bridge)

        yield make


@pytest.fixture
def lives(memory_pipeline, make_lives):
    return make_lives(memory_pipeline)


@pytest.fixture
def delta_lives(pipeline, make_lives):
    return make_lives(pipeline)


def test_a_fault_at_every_step(lives):
    """Each life goes on from what the one before left, up to its own fault; at the end it is as if there were none."""
    a_fault_at_every_step(lives)


@pytest.mark.soak  # 90 s; `tests.bridge.apply` has Delta's own part, step by step
def test_a_fault_at_every_step_with_delta_tables(delta_lives):
    a_fault_at_every_step(delta_lives)


def a_fault_at_every_step(lives):
    covered: Counter[str] = Counter()
    lives.write(GOOD, BAD, GOOD)
    for point in ("batch_begun", "table_begun", "table_committed", *faults.UNDO_POINTS[:-1]):
        covered += lives.live(point, 1)
    lives.live()  # what comes first is applied, and the other transaction tried alone from now on
    for kind in ("error", "no answer"):
        lives.live("table_begun", 1, FAULTS[kind])
    lives.live()
    lives.skip()
    covered += lives.live("skipped_written", 1)
    covered += lives.live("before_confirm", 1)
    for point, kind in (("batch_committed", "crash"), ("table_committed", "error"), ("table_committed", "no answer")):
        lives.write(GOOD)
        covered += lives.live(point, 1, FAULTS[kind])
    lives.live()
    lives.compare()
    assert covered.keys() >= {*faults.UNDO_POINTS, *OF_A_BATCH}


@pytest.mark.soak
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("passings", [1, 1000], ids=["first", "every"])
def test_a_fault_at_passings_of_every_step(lives, passings, kind):
    """Of a life with a batch that is divided, and of one that skips; each kind of fault at each step."""
    lives.write(GOOD, GOOD, BAD, GOOD)
    counted = lives.end()
    assert counted.keys() >= {*faults.UNDO_POINTS, *OF_A_BATCH}
    for point, times in sorted(counted.items()):
        for number in range(1, min(times, passings) + 1):
            lives.write(GOOD, GOOD, BAD, GOOD)
            lives.live(point, number, FAULTS[kind])
            while (error := lives.bridge.catalog.last_error(lives.name)) is None or error.finish_lsn is None:
                lives.live()
            lives.end()
    lives.compare()


def test_without_spark_nothing_is_decided(lives):
    """What a commit whose answer never came has done is looked for in the next life."""
    lives.write(GOOD)
    worker = lives.bridge.worker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgbridge.bridge.apply.applier.apply_table", _gone)
        worker.thread.start()
        worker.thread.join(60)
    assert isinstance(worker.error, OutcomeUnknown)
    assert lives.bridge.catalog.batch(lives.name) is not None
    lives.live()
    lives.compare()


def _gone(*_: object, **__: object) -> None:
    raise ConnectionError("gone")

"""Crashes, errors and lost answers at every step of a batch, of its undo, of its division, and of skipping.

The steps are not chosen: one life without a fault counts how often each point is passed, and there is a fault at each
of those passings. A crash is an exception that nothing handles; `test_kill` has real ones.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from bridge import faults
from bridge.errors import ApplyError, OutcomeUnknown
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = ("one", "two", "three")
SCHEMA = "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, n int);" for name in TABLES)
GOOD = "BEGIN; INSERT INTO one VALUES ({0}, 1); INSERT INTO two VALUES ({0}, 2); UPDATE three SET n = n + 1; COMMIT"
BAD = (
    "BEGIN; INSERT INTO one VALUES ({0}, 1); UPDATE three SET n = -1; INSERT INTO two VALUES ({0}, 100);"
    " DELETE FROM one WHERE id = {0} - 3; COMMIT"
)


class Crash(BaseException):
    """The end of the process, but for its threads."""


FAULTS: dict[str, Callable[[], BaseException]] = {
    "crash": Crash,
    "error": lambda: PySparkException("a fault"),
    "no answer": lambda: Py4JNetworkError("a fault"),
}


class Lives:
    """A bridge whose table `two` takes no n of 100 and more, one life after the other; its subscriber native beside."""

    def __init__(self, spark, publisher, native, bridge):
        self.spark, self.publisher, self.native, self.bridge = spark, publisher, native, bridge
        self.name = bridge.subscription.name
        self.lock = threading.Lock()
        self.next_id = 1
        native.execute("ALTER TABLE two ADD CONSTRAINT small CHECK (n < 100)")
        spark.sql(f"ALTER TABLE delta.`{bridge.path('two')}` ADD CONSTRAINT small CHECK (n < 100)").collect()

    def write(self) -> None:
        """A transaction that cannot be applied among others."""
        for statements in (GOOD, GOOD, BAD, GOOD):
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
        assert worker.error is None or isinstance(worker.error, (ApplyError, PySparkException, Py4JNetworkError))
        return passed

    def end(self) -> Counter[str]:
        """Without faults: into the error, whose transaction is skipped on both sides, and to the end."""
        passed = self.live()
        error = self.bridge.catalog.last_error(self.name)
        assert error is not None
        assert error.finish_lsn is not None
        assert "in transaction" in error.message
        assert "CHECK" in error.message
        self.bridge.catalog.set_skip_lsn(self.name, error.finish_lsn)
        self.native.execute(f"ALTER SUBSCRIPTION {self.native.name} SKIP (lsn = '{error.finish_lsn}')")
        passed += self.live()
        assert self.bridge.catalog.last_error(self.name) is None
        return passed

    def compare(self) -> None:
        self.native.wait_caught_up()
        for table in TABLES:
            assert differences(self.spark, self.bridge.path(table), self.native, table) == []


@pytest.fixture
def lives(spark, publisher, pipeline, monkeypatch):
    """Both with their tables copied."""
    monkeypatch.setattr("bridge.subscriber._GIVE_UP_APPLYING_AFTER", 1)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # crashes of threads are meant
    publisher.execute(SCHEMA + "INSERT INTO three VALUES (1, 0); CREATE PUBLICATION pub FOR ALL TABLES")
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        native.wait_caught_up()
        native.execute(f"ALTER SUBSCRIPTION {native.name} SET (disable_on_error = false)")
        bridge = pipeline()
        bridge.catch_up()
        yield Lives(spark, publisher, native, bridge)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_fault_at_every_step(lives, every):
    """Each life goes on from what the one before left; at the end all is as if there had been no fault.

    Without `soak` only the first and the last passing of a point has its fault, each time another one.
    """
    lives.write()
    counted = lives.end()
    lives.compare()
    assert {*faults.UNDO_POINTS, "batch_begun", "table_begun", "table_committed", "batch_committed"} <= counted.keys()
    kinds = list(FAULTS)
    for place, (point, times) in enumerate(sorted(counted.items())):
        numbers = range(1, times + 1) if every else sorted({1, times})
        for number in numbers:
            for kind in kinds if every else [kinds[(place + number) % len(kinds)]]:
                lives.write()
                lives.live(point, number, FAULTS[kind])
                while (error := lives.bridge.catalog.last_error(lives.name)) is None or error.finish_lsn is None:
                    lives.live()
                lives.end()
    lives.compare()


def test_without_spark_nothing_is_decided(lives):
    """What a commit whose answer never came has done is looked for in the next life."""
    lives.write()
    worker = lives.bridge.worker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "bridge.apply.worker.apply_table", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("gone"))
        )
        worker.thread.start()
        worker.thread.join(60)
    assert isinstance(worker.error, OutcomeUnknown)
    assert lives.bridge.catalog.batch(lives.name) is not None
    lives.end()
    lives.compare()

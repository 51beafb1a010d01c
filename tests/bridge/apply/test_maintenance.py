"""Tables are maintained by their debt, when the lag allows it; a failure leaves them as they were."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from py4j.protocol import Py4JNetworkError

from pgbridge.bridge.apply.maintenance import FILE_BYTES, Debt, Maintenance, Policy
from pgbridge.bridge.catalog import maintenance as track
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.catalog.maintenance import MaintainedRow, OptimizeIntent
from pgbridge.bridge.runtime import log
from pgbridge.protocol.lsn import Lsn

PATH = "/lake/t1"


@dataclass
class FakeTables:
    """Records the calls; OPTIMIZE leaves one file of each partition."""

    debt: Debt = field(default_factory=lambda: Debt(7, 100, 1000, created=True))
    calls: list[str] = field(default_factory=list)
    partitions: int = 1
    failing: dict[str, Exception] = field(default_factory=dict)

    def fail(self, *names: str) -> None:
        self.failing = {name: OSError(f"{name} failed") for name in names}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise self.failing[name]

    def measure(self, _path: str) -> Debt:
        self._call("measure")
        return self.debt

    def optimize(self, _path: str) -> None:
        self._call("optimize")
        self.debt = replace(self.debt, version=self.debt.version + 1, files=self.partitions)

    def vacuum(self, _path: str, _retention_h: float) -> None:
        self._call("vacuum")

    def undo(self, _intent: OptimizeIntent) -> None:
        self._call("undo")

    def flush(self, _path: str, begin) -> None:
        begin()
        self._call("flush")

    def interrupt(self) -> None:
        self._call("interrupt")


@pytest.fixture
def tables():
    return FakeTables()


@pytest.fixture
def made(catalog, tables):
    """Makes what is tested; each stands for a process of its own."""
    catalog.put_rel("sub", RelRow("public", "t1", "r", Lsn(0x10), PATH))

    def make(tables_of="created", retention_h=0.0, *, now_s=1e9, stopping=False):
        policy = Policy(tables_of, retention_h)
        return Maintenance(catalog, "sub", tables, policy, log.get("sub"), lambda: stopping, lambda: now_s)

    return make


def ran(maintenance, behind_s=None):
    """Whether something was due, which is then done."""
    due = maintenance.due(behind_s)
    if due:
        maintenance.run_one(behind_s)
    return due


def test_few_commits_are_not_looked_at(catalog, tables, made):
    kept = made()
    kept.committed([PATH] * 7)
    assert not ran(kept)
    kept.committed([PATH])
    assert ran(kept)
    assert tables.calls == ["measure", "optimize", "flush", "measure"]
    assert track.rows(catalog, "sub") == {PATH: MaintainedRow(1e9, 1, optimized_s=1e9)}
    assert track.standing(catalog, "sub") is None
    kept.committed([PATH] * 31)
    assert not ran(kept)


def test_few_files_are_left_alone(tables, made):
    tables.debt = Debt(7, 5, 4 * FILE_BYTES, created=True)
    kept = made()
    kept.committed([PATH] * 8)
    assert ran(kept)
    assert tables.calls == ["measure"]
    kept.committed([PATH] * 30)  # it has one file too many already
    assert not ran(kept)
    kept.committed([PATH])
    assert ran(kept)


@pytest.mark.parametrize(
    ("behind_s", "files", "optimized"),
    [
        (None, 32, False),
        (None, 33, True),
        (1.0, 128, False),
        (10.0, 129, True),
        (60.0, 1024, False),
        (60.0, 1025, True),
    ],
)
def test_a_lag_delays_it_until_the_debt_is_great(tables, made, behind_s, files, optimized):
    tables.debt = Debt(7, files, 1000, created=True)
    kept = made()
    kept.committed([PATH] * 1000)
    assert ran(kept, behind_s)
    assert ("optimize" in tables.calls) is optimized


def test_it_never_runs_within_a_batch(catalog, tables, made):
    kept = made()
    kept.committed([PATH] * 8)
    catalog.begin_batch("sub", BatchIntent(Lsn(0), Lsn(100)))
    kept.run_one(None)
    assert tables.calls == []


def test_what_it_could_not_do_is_still_to_do(catalog, tables, made):
    """A batch begins between the look at a table and its OPTIMIZE."""
    kept = made()
    kept.committed([PATH] * 8)
    tables.debt = Debt(7, 100, 1000, created=True)
    measure = tables.measure

    def begin(path):
        catalog.begin_batch("sub", BatchIntent(Lsn(0), Lsn(100)))
        return measure(path)

    tables.measure = begin
    assert ran(kept)
    assert "optimize" not in tables.calls
    tables.measure = measure
    catalog.finish_batch("sub", Lsn(100), [], [])
    kept.committed([PATH] * 1000)
    assert ran(kept)
    assert "optimize" in tables.calls


def test_tables_that_are_not_the_subscriptions_any_more_are_forgotten(tables, made):
    kept = made()
    kept.committed(["/lake/removed"] * 8)
    assert ran(kept)
    assert not ran(kept)
    assert tables.calls == []


@pytest.mark.parametrize(("of", "maintained"), [("none", False), ("created", False), ("all", True)])
def test_tables_of_others_are_maintained_only_on_demand(tables, made, of, maintained):
    tables.debt = Debt(7, 100, 1000, created=False)
    kept = made(of, 168)
    kept.committed([PATH] * 8)
    assert ran(kept) is (of != "none")
    assert ("optimize" in tables.calls) is maintained
    kept.committed([PATH] * 1024)
    assert ran(kept) is maintained


def test_a_failure_is_tried_again_later(catalog, tables, made):
    tables.fail("optimize")
    kept = made()
    kept.committed([PATH] * 8)
    assert ran(kept)
    assert tables.calls == ["measure", "optimize", "flush"]  # it may have been committed all the same
    assert track.standing(catalog, "sub") is None
    assert track.rows(catalog, "sub")[PATH].error == "optimize failed"
    tables.fail()
    kept.committed([PATH] * 63)
    assert not ran(kept)
    kept.committed([PATH])
    assert ran(kept)
    assert track.rows(catalog, "sub")[PATH] == MaintainedRow(1e9, 1, optimized_s=1e9)


def test_a_flush_that_failed_is_undone_and_an_undo_that_fails_stays_recorded(catalog, tables, made):
    tables.fail("flush")
    kept = made()
    kept.committed([PATH] * 8)
    with pytest.raises(OSError, match="flush failed"):
        ran(kept)
    assert tables.calls == ["measure", "optimize", "flush", "undo", "flush"]
    intent = track.standing(catalog, "sub")
    assert intent == OptimizeIntent(PATH, 7)
    assert intent.doubtful
    tables.fail()
    made().recover()
    assert tables.calls[5:] == ["undo", "flush"]
    assert track.standing(catalog, "sub") is None


def test_it_is_cut_short_by_a_stop(catalog, tables, made):
    """Undoing it would take its time; the next start sees to that."""
    tables.fail("optimize")
    kept = made(stopping=True)
    kept.committed([PATH] * 8)
    assert ran(kept)
    assert tables.calls == ["measure", "optimize"]
    assert track.standing(catalog, "sub") == OptimizeIntent(PATH, 7)
    made().recover()
    assert track.standing(catalog, "sub") is None


def test_nothing_is_undone_without_spark(catalog, tables, made):
    tables.failing["optimize"] = Py4JNetworkError("gone")
    kept = made()
    kept.committed([PATH] * 8)
    with pytest.raises(Py4JNetworkError):
        ran(kept)
    assert track.standing(catalog, "sub") == OptimizeIntent(PATH, 7)


@pytest.mark.parametrize(("seconds", "files"), [((9.0, 1.9, 9.0), 512), ((2.0, 9.0), 128), ((0.1, *[9.0] * 8), 128)])
def test_under_a_load_whose_commits_are_quick_it_waits_longer(tables, made, seconds, files):
    """They do not read all files of the table."""
    for count, optimized in ((files, False), (files + 1, True)):
        kept, tables.debt = made(), Debt(7, count, 1000, created=True)
        for commit_s in seconds:
            kept.committed([PATH] * 1000, commit_s)
        assert ran(kept, 1.0)
        assert ("optimize" in tables.calls) is optimized


@pytest.mark.parametrize(("behind_s", "days"), [(None, 1), (1.0, 4), (60.0, 32)])
def test_a_vacuum_once_a_day_when_the_stream_is_idle(tables, made, behind_s, days):
    """And not before there can be anything to delete."""
    tables.debt = Debt(7, 1, 1000, created=True)
    every_s = 86_400 * days
    times = ((0, 168, 0), (every_s - 1, 168, 0), (every_s, 0, 0), (every_s, 168, 1), (2 * every_s - 1, 168, 1))
    for now_s, retention_h, vacuums in (*times, (2 * every_s, 168, 2)):
        kept = made(retention_h=retention_h, now_s=1e9 + now_s)
        kept.committed([PATH] * 1000)
        assert ran(kept, behind_s)
        assert tables.calls.count("vacuum") == vacuums


def test_the_files_of_many_partitions_are_no_debt(tables, made):
    """OPTIMIZE cannot join them; a table that has them all the time still gets its VACUUM, and OPTIMIZE when due."""
    tables.partitions, tables.debt = 200, Debt(7, 300, 1000, created=True)
    kept = made(retention_h=168.0, now_s=1e9)
    for files, done in ((300, "optimize"), (210, "vacuum"), (231, None), (232, "optimize"), (40, None)):
        tables.debt, tables.calls[:] = replace(tables.debt, files=files), []
        kept.committed([PATH] * 1000)
        assert ran(kept)
        assert {"optimize", "vacuum"}.intersection(tables.calls) == ({done} if done else set()), files
        kept.now_s = lambda: 1e9 + 90_000

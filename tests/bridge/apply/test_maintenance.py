"""Tables are maintained by their debt, when the lag allows it; a failure leaves them as they were."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from bridge import log
from bridge.apply.maintenance import FILE_BYTES, Debt, Maintenance, Policy
from bridge.track import maintenance as track
from bridge.track.catalog import Catalog
from bridge.track.catalog_rows import BatchIntent
from bridge.track.maintenance import OptimizeIntent
from protocol.lsn import Lsn

PATH = "/lake/t1"


@dataclass
class FakeTables:
    """Records the calls; OPTIMIZE leaves one file."""

    debt: Debt = field(default_factory=lambda: Debt(7, 100, 1000, own=True))
    calls: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise OSError(f"{name} failed")

    def measure(self, _path: str) -> Debt:
        self._call("measure")
        return self.debt

    def optimize(self, _path: str) -> None:
        self._call("optimize")
        self.debt = replace(self.debt, version=self.debt.version + 1, files=1)

    def vacuum(self, _path: str, _retention_h: float) -> None:
        self._call("vacuum")

    def undo(self, _intent: OptimizeIntent) -> None:
        self._call("undo")

    def flush(self, _path: str) -> None:
        self._call("flush")


@pytest.fixture
def catalog(tmp_path):
    opened = Catalog(tmp_path / "catalog.sqlite")
    opened.register("shop", enabled=True)
    yield opened
    opened.close()


def maintenance(catalog: Catalog, tables: FakeTables, policy: Policy | None = None, now_s: float = 1e9) -> Maintenance:
    policy = policy or Policy(optimize=True, retention_h=0, adopted=False)
    return Maintenance(catalog, "shop", tables, policy, log.get("shop"), lambda: now_s)


def test_few_commits_are_not_looked_at(catalog):
    tables = FakeTables()
    kept = maintenance(catalog, tables)
    for _ in range(31):
        kept.committed([PATH])
    assert not kept.run_one(None)
    assert tables.calls == []
    kept.committed([PATH])
    assert kept.run_one(None)
    assert tables.calls == ["measure", "optimize", "flush", "measure"]
    assert track.rows(catalog, "shop")[PATH].files == 1
    assert track.standing(catalog, "shop") is None
    assert not kept.run_one(None)


def test_few_files_are_left_alone(catalog):
    tables = FakeTables(Debt(7, 5, 4 * FILE_BYTES, own=True))
    kept = maintenance(catalog, tables)
    kept.committed([PATH] * 32)
    assert kept.run_one(None)
    assert tables.calls == ["measure"]


@pytest.mark.parametrize(
    ("behind_s", "commits", "runs"),
    [(None, 32, True), (1.0, 127, False), (1.0, 128, True), (60.0, 1023, False), (60.0, 1024, True)],
)
def test_a_lag_delays_it_until_the_debt_is_great(catalog, behind_s, commits, runs):
    tables = FakeTables(Debt(7, 5000, 1000, own=True))
    kept = maintenance(catalog, tables)
    kept.committed([PATH] * commits)
    assert kept.run_one(behind_s) is runs
    assert ("optimize" in tables.calls) is runs


def test_it_never_runs_within_a_batch(catalog):
    tables = FakeTables()
    kept = maintenance(catalog, tables)
    kept.committed([PATH] * 32)
    catalog.begin_batch("shop", BatchIntent(Lsn(0), Lsn(100)))
    assert not kept.run_one(None)
    assert tables.calls == []


@pytest.mark.parametrize("adopted", [False, True])
def test_tables_of_others_are_maintained_only_on_demand(catalog, adopted):
    tables = FakeTables(Debt(7, 100, 1000, own=False))
    kept = maintenance(catalog, tables, Policy(optimize=True, retention_h=168, adopted=adopted))
    kept.committed([PATH] * 32)
    kept.run_one(None)
    assert ("optimize" in tables.calls) is adopted
    kept.committed([PATH] * 1024)
    assert kept.run_one(None) is adopted


def test_a_failure_is_undone_and_tried_again_later(catalog):
    tables = FakeTables(failing={"optimize"})
    kept = maintenance(catalog, tables)
    kept.committed([PATH] * 32)
    assert kept.run_one(None)
    assert tables.calls == ["measure", "optimize", "undo", "flush"]
    assert track.standing(catalog, "shop") is None
    assert track.rows(catalog, "shop")[PATH].error == "optimize failed"
    kept.committed([PATH] * 63)
    assert not kept.run_one(None)
    tables.failing.clear()
    kept.committed([PATH])
    assert kept.run_one(None)
    assert track.rows(catalog, "shop")[PATH].error is None


def test_a_flush_that_failed_is_undone_and_an_undo_that_fails_stays_recorded(catalog):
    tables = FakeTables(failing={"flush"})
    kept = maintenance(catalog, tables)
    kept.committed([PATH] * 32)
    with pytest.raises(OSError, match="flush failed"):
        kept.run_one(None)
    assert tables.calls == ["measure", "optimize", "flush", "undo", "flush"]
    assert track.standing(catalog, "shop") == OptimizeIntent(PATH, 7)
    tables.failing.clear()
    kept.recover()
    assert track.standing(catalog, "shop") is None


def test_a_vacuum_once_a_day_and_only_with_a_retention(catalog):
    tables = FakeTables(Debt(7, 1, 1000, own=True))
    for now_s, retention_h, vacuums in ((1e9, 0, 0), (1e9, 168, 1), (1e9 + 86399, 168, 1), (1e9 + 86400, 168, 2)):
        kept = maintenance(catalog, tables, Policy(optimize=True, retention_h=retention_h, adopted=False), now_s)
        kept.committed([PATH] * 32)
        kept.run_one(None)
        assert tables.calls.count("vacuum") == vacuums

"""The changes of one target that grow: their effects are those of all changes, in whatever runs they came."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from bridge.apply.batch import growing_table
from bridge.apply.batch.growing_table import GrowingTable
from bridge.apply.batch.table_changes import Staged, TableChanges
from bridge.apply.evolution.alterations import AddColumn
from bridge.apply.target.target import Target, TargetColumn, target_schema
from protocol.values.types import resolve
from tests.bridge.apply import made_changes
from tests.bridge.apply.made_changes import (
    KEY,
    TYPES,
    after_all,
    before_all,
    changes_table,
    merged,
    random_case,
)

NAMES = ("case", "key", "n", "large")
TARGET = Target("public", "t", "/t", target_schema(list(zip(NAMES, TYPES, strict=True))))
COLUMNS = tuple(TargetColumn(name, resolve(oid, -1)) for name, oid in zip(NAMES, (20, 20, 20, 25), strict=True))


def made(table: pa.Table, **fields: Any) -> TableChanges:
    return TableChanges(TARGET, COLUMNS, fields.pop("key", KEY), table, **fields)


def random_changes(seed):
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=False) for number in range(80)]
    return changes_table(cases, rng)


def grown(*parts: TableChanges) -> TableChanges:
    growing, *others = [GrowingTable.of(part) for part in parts]
    assert growing is not None
    for other in others:
        assert other is not None
        assert growing.takes(other)
        growing.add(other)
    return growing.changes()


def rows_of(changes: TableChanges) -> list[dict[str, Any]]:
    assert isinstance(changes.changes, pa.Table)
    found: list[dict[str, Any]] = changes.changes.to_pylist()
    return found


@pytest.mark.parametrize("few_rows", [0, 50, 200_000])
@pytest.mark.parametrize("seed", range(3))
def test_effects_in_runs_lead_to_the_same_rows(monkeypatch, seed, few_rows):
    monkeypatch.setattr(growing_table, "_FEW_ROWS", few_rows)
    rng = random.Random(seed)
    cases = [random_case(number, rng, moves_keep_toast=True) for number in range(80)]
    table = changes_table(cases, rng)
    runs = [table[at : at + 37] for at in range(0, len(table), 37)]
    found = grown(*map(made, runs))
    assert found.effect is not None
    assert merged(before_all(cases), made_changes.rows_of(found.effect.table)) == after_all(cases)
    assert rows_of(found) == []
    assert not found.empty


def test_memory_follows_the_rows_that_are_touched(monkeypatch):
    """A thousand updates of ten rows are ten effects."""
    monkeypatch.setattr(growing_table, "_FEW_ROWS", 100)
    row = random_changes(0)[:1].to_pylist()[0] | {"op": ord("U"), "old": 0, "old_0": None, "old_1": None}
    schema = random_changes(0).schema
    run = pa.Table.from_pylist([row | {"seq": n, "new_0": n, "new_1": 1} for n in range(10)], schema=schema)
    growing = GrowingTable.of(made(run))
    assert growing is not None
    for _ in range(100):
        other = GrowingTable.of(made(run))
        assert other is not None
        growing.add(other)
        assert growing.rows <= 130
    growing.compact()
    assert growing.rows == 10
    assert growing.memory_bytes <= 2 * run.nbytes


def test_changes_without_an_effect_are_kept_one_after_another():
    """Without a key, or with a filter that Spark computes: positions go on rising, and marks are filled."""
    table = random_changes(1)
    first, second = table[:10], table[10:25].drop_columns(["unchanged_3"])
    second = second.set_column(0, "seq", pa.array(range(15)))
    for fields in ({"key": ()}, {"filters": SimpleNamespace()}):
        found = grown(made(first, **fields), made(second, **fields))
        assert found.effect is None
        rows = rows_of(found)
        seq = [row["seq"] for row in rows]
        assert seq == sorted(set(seq))
        assert [row["new_1"] for row in rows] == table["new_1"][:25].to_pylist()
        assert [row["unchanged_3"] for row in rows[10:]] == [False] * 15


def test_lost_values_are_added_up():
    table = random_changes(1)
    assert grown(made(table[:5], lost=2), made(table[5:9], lost=3)).lost == 5


def test_what_has_to_be_by_itself():
    table = random_changes(2)
    unheld = table.append_column("unheld_2", pa.nulls(len(table), pa.string()))
    staged = Staged(None, table.column_names, inserts_only=False, needs_fold=False)
    twice = pa.concat_tables([changes_table([], random.Random(0)), table.slice(0, 1), table.slice(0, 1)])
    insert = twice.set_column(1, "op", pa.array([ord("I")] * 2, pa.int16()))
    alone = [
        made(table, alterations=(AddColumn("c", pa.int64(), None),)),
        made(table, fills={"c": pa.scalar(1)}),
        replace(made(table), changes=staged),
        made(insert),
    ]
    assert [GrowingTable.of(changes) for changes in alone] == [None] * len(alone)
    found = GrowingTable.of(made(unheld))
    assert found is not None
    assert found.changes().effect is None


def test_only_changes_under_the_same_definition_are_added():
    table = random_changes(4)
    growing = GrowingTable.of(made(table))
    assert growing is not None
    others = [
        replace(made(table), columns=(*COLUMNS[:3], TargetColumn("wide", resolve(25, -1)))),
        replace(made(table), target=replace(TARGET, path="/other")),
        made(table[:0], key=()),
        made(table, published=frozenset(NAMES)),
        made(table, filters=SimpleNamespace()),
    ]
    for changes in others:
        other = GrowingTable.of(changes)
        assert other is not None
        assert not growing.takes(other)

"""What a net effect would do is told before, and is what the commit then does."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from pgbridge.bridge.effects.events import DELETE, INSERT, UPDATE
from pgbridge.bridge.effects.net_effect import net_effect
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.lake.source import as_frame
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.skipped.replay import (
    DELETED,
    INSERTED,
    MISSING,
    OVERWRITTEN,
    UNCHANGED,
    UPDATED,
    RowPreview,
    preview,
)
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.values.types import resolve
from tests.bridge.apply.made_changes import KEY, TYPES, RowAtATime, before_all, changes_table, random_case
from tests.bridge.apply.made_targets import changes, empty_target

NAMES = ("case", "key", "a value", "text")
COLUMNS = tuple(TargetColumn(name, resolve(20 if name != "text" else 25, -1)) for name in NAMES)
ROWS = [(1, "one"), (2, "two"), (3, "three"), (4, "four")]


def test_every_outcome(spark, tmp_path):
    target = empty_target(spark, tmp_path)
    append_rows(
        as_frame(spark, pa.table({"id": [i for i, _ in ROWS], "note": [note for _, note in ROWS]})), target.path
    )
    rows = changes(
        target,
        (INSERT, None, 1, "overwrites"), (UPDATE, None, 2, "new"), (UPDATE, None, 3, "three"), (DELETE, 4, None, None),
        (INSERT, None, 5, "five"), (UPDATE, None, 6, "none"), (DELETE, 7, None, None),
        (INSERT, None, 8, "brief"), (DELETE, 8, None, None),
    )  # fmt: skip
    keyed = KeyedTarget("public.t", target.path, rows.columns, rows.key, overwrite=True)
    found = preview(spark, net_effect(rows.changes, rows.key), keyed)
    assert found.counts == {INSERTED: 1, OVERWRITTEN: 1, UPDATED: 1, DELETED: 1, MISSING: 2, UNCHANGED: 1}
    assert found.examples == [
        RowPreview(OVERWRITTEN, {"id": 1}, {"note": "one"}, {"note": "overwrites"}),
        RowPreview(UPDATED, {"id": 2}, {"note": "two"}, {"note": "new"}),
        RowPreview(DELETED, {"id": 4}, {"note": "four"}),
    ]


@pytest.mark.parametrize("moves", [False, True])
def test_random_changes_do_what_was_told(spark, tmp_path, moves):
    """The table lacks some of the rows that the changes began with, and has others; but those that move are there."""
    rng = random.Random(7)
    cases = [random_case(number, rng, moves_keep_toast=False) for number in range(120)]
    cases = [case for case in cases if any(one["op"] == UPDATE and one["old"] for one in case.changes) is moves]
    table = changes_table(cases, rng)
    moved = {(one["old_0"], one["old_1"]) for one in table.to_pylist() if one["op"] == UPDATE and one["old"]}
    all_before = before_all(cases)
    before = {key: row for key, row in all_before.items() if key in moved or rng.random() < 0.8}
    strange = {(case.number, key) for case in cases for key in range(5)} - all_before.keys()
    before |= {key: (key[1], "another") for key in sorted(strange) if rng.random() < 0.1}
    path = str(tmp_path / "t")
    create_table(spark, path, spark_schema(zip(NAMES, TYPES, strict=True)))
    values = zip(*((*key, *row) for key, row in before.items()), strict=True)
    arrays = {name: pa.array(column, type_) for name, column, type_ in zip(NAMES, values, TYPES, strict=True)}
    append_rows(as_frame(spark, pa.table(arrays)), path)
    found = preview(spark, net_effect(table, KEY), KeyedTarget("public.t", path, COLUMNS, KEY, overwrite=True)).counts

    model = RowAtATime(before, overwrite=True)
    for change in table.to_pylist():
        model.apply(change)
    after = model.rows
    assert model.conflicts["update_missing"] + model.conflicts["delete_missing"] > 0
    assert found[INSERTED] - found[DELETED] == len(after) - len(before)
    if moves:
        return  # a row that moves is an updated one
    assert found[DELETED] == len(before.keys() - after.keys())
    differing = sum(before[key] != after[key] for key in before.keys() & after.keys())
    assert found.get(OVERWRITTEN, 0) + found[UPDATED] == differing


def test_a_row_that_moves_to_a_key_that_is_taken(spark, tmp_path):
    moved = pa.Table.from_pylist(
        [{"seq": 0, "op": UPDATE, "old": ord("K"), "old_0": 1, "old_1": 1, "new_0": 1, "new_1": 2, "new_3": "moved"}],
        schema=changes_table([], random.Random(0)).schema,
    )
    moved = moved.set_column(moved.column_names.index("unchanged_3"), "unchanged_3", pa.array([False]))
    path = str(tmp_path / "t")
    create_table(spark, path, spark_schema(zip(NAMES, TYPES, strict=True)))
    arrays = zip(NAMES, ([1, 1], [1, 2], [None, None], ["one", "two"]), TYPES, strict=True)
    append_rows(as_frame(spark, pa.table({name: pa.array(column, type_) for name, column, type_ in arrays})), path)
    found = preview(spark, net_effect(moved, KEY), KeyedTarget("public.t", path, COLUMNS, KEY, overwrite=True))
    assert found.counts == {UPDATED: 1, DELETED: 1}
    assert found.examples == [
        RowPreview(UPDATED, {"case": 1, "key": 1}, {"key": 1, "text": "one"}, {"key": 2, "text": "moved"}),
        RowPreview(DELETED, {"case": 1, "key": 2}, {"a value": None, "text": "two"}),
    ]

"""A table of changes knows whether a key change carries an unchanged value."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.batch import batch as c
from pgbridge.bridge.batch.batch import renamed, renaming
from pgbridge.bridge.effects.events import INSERT, UPDATE
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.values.types import resolve
from tests.bridge.apply.made_changes import changes_table, random_case


def test_needs_fold_exactly_if_a_key_change_carries_an_unchanged_value():
    rng = random.Random(5)
    for seed in range(200):
        case = random_case(0, random.Random(seed), moves_keep_toast=True)
        changes = changes_table([case], rng)
        assert c.needs_fold(changes) == any(change["old"] and change["unchanged_3"] for change in case.changes)


def test_needs_no_fold_without_unchanged_values():
    changes = changes_table([random_case(0, random.Random(1), moves_keep_toast=False)], random.Random(1))
    assert not c.needs_fold(changes.drop_columns(["unchanged_3"]))
    assert pc.any(changes["unchanged_3"]).as_py() is not None


INT, BIGINT = resolve(23, -1), resolve(20, -1)


def test_columns_go_by_name():
    """A column that moved and was widened, one with a constant, one without, and one that was dropped."""
    before = (TargetColumn("gone", INT), TargetColumn("id", INT))
    after = (TargetColumn("id", BIGINT), TargetColumn("c", INT), TargetColumn("d", INT))
    changes = pa.table(
        {
            "seq": pa.array([0, 1], pa.int64()),
            "op": pa.array([INSERT, UPDATE], pa.int16()),
            "old": pa.array([0, 0], pa.int16()),
            "new_0": pa.array([9, 9], pa.int32()),
            "new_1": pa.array([1, 2], pa.int32()),
            "old_1": pa.array([None, 1], pa.int32()),
        }
    )
    names = renaming(changes.column_names, before, after, {"c": pa.scalar(7, pa.int16())})
    assert [name.name for name in names if name.source is None] == ["new_1", "unchanged_1", "new_2", "unchanged_2"]
    found = renamed(changes, names)
    assert found.schema.field("new_0").type == found.schema.field("old_0").type == pa.int64()
    assert found.drop_columns(["seq", "op", "old"]).to_pylist() == [
        {
            "new_0": 1,
            "old_0": None,
            "new_1": 7,
            "unchanged_1": False,
            "new_2": None,
            "unchanged_2": False,
        },
        {
            "new_0": 2,
            "old_0": 1,
            "new_1": 7,
            "unchanged_1": True,
            "new_2": None,
            "unchanged_2": True,
        },
    ]


def test_marks_come_along():
    columns = (TargetColumn("id", INT),)
    names = renaming(["seq", "op", "old", "new_0", "unchanged_0"], columns, columns)
    assert [(name.name, name.source, name.widened) for name in names[3:]] == [
        ("new_0", "new_0", False),
        ("unchanged_0", "unchanged_0", False),
    ]

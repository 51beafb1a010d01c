"""Changes under one definition get the columns of another."""

from __future__ import annotations

import pyarrow as pa

from bridge.apply.batch.renaming import renamed, renaming
from bridge.apply.effects.operations import INSERT, UPDATE
from bridge.apply.target.target import TargetColumn
from protocol.values.types import resolve

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
    assert [name.name for name in names if name.keeps] == ["unchanged_1", "unchanged_2"]
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
    assert [(name.name, name.source, name.widened, name.keeps) for name in names[3:]] == [
        ("new_0", "new_0", False, False),
        ("unchanged_0", "unchanged_0", False, False),
    ]

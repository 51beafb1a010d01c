"""Changes in the change schema."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.batch.change_schema import POSITION, change_schema
from pgbridge.bridge.effects.events import DELETE, INSERT, KEY_TUPLE, NO_OLD, TRUNCATE, UPDATE
from pgbridge.bridge.lake.commit.change_frame import append_changes, change_frame
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.forms import delta_schema
from pgbridge.bridge.targets.target import Target, TargetColumn, target_schema
from pgbridge.protocol.values.types import resolve

FIELDS = [("id", pa.int32()), ("note", pa.string())]
TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def changes(path, *rows, mode="changelog"):
    """Changes as (op, old, {column of changes: value})."""
    types = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16(), **dict(POSITION)}
    types |= {"new_0": pa.int32(), "new_1": pa.string(), "old_0": pa.int32(), "old_1": pa.string()}
    types |= {"unchanged_1": pa.bool_()}
    fixed = {"commit_time": TIME, "unchanged_1": False}
    listed = [
        {"seq": n, "op": op, "old": old, "commit_lsn": 100 + n, "ordinal": n, "xid": 7, **fixed, **values}
        for n, (op, old, values) in enumerate(rows)
    ]
    columns = (TargetColumn("id", resolve(23, -1)), TargetColumn("note", resolve(25, -1)))
    target = Target("public", "t", path, target_schema(FIELDS), mode)
    return TableChanges(target, columns, (0,), pa.Table.from_pylist(listed, schema=pa.schema(types)))


ROWS: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (INSERT, NO_OLD, {"new_0": 1, "new_1": "a"}),
    (UPDATE, KEY_TUPLE, {"old_0": 1, "new_0": 2, "unchanged_1": True}),
    (TRUNCATE, NO_OLD, {}),
    (DELETE, KEY_TUPLE, {"old_0": 3}),
)


def test_operations_and_images(spark):
    found = change_frame(spark, changes("/t", *ROWS)).orderBy("ordinal").toArrow()
    assert found.column_names == change_schema(FIELDS).names
    shown = found.select(["operation", "old", "new", "unchanged"]).to_pylist()
    assert [tuple(row.values()) for row in shown] == [
        ("INSERT", None, {"id": 1, "note": "a"}, None),
        ("UPDATE", {"id": 1, "note": None}, {"id": 2, "note": None}, ["note"]),
        ("TRUNCATE", None, None, None),
        ("DELETE", {"id": 3, "note": None}, None, None),
    ]
    assert found["commit_lsn"].to_pylist() == [100, 101, 102, 103]
    assert found["commit_time"].to_pylist() == [TIME] * 4


@pytest.mark.parametrize("rows", [ROWS, ()], ids=["some", "none"])
def test_they_are_appended(spark, tmp_path, rows):
    path = str(tmp_path / "t")
    create_table(spark, path, delta_schema("changelog", FIELDS, "public.t"))
    append_changes(spark, changes(path, *rows))
    assert spark.read.format("delta").load(path).count() == len(rows)
    assert len(list((tmp_path / "t/_delta_log").glob("*.json"))) == (2 if rows else 1)

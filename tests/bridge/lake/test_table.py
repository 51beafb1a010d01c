"""Delta tables with names of any kind; nothing at a path is told from something else."""

import pyarrow as pa
import pytest

from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.effects.events import NO_OLD, UPDATE
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.values.types import resolve


def rows_at(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


def test_names_of_any_kind(spark, tmp_path):
    path = str(tmp_path / "a `b` 'c' %;é" / "_t")
    frame = spark.createDataFrame([(1, "x", 2)], "`the id` long, `a.b` string, `c,d=(e)` long")
    create_table(spark, path, frame.schema)
    append_rows(frame, path)
    columns = tuple(TargetColumn(name, resolve(oid, -1)) for name, oid in zip(frame.columns, (20, 25, 20), strict=True))
    row = {"seq": 0, "op": UPDATE, "old": NO_OLD, "new_0": 1, "new_1": "y", "new_2": None, "unchanged_2": True}
    types = dict.fromkeys(row, pa.int64()) | {"op": pa.int16(), "old": pa.int16(), "new_1": pa.string()}
    changes = pa.Table.from_pylist([row], pa.schema(list((types | {"unchanged_2": pa.bool_()}).items())))
    apply_table(spark, TableChanges(Target("public", "t", path, ()), columns, (0,), changes))
    assert rows_at(spark, path) == [(1, "y", 2)]


def test_schema_of_tells_nothing_from_something_else(spark, tmp_path):
    assert schema_of(spark, str(tmp_path / "none")) is None
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.txt").write_text("x")
    with pytest.raises(TargetError, match="is not a Delta table"):
        schema_of(spark, str(tmp_path / "files"))
    create_table(spark, str(tmp_path / "t"), spark.createDataFrame([], "id long").schema)
    schema = schema_of(spark, str(tmp_path / "t"))
    assert schema is not None
    assert schema.fieldNames() == ["id"]

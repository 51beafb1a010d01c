"""Delta tables with names of any kind; nothing at a path is told from something else."""

import pyarrow as pa
import pytest

from bridge.batch.batch import TableChanges
from bridge.effects.events import NO_OLD, UPDATE
from bridge.lake import table
from bridge.lake.commit.apply_table import apply_table
from bridge.lake.commit.writes import append_rows
from bridge.lake.ddl import create_table
from bridge.lake.table import TableSize, schema_of, table_size
from bridge.runtime.errors import TargetError
from bridge.runtime.warehouse import NO_LAYOUT, Layout
from bridge.targets.target import Target, TargetColumn
from protocol.values.types import resolve


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


def test_the_size_is_asked_for_now_and_then(spark, tmp_path):
    """It helps to choose a way; an old answer only makes a commit slower."""
    path = str(tmp_path / "t")
    frame = spark.createDataFrame([(1,)], "id long")
    create_table(spark, path, frame.schema)
    assert table_size(spark, path) == TableSize(0, 0, vectors_undecided=True, plain=True)
    append_rows(frame, path)
    sizes = [table_size(spark, path) for _ in range(table._LOOK_AGAIN_AFTER)]
    assert {size.files for size in sizes[:-1]} == {0}
    assert sizes[-1].files == 1
    assert sizes[-1].size_bytes > 100


VECTORS = "'delta.enableDeletionVectors' = 'true'"


@pytest.mark.parametrize(
    ("layout", "statements"),
    [
        (NO_LAYOUT, []),
        (Layout(partition_by=("region",)), []),
        (Layout(cluster_by=("id",)), []),
        (Layout(cluster_by=("id",)), ["ALTER TABLE {} CLUSTER BY NONE"]),
        (NO_LAYOUT, [f"ALTER TABLE {{}} SET TBLPROPERTIES ({VECTORS})", "DELETE FROM {} WHERE id = 1"]),
        (NO_LAYOUT, ["ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"]),
        (NO_LAYOUT, ["ALTER TABLE {} UNSET TBLPROPERTIES ('pgbridge.created')"]),
    ],
)
def test_the_size_of_a_local_table_is_read_from_its_log(spark, tmp_path, monkeypatch, layout, statements):
    """It says the same as Spark does."""
    path = str(tmp_path / "t")
    frame = spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], "id long, region string")
    create_table(spark, path, frame.schema, layout)
    append_rows(frame, path)
    for statement in statements:
        spark.sql(statement.format(f"delta.`{path}`")).collect()
    asked = table._described_size(spark, path)
    monkeypatch.setattr(table, "_described_size", lambda *_: pytest.fail("Spark was asked"))
    assert table_size(spark, path) == asked


@pytest.mark.parametrize("text", [None, "{}", '{"metadata": {}, "domainMetadata": [], "numFiles": 1}', "[]", "cut"])
def test_spark_is_asked_for_the_size_if_the_writer_of_the_log_has_not_said_it(spark, tmp_path, text):
    path = tmp_path / "t"
    frame = spark.createDataFrame([(1,)], "id long")
    create_table(spark, str(path), frame.schema)
    checksum = path / "_delta_log" / f"{0:020}.crc"
    checksum.unlink() if text is None else checksum.write_text(text)
    assert table_size(spark, str(path)) == TableSize(0, 0, vectors_undecided=True, plain=True)

"""What is known of the keys of new rows before they are appended; and an overwrite replaces rows, not columns."""

from __future__ import annotations

import pyarrow as pa

from bridge.batch.batch import TableChanges
from bridge.lake.commit.writes import NewKeys, new_keys, overwrite_rows
from bridge.targets.target import Target, TargetColumn
from protocol.values.types import resolve


def test_keys_of_new_rows():
    def keys(*values, key=(0,), **columns):
        table = pa.table({"new_0": pa.array(values), **columns})
        columns_ = tuple(TargetColumn(f"c{i}", resolve(20, -1)) for i in range(2))
        target = Target("public", "t", "/lake/public/t", ())
        return new_keys(TableChanges(target, columns_, key, table))

    assert keys(3, 1, 2) == NewKeys(3, unique=True, bounds=((1, 3),))
    assert not keys(3, 3).unique
    two = keys(3, 3, key=(0, 1), new_1=pa.array(["b", "a"]))
    assert two == NewKeys(2, unique=True, bounds=((3, 3), ("a", "b")))


def rows_at(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


def test_overwrite_keeps_columns_that_are_not_replicated(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.createDataFrame([(1, "own")], "id long, own string").write.format("delta").save(path)
    overwrite_rows(spark.createDataFrame([(2,)], "id long"), path)
    assert rows_at(spark, path) == [(2, None)]

"""An overwrite replaces rows, not columns."""

from __future__ import annotations

from bridge.lake.writes import overwrite_rows


def rows_at(spark, path):
    return sorted(tuple(row) for row in spark.read.format("delta").load(path).collect())


def test_overwrite_keeps_columns_that_are_not_replicated(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.createDataFrame([(1, "own")], "id long, own string").write.format("delta").save(path)
    overwrite_rows(spark.createDataFrame([(2,)], "id long"), path)
    assert rows_at(spark, path) == [(2, None)]

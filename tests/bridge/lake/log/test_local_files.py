"""Data files of local Delta tables, read here: the same as Spark reads, or nothing."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as t

from pgbridge.bridge.lake.log.local_files import columns_of
from pgbridge.bridge.lake.log.local_log import entry_of

OF_SPARK = {b"org.apache.spark.version": b"4.2.0"}


def written(folder, table, marks=OF_SPARK, **stats):
    """A data file, and its action in the log."""
    name = "part 1.parquet"
    pq.write_table(table.replace_schema_metadata(marks), folder / name)
    return {"path": "part%201.parquet", "stats": f'{{"numRecords": {stats.get("rows", len(table))}}}'}


def test_columns_come_as_they_are_asked_for(tmp_path):
    table = pa.table({"a": [1, 2], "b": ["x", None], "c": [0.5, 1.5]})
    add = written(tmp_path, table)
    assert columns_of(tmp_path, add, ["c", "a"]) == table.select(["c", "a"])


@pytest.mark.parametrize(
    ("marks", "rows", "names"),
    [
        ({}, 2, ["a"]),  # of another writer
        ({**OF_SPARK, b"org.apache.spark.legacyDateTime": b""}, 2, ["a"]),
        ({**OF_SPARK, b"org.apache.spark.legacyINT96": b""}, 2, ["a"]),
        (OF_SPARK, 3, ["a"]),  # not the file that the log means
        (OF_SPARK, 2, ["a", "b"]),  # older than a column
    ],
)
def test_what_only_spark_can_tell_is_left_to_it(tmp_path, marks, rows, names):
    assert columns_of(tmp_path, written(tmp_path, pa.table({"a": [1, 2]}), marks, rows=rows), names) is None


def test_a_file_that_is_not_there_or_is_no_parquet_is_left_to_spark(tmp_path):
    assert columns_of(tmp_path, {"path": "gone.parquet", "stats": '{"numRecords": 1}'}, ["a"]) is None
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    assert columns_of(tmp_path, {"path": "torn.parquet", "stats": '{"numRecords": 1}'}, ["a"]) is None


def test_a_small_file_with_one_large_value_for_many_rows_is_not_read(tmp_path):
    many = pa.table({"a": ["x" * 100_000] * 1_000})
    add = written(tmp_path, many)
    assert (tmp_path / "part 1.parquet").stat().st_size < 100_000
    assert columns_of(tmp_path, add, ["a"], most_bytes=64 << 20) is None
    assert columns_of(tmp_path, add, ["a"]) == many
    few = written(tmp_path, many.slice(0, 100))
    assert columns_of(tmp_path, few, ["a"], most_bytes=64 << 20) == many.slice(0, 100)


_DAY = dt.date(1, 1, 1)
_MOMENT = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, dt.UTC)


def test_rows_of_each_type_are_those_that_spark_reads(spark, tmp_path):
    path = tmp_path / "table"
    fields = [
        ("i", t.IntegerType(), 1),
        ("l", t.LongType(), -(1 << 63)),
        ("h", t.ShortType(), -5),
        ("f", t.FloatType(), float("inf")),
        ("d", t.DoubleType(), -0.0),
        ("s", t.StringType(), "ü\0"),
        ("x", t.BinaryType(), bytearray(b"\0\xff")),
        ("y", t.BooleanType(), True),
        ("day", t.DateType(), _DAY),
        ("at", t.TimestampType(), _MOMENT),
        ("ntz", t.TimestampNTZType(), _MOMENT.replace(tzinfo=None)),
        ("n", t.DecimalType(38, 5), None),
        ("m", t.DecimalType(9, 2), None),
    ]
    schema = t.StructType([t.StructField(name, type_) for name, type_, _ in fields])
    rows = [tuple(value for *_, value in fields), (None,) * len(fields)]
    spark.createDataFrame(rows, schema).coalesce(1).write.format("delta").save(str(path))
    frame = spark.read.format("delta").load(str(path))
    actions = map(json.loads, entry_of(path / "_delta_log", 0).read_text().splitlines())
    (add,) = (action["add"] for action in actions if "add" in action)
    assert columns_of(path, add, frame.columns) == frame.toArrow()

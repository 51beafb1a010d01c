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
    pq.write_table(table.replace_schema_metadata(marks), folder / name, compression="zstd")
    return {"path": "part%201.parquet", "stats": f'{{"numRecords": {stats.get("rows", len(table))}}}'}


def test_columns_come_as_they_are_asked_for(tmp_path):
    table = pa.table({"a": [1, 2], "b": ["x", None], "c": [0.5, 1.5]})
    add = written(tmp_path, table)
    assert columns_of(tmp_path, add, ["c", "a"]) == table.select(["c", "a"])


DAYS = pa.array([dt.date(1, 1, 1), None])


@pytest.mark.parametrize(
    "marks",
    [
        {},  # of another writer
        {b"org.apache.spark.version": b"2.4.8"},
        {**OF_SPARK, b"org.apache.spark.legacyDateTime": b""},
        {**OF_SPARK, b"org.apache.spark.legacyINT96": b""},
    ],
)
@pytest.mark.parametrize("days", [DAYS, pa.array([[dt.date(1, 1, 1)], None])])
def test_days_that_may_be_of_another_calendar_are_left_to_spark(tmp_path, marks, days):
    assert columns_of(tmp_path, written(tmp_path, pa.table({"a": days}), marks), ["a"]) is None
    numbers = pa.table({"a": [1, 2]})
    assert columns_of(tmp_path, written(tmp_path, numbers, marks), ["a"]) == numbers


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (3, ["a"]),  # not the file that the log means
        (2, ["a", "b"]),  # older than a column
    ],
)
@pytest.mark.parametrize("most", [None, (5_000, 1 << 20)])
def test_a_file_that_is_not_as_expected_is_left_to_spark(tmp_path, rows, names, most):
    add = written(tmp_path, pa.table({"a": [1, 2]}), rows=rows)
    assert columns_of(tmp_path, add, names, most=most) is None


def test_a_file_that_is_not_there_or_is_no_parquet_is_left_to_spark(tmp_path):
    assert columns_of(tmp_path, {"path": "gone.parquet", "stats": '{"numRecords": 1}'}, ["a"]) is None
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    assert columns_of(tmp_path, {"path": "torn.parquet", "stats": '{"numRecords": 1}'}, ["a"]) is None


@pytest.mark.parametrize("most", [None, (5_000, 1 << 20)])
def test_a_damaged_page_is_left_to_spark(spark, tmp_path, most):
    """Spark's files have checksums of their pages, and Hadoop's beside them, which Spark looks at."""
    path = tmp_path / "table"
    spark.range(1_000).selectExpr("id", "uuid() AS u").coalesce(1).write.format("delta").save(str(path))
    actions = map(json.loads, entry_of(path / "_delta_log", 0).read_text().splitlines())
    (add,) = (action["add"] for action in actions if "add" in action)
    whole = columns_of(path, add, ["id", "u"], most=most)
    assert whole is not None
    file = path / add["path"]
    content = file.read_bytes()
    for at in range(20, len(content) - 8, len(content) // 40):
        file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert columns_of(path, add, ["id", "u"], most=most) in (None, whole)  # statistics do not matter


@pytest.mark.parametrize(
    ("many", "few"),
    [
        (["x" * 100_000] * 1_000, 10),
        ([[7] * 100_000] * 1_000, 1),
        ([[["y" * 100] * 1_000]] * 1_000, 10),
        (["z" * (128 << 20)], 0),
    ],
)
def test_a_small_file_with_one_large_value_for_many_rows_is_not_read_whole(tmp_path, many, few):
    rows = pa.table({"a": many})
    add = written(tmp_path, rows)
    assert (tmp_path / "part 1.parquet").stat().st_size < 256 << 10
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        assert columns_of(tmp_path, add, ["a"], most=(5_000, 2 << 20)) is None
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 64 << 20 < rows.nbytes
    add = written(tmp_path, rows.slice(0, few))
    assert columns_of(tmp_path, add, ["a"], most=(5_000, 2 << 20)) == rows.slice(0, few)


def test_many_rows_that_are_small_are_read(tmp_path):
    rows = pa.table({"a": range(5_000), "b": [f"a note {number} of some length" for number in range(5_000)]})
    assert columns_of(tmp_path, written(tmp_path, rows), ["a", "b"], most=(5_000, 1 << 20)) == rows
    assert columns_of(tmp_path, written(tmp_path, rows), ["a", "b"], most=(4_999, 1 << 20)) is None


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
        ("list", t.ArrayType(t.StringType()), ["a", None]),
        ("lists", t.ArrayType(t.ArrayType(t.TimestampType())), [[_MOMENT], []]),
    ]
    schema = t.StructType([t.StructField(name, type_) for name, type_, _ in fields])
    rows = [tuple(value for *_, value in fields), (None,) * len(fields)]
    spark.createDataFrame(rows, schema).coalesce(1).write.format("delta").save(str(path))
    frame = spark.read.format("delta").load(str(path))
    actions = map(json.loads, entry_of(path / "_delta_log", 0).read_text().splitlines())
    (add,) = (action["add"] for action in actions if "add" in action)
    theirs = frame.toArrow()
    for most in (None, (5_000, 1 << 20)):
        ours = columns_of(path, add, frame.columns, most=most)
        assert ours is not None
        assert ours.cast(theirs.schema) == theirs
        assert ours.drop_columns(["list", "lists"]) == theirs.drop_columns(["list", "lists"])

"""Spark reads the same from a Parquet file as from rows of the plan, and the file does not stay."""

from __future__ import annotations

import datetime as dt
import tempfile
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgbridge.bridge.lake import source as module
from pgbridge.bridge.lake.source import arrow_source, arrow_stream_source, as_frame
from pgbridge.bridge.spark.session import driver_of

VALUES = {
    "new_0": pa.array([1, None], pa.int16()),
    "new_1": pa.array([1 << 40, None]),
    "new_2": pa.array([float("nan"), -0.0]),
    "new_3": pa.array(["a\0é", None]),
    "new_4": pa.array([b"\xff", None]),
    "new_5": pa.array([dt.date(1000, 2, 28), dt.date(9999, 12, 31)]),
    "new_6": pa.array([-62135596799999999, None], pa.timestamp("us")),
    "new_7": pa.array([dt.datetime(1066, 10, 14, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
    "new_8": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
    "new_9": pa.array([[1, None], None], pa.list_(pa.int32())),
    "inserted": pa.array([True, False]),
}


@pytest.fixture
def folder(scratch_base, monkeypatch):
    """Any number of rows goes to a file, in a folder of this test."""
    monkeypatch.setattr(module, "PLAN_ROWS", 0)
    return scratch_base


def test_a_file_has_the_same_rows_as_the_plan(spark, folder):
    table = pa.table(VALUES)
    with arrow_source(spark, table) as source:
        assert len(list(folder.rglob("*.parquet"))) == 1
        expected = as_frame(spark, table)
        assert source.schema == expected.schema
        assert list(map(repr, source.collect())) == list(map(repr, expected.collect()))
    assert list(folder.rglob("*.parquet")) == []


def test_pieces_of_many_rows_have_nested_values_and_nulls(spark, monkeypatch):
    """PySpark 4.2 takes no slice of an array of them, neither as a column nor within another one."""
    times = pa.list_(pa.timestamp("us"))
    lists = [[0], None, [], [None, 1 << 50]] * 2
    table = pa.table(
        {
            "id": pa.array(range(8), pa.int32()),
            "local": pa.array(lists, times),
            "of_zone": pa.array(lists, times).cast(pa.list_(pa.timestamp("us", "UTC"))),
            "list": pa.array([*([value] for value in lists[1:]), None], pa.list_(times)),
        }
    )
    monkeypatch.setattr(type(driver_of(spark)), "piece_bytes", table.nbytes // 4)
    frame = as_frame(spark, table)
    assert frame.orderBy("id").toArrow().to_pylist() == table.to_pylist()


def test_few_rows_need_no_file(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with arrow_source(spark, pa.table(VALUES)) as source:
        assert source.count() == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("plan_rows", [0, 1, 3, 4])
def test_a_stream_of_rows_is_read_the_same(spark, folder, monkeypatch, plan_rows):
    """Whatever its columns are called, and wherever it turns out to be too long for the plan."""
    monkeypatch.setattr(module, "PLAN_ROWS", plan_rows)
    names = ["a b", "x.y", "`", "(1)", "ä;", "new_5", "A", "a", "t\tt", "=", "{}"]
    table = pa.table(list(VALUES.values()), names)
    batches = [table.slice(0, 1).to_batches()[0], table.slice(1).to_batches()[0], table.to_batches()[0]]
    with arrow_stream_source(spark, table.schema, iter(batches)) as source:
        assert len(list(folder.rglob("*.parquet"))) == (plan_rows < 4)
        expected = as_frame(spark, pa.concat_tables([table, table]))
        assert source.schema == expected.schema
        assert sorted(map(repr, source.collect())) == sorted(map(repr, expected.collect()))
    assert list(folder.rglob("*.parquet")) == []


def test_wide_rows_go_to_a_file(spark, folder, monkeypatch):
    monkeypatch.setattr(module, "PLAN_ROWS", 100)
    monkeypatch.setattr(module, "_PLAN_BYTES", 1000)
    batch = pa.record_batch({"a": ["x" * 2000]})
    with arrow_stream_source(spark, batch.schema, [batch]) as source:
        assert len(list(folder.rglob("*.parquet"))) == 1
        assert source.collect()[0].a == "x" * 2000


@pytest.mark.parametrize("batches", [0, 1])
def test_no_rows(spark, folder, batches):
    schema = pa.table(VALUES).schema
    with arrow_stream_source(spark, schema, [pa.RecordBatch.from_pylist([], schema)] * batches) as source:
        assert (source.columns, source.collect()) == (list(VALUES), [])
    assert list(folder.rglob("*.parquet")) == []


def test_the_file_goes_if_the_rows_fail(spark, folder):
    def rows():
        yield pa.record_batch({"a": [1]})
        raise OSError("cut")

    with pytest.raises(OSError, match="cut"), arrow_stream_source(spark, pa.schema({"a": pa.int64()}), rows()):
        pass
    assert list(folder.rglob("*.parquet")) == []


def test_large_values_have_a_file_without_dictionary_and_statistics(spark, folder):
    """Parquet's writer would hold a value, of hundreds of megabytes perhaps, several times."""
    large = pa.record_batch({"a": ["x" * (300 << 10)], "b": [[1]]})
    batches = [pa.record_batch({"a": ["y"], "b": [[2]]}), large, pa.record_batch({"a": ["z"], "b": [[3]]})]
    with arrow_stream_source(spark, large.schema, iter(batches)) as source:
        columns = [pq.read_metadata(path).row_group(0).column(0) for path in folder.rglob("*.parquet")]
        assert sorted((one.is_stats_set, one.dictionary_page_offset is not None) for one in columns) == [
            (False, False),
            (True, True),
        ]
        assert sorted(len(row.a) for row in source.collect()) == [1, 1, 300 << 10]
    with arrow_source(spark, pa.table(large.columns, ["a", "b"])) as source:
        assert len(source.collect()[0].a) == 300 << 10


@pytest.mark.parametrize(("rows", "value_bytes", "groups"), [(5, 20 << 20, 5), (64, 1 << 20, 3), (200_000, 1, 2)])
def test_a_row_group_has_few_large_rows(rows, value_bytes, groups):
    """A task that reads one has all of it in memory."""
    table = pa.table({"v": pa.repeat(pa.scalar("x" * value_bytes, pa.large_string()), rows)})
    assert -(-rows // module._group_rows(table)) == groups

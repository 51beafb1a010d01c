"""Staged changes are in Spark what they were in Arrow, and no longer need Arrow."""

from __future__ import annotations

import datetime as dt
import decimal
import gc
import weakref

import pyarrow as pa

from bridge.batch.batch import Renaming
from bridge.effects.events import UPDATE
from bridge.lake.source import SparkStage, as_frame

VALUES = {
    "seq": (pa.int64(), [1, 2]),
    "op": (pa.int16(), [UPDATE, ord("I")]),
    "new_0": (pa.decimal128(12, 2), [decimal.Decimal("1.50"), None]),
    "new_1": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), None]),
    "new_2": (pa.timestamp("us"), [None, dt.datetime(2026, 1, 2)]),  # noqa: DTZ001 - of a column without a zone
    "new_3": (pa.list_(pa.string()), [["a", None], []]),
    "new_4": (pa.binary(), [b"\x00", b""]),
}


def some() -> pa.Table:
    return pa.table({name: pa.array(values, type_) for name, (type_, values) in VALUES.items()})


def test_what_is_put_comes_back(spark):
    """Each type and NULL, and without the table that it came from."""
    table = some()
    expected, gone = table.to_pylist(), weakref.ref(table)
    frame = SparkStage(spark).put(table)
    del table
    gc.collect()
    assert gone() is None
    assert frame.orderBy("seq").toArrow().to_pylist() == expected
    assert "LocalTableScan" not in frame._jdf.queryExecution().toString()


def test_union_renames(spark):
    """As in Arrow: a column that was not there is NULL, or unchanged in updates; a mark, false."""
    stage = SparkStage(spark)
    names = [Renaming("seq", "seq", pa.int64()), Renaming("op", "op", pa.int16())]
    first = [
        *names,
        Renaming("new_0", "new_4", pa.binary()),
        Renaming("new_1", None, pa.string()),
        Renaming("unchanged_1", None, pa.bool_()),
    ]
    second = [*names, Renaming("new_0", "new_4", pa.binary()), Renaming("new_1", "op", pa.string())]
    frame = stage.union([(stage.put(some()), first), (stage.put(some()), second[:-1])])
    rows = frame.toArrow().to_pylist()
    assert rows == [
        {"seq": 1, "op": UPDATE, "new_0": b"\x00", "new_1": None, "unchanged_1": True},
        {"seq": 2, "op": ord("I"), "new_0": b"", "new_1": None, "unchanged_1": False},
        {"seq": 1, "op": UPDATE, "new_0": b"\x00", "new_1": None, "unchanged_1": False},
        {"seq": 2, "op": ord("I"), "new_0": b"", "new_1": None, "unchanged_1": False},
    ]


def test_union_gives_constants_and_wider_types(spark):
    """Constants of columns that came later: what they are in Arrow, they are in Spark."""
    stage = SparkStage(spark)
    columns = {name: some()[name].drop_null() for name in VALUES if name.startswith("new_")}
    constants = {name: column[0] for name, column in columns.items()}
    names = [
        Renaming("seq", "seq", pa.int64()),
        Renaming("op", "op", pa.int64(), widened=True),
        *(Renaming(name, None, value.type, value) for name, value in constants.items()),
    ]
    frame = stage.union([(stage.put(some()), names)])
    assert frame.dtypes[1] == ("op", "bigint")
    for row in frame.toArrow().to_pylist():
        assert {name: row[name] for name in constants} == {name: value.as_py() for name, value in constants.items()}


def test_a_table_without_rows_or_chunks(spark):
    schema = pa.schema({"a": pa.list_(pa.int32()), "b": pa.timestamp("us", "UTC"), "c": pa.string()})
    for table in (schema.empty_table(), pa.Table.from_batches([], schema)):
        assert as_frame(spark, table).collect() == []

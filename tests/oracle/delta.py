"""Compares Delta tables with the oracle's: both as typed values, duplicates counting."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from pgbridge.bridge.lake.location import read_table
from tests.oracle import second_reader
from tests.oracle.memory_tables import MemoryTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from tests.oracle.native import Row

Values = tuple[Any, ...]


def delta_table(spark: SparkSession | MemoryTables, path: str) -> pa.Table:
    """A Delta table's rows, as Arrow; re-read from the log, not from a cached plan.

    delta-rs reads it, which shares no code with Spark, if the table's protocol asks nothing of a reader: it passes over
    column mapping, for one. Spark takes half a second of a core for the first look at a version. What Spark reads,
    DuckDB reads, too, where it can: an AssertionError tells a difference.
    """
    if isinstance(spark, MemoryTables):
        return spark.arrow(path)
    if path.startswith("/") and second_reader.needs_nothing(path):
        return second_reader.by_delta_rs(path)
    rows = read_table(spark, path).toArrow()
    if path.startswith("/") and (again := second_reader.by_duckdb(path)) is not None:
        assert again.column_names == rows.column_names, path
        spark_has, duckdb_has = _counted(rows), _counted(again)
        assert spark_has == duckdb_has, (path, spark_has - duckdb_has, duckdb_has - spark_has)
    return rows


def _counted(rows: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(map(_plain, row.values()))) for row in rows.to_pylist())


class Rows(Protocol):
    """Who has the rows that are expected."""

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[Row]:
        """A table's rows as `text_rows` gives them."""


def differences(
    spark: SparkSession | MemoryTables, path: str, native: Rows, table: str, columns: Sequence[str] | None = None
) -> list[str]:
    """Return rows that only the Delta table has, and rows that only the native subscriber's has; empty when equal.

    `columns`: which of the Delta table's columns to look at; by default all.
    """
    found = delta_table(spark, path)
    return unequal(found if columns is None else found.select(columns), native, table)


def unequal(found: pa.Table, native: Rows, table: str) -> list[str]:
    """As `differences`, of a Delta table's rows."""
    expected_rows = native.rows(table, found.column_names)
    readers = [reader(field.type) for field in found.schema]
    expected = Counter(
        repr(tuple(read(text) if text is not None else None for read, text in zip(readers, row, strict=True)))
        for row in expected_rows
    )
    actual = _counted(found)
    return [f"only in Delta: {row} x{n}" for row, n in (actual - expected).items()] + [
        f"only in PostgreSQL: {row} x{n}" for row, n in (expected - actual).items()
    ]


def reader(arrow: pa.DataType) -> Callable[[str], Any]:
    """How PostgreSQL's text output of a value is read, to be held against an Arrow value of this type."""
    simple: list[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]]] = [
        (pa.types.is_boolean, lambda text: {"t": True, "f": False}[text]),
        (pa.types.is_integer, int),
        (pa.types.is_float32, lambda text: float(np.float32(text))),
        (pa.types.is_float64, float),
        (pa.types.is_decimal, Decimal),
        (pa.types.is_binary, lambda text: bytes.fromhex(text.removeprefix("\\x"))),
        (pa.types.is_date, dt.date.fromisoformat),
        (pa.types.is_timestamp, dt.datetime.fromisoformat),
        (pa.types.is_string, str),
    ]
    if pa.types.is_list(arrow):
        element = reader(arrow.value_type)
        return lambda text: [None if item is None else element(item) for item in array_items(text)]
    return next(read for matches, read in simple if matches(arrow))


def array_items(text: str) -> Iterator[str | None]:
    """The elements of a one-dimensional array's text output; of another lower bound no column holds it."""
    assert text.startswith("{")
    body = text[1:-1]
    at = 0
    while at < len(body):
        if body[at] == '"':
            item, at = "", at + 1
            while body[at] != '"':
                at += body[at] == "\\"
                item += body[at]
                at += 1
            at += 2
            yield item
        else:
            item = body[at:].split(",", maxsplit=1)[0]
            at += len(item) + 1
            yield None if item == "NULL" else item


def _plain(value: Any) -> Any:
    """An Arrow value with one form for equal values."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value

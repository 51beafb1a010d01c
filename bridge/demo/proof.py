"""Compares every row and column of the Delta tables with PostgreSQL, under one snapshot.

psycopg reads PostgreSQL, Spark reads Delta; the bridge's own code reads neither. A string in Delta is compared
with PostgreSQL's text output. Rows are compared as multisets. It is made for the types of the demo's shop;
real, for one, would differ, because psycopg and Arrow give it to Python in different ways.
"""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.types.string import TextLoader

from bridge.demo.folder import SUBSCRIPTIONS
from bridge.demo.published_tables import PublishedTable, published_tables
from bridge.runtime.threads import Closing
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from threading import Event

    from pyspark.sql import SparkSession

    Row = tuple[Any, ...]

SPARK_CONF: Final = {
    # Each query runs once: to generate and compile code for it takes longer than to read the rows without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for the Spark that reads the Delta tables once."""

DIFFERENCES_SHOWN: Final = 5
_AT_ONCE: Final = 2  # tables: Spark reads one while Python compares the rows of another
_VALUE_CHARACTERS = 60

_DELTA_TYPES = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "double precision": "double",
    "bytea": "binary",
    "date": "date",
    "timestamp without time zone": "timestamp_ntz",
    "timestamp with time zone": "timestamp",
}
_TEXT_OUTPUT = "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c bytea_output=hex"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one table.

    Attributes:
        rows: Number of published rows.
        differences: Lines with up to `DIFFERENCES_SHOWN` differences, and one with the number of others.
    """

    subscription: str
    table: str
    rows: int
    columns: int
    path: Path
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


class Snapshot(Closing):
    """A REPEATABLE READ transaction on the publisher. Open it when nothing writes any more.

    Attributes:
        lsn: The WAL flush position at its start: it sees all transactions that committed before.
    """

    def __init__(self, conninfo: str) -> None:
        self._connection = psycopg.connect(conninfo, options=_TEXT_OUTPUT)
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True
        row = self._connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        self.lsn = Lsn.parse(row[0] if row else "")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def tables(self, publication: str) -> list[PublishedTable]:
        """Return the publication's tables."""
        return published_tables(self._connection, publication)

    def rows(self, table: PublishedTable) -> list[Row]:
        """Return the published rows: PostgreSQL's text output where Delta has strings, else Python's values."""
        with self._connection.cursor() as cursor:
            for column in table.columns:
                if delta_type(column.type) == "string":
                    cursor.adapters.register_loader(column.type_oid, TextLoader)
            return [tuple(map(_hashable, row)) for row in table.rows(cursor)]


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """The rows that a subscription's table should have."""

    subscription: str
    table: PublishedTable
    rows: list[Row]


def read(snapshot: Snapshot) -> list[PublishedRows]:
    """Read the published rows of all tables of all subscriptions."""
    return [
        PublishedRows(subscription, table, snapshot.rows(table))
        for subscription, publication in SUBSCRIPTIONS.items()
        for table in snapshot.tables(publication)
    ]


def prove(spark: SparkSession, published: Iterable[PublishedRows], warehouses: Mapping[str, Path]) -> list[Verdict]:
    """Compare all tables with the rows that were read.

    Args:
        spark: Reads the Delta tables.
        published: The published rows.
        warehouses: The warehouse of each subscription.
    """
    with ThreadPoolExecutor(_AT_ONCE, "proof") as pool:
        return list(pool.map(lambda table: _verdict(spark, table, warehouses[table.subscription]), published))


def warm_up(spark: SparkSession, warehouses: Iterable[Path], enough: Event) -> None:
    """Read the Delta tables as they are now, so that Spark has loaded what the proof needs, and their logs.

    Args:
        spark: Reads them.
        warehouses: Where they are.
        enough: When it is set, no other table is read.
    """
    for warehouse in warehouses:
        for log in sorted(warehouse.glob("*/*/_delta_log")):
            if enough.is_set():
                return
            spark.read.format("delta").load(str(log.parent)).toArrow()


def _verdict(spark: SparkSession, published: PublishedRows, warehouse: Path) -> Verdict:
    table = published.table
    path = warehouse / table.namespace / table.name
    frame = spark.read.format("delta").load(str(path))
    differences = compare_columns(
        {column.name: delta_type(column.type) for column in table.columns},
        {field.name: field.dataType.simpleString() for field in frame.schema.fields},
    )
    if not differences:
        names = [column.name for column in table.columns]
        arrow = frame.select(*names).toArrow()
        columns = ([_hashable(value) for value in arrow[name].to_pylist()] for name in names)
        delta = zip(*columns, strict=True)
        key = [i for i, column in enumerate(table.columns) if column.in_key]
        differences = compare_rows(names, key, published.rows, delta)
    return Verdict(
        subscription=published.subscription,
        table=table.qualified_name,
        rows=len(published.rows),
        columns=len(table.columns),
        path=path,
        differences=tuple(differences),
    )


def delta_type(sql_type: str) -> str:
    """Return the Delta type for a PostgreSQL type, both as SQL writes them."""
    if sql_type.endswith("[]"):
        return f"array<{delta_type(sql_type.removesuffix('[]'))}>"
    if match := re.fullmatch(r"numeric\((\d+),(\d+)\)", sql_type):
        return f"decimal({match[1]},{match[2]})"
    return _DELTA_TYPES.get(sql_type, "string")


def compare_columns(published: Mapping[str, str], delta: Mapping[str, str]) -> list[str]:
    """Return the differences in names and types of columns; their order does not matter."""
    return [
        f"column {name} is {published.get(name, 'missing')} in PostgreSQL and {delta.get(name, 'missing')} in Delta"
        for name in {**published, **delta}
        if published.get(name) != delta.get(name)
    ]


def compare_rows(names: Sequence[str], key: Sequence[int], published: Iterable[Row], delta: Iterable[Row]) -> list[str]:
    """Return the differences of two multisets of rows.

    Args:
        names: The columns' names.
        key: Positions of the key columns; empty for a table without a key.
        published: PostgreSQL's rows.
        delta: Delta's rows.

    Returns:
        Lines with up to `DIFFERENCES_SHOWN` differences, and one with the number of others.
    """
    there, here = Counter(published), Counter(delta)
    if there == here:
        return []
    missing, extra = there - here, here - there
    changed = {tuple(row[k] for k in key): row for row in extra if key and row not in there}
    lines = []
    for row in missing:
        other = changed.pop(tuple(row[k] for k in key), None)
        if other is None:
            lines.append(f"{_where(there[row], here[row])}: {_named(names, row)}")
            continue
        del extra[other]
        what = ", ".join(
            f"{name} is {_shown(value)} in PostgreSQL, {_shown(it)} in Delta"
            for name, value, it in zip(names, row, other, strict=True)
            if value != it
        )
        lines.append(f"{_named([names[k] for k in key], [row[k] for k in key])}: {what}")
    lines += [f"{_where(there[row], here[row])}: {_named(names, row)}" for row in extra]
    if len(lines) > DIFFERENCES_SHOWN:
        lines[DIFFERENCES_SHOWN:] = [f"and {len(lines) - DIFFERENCES_SHOWN} more"]
    return lines


def _hashable(value: Any) -> Any:
    """Return lists as tuples, so that rows can be counted."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _where(there: int, here: int) -> str:
    """Say on which side a row is, and how often."""
    if there and here:
        return f"{there}x in PostgreSQL, {here}x in Delta"
    times = max(there, here)
    return f"only in {'PostgreSQL' if there else 'Delta'}{f' ({times}x)' if times > 1 else ''}"


def _named(names: Sequence[str], row: Sequence[Any]) -> str:
    return ", ".join(f"{name} = {_shown(value)}" for name, value in zip(names, row, strict=True))


def _shown(value: Any) -> str:
    """Return a value as text, shortened to fit in a line."""
    text = "NULL" if value is None else repr(value) if isinstance(value, str | bytes | tuple) else str(value)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}… ({len(text)} characters)"

"""The proof: every row and every column of the Delta tables against PostgreSQL, under one snapshot.

PostgreSQL's side is read by psycopg and Delta's by Spark, none of it by the bridge. Values are compared as what they
are, and as PostgreSQL's text output where Delta holds a string; equal rows count as often as they are there.
Made for the types of the demo's shop: types that psycopg and Arrow give to Python in different ways (real, say) are
not among them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.types.string import TextLoader

from bridge.closing import Closing
from bridge.demo.folder import SUBSCRIPTIONS
from bridge.demo.published_tables import PublishedTable, published_tables
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    Row = tuple[Any, ...]

DIFFERENCES_SHOWN: Final = 5
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
    """One table's comparison.

    Attributes:
        rows: Rows that are published.
        path: The Delta table.
        differences: What differs, a line each, at most `DIFFERENCES_SHOWN` and a last one that counts the rest.
    """

    subscription: str
    table: str
    rows: int
    columns: int
    path: Path
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Nothing differs."""
        return not self.differences


class Snapshot(Closing):
    """One REPEATABLE READ transaction on the publisher; open it when nothing writes any more.

    Attributes:
        lsn: The WAL's flush position then: what the transaction sees is all that committed before.
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
        """The publication's tables."""
        return published_tables(self._connection, publication)

    def rows(self, table: PublishedTable) -> list[Row]:
        """The published rows: strings of PostgreSQL's output where Delta has strings, else Python's values."""
        with self._connection.cursor() as cursor:
            for column in table.columns:
                if delta_type(column.type) == "string":
                    cursor.adapters.register_loader(column.type_oid, TextLoader)
            return [tuple(map(_hashable, row)) for row in table.rows(cursor)]


def prove(spark: SparkSession, snapshot: Snapshot, warehouses: Mapping[str, Path]) -> list[Verdict]:
    """Compare all tables of all subscriptions.

    Args:
        spark: Reads the Delta tables as they are now.
        snapshot: The publisher.
        warehouses: By subscription.
    """
    return [
        _verdict(spark, snapshot, subscription, table, warehouses[subscription] / table.namespace / table.name)
        for subscription, publication in SUBSCRIPTIONS.items()
        for table in snapshot.tables(publication)
    ]


def _verdict(spark: SparkSession, snapshot: Snapshot, subscription: str, table: PublishedTable, path: Path) -> Verdict:
    published = snapshot.rows(table)
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
        differences = compare_rows(names, key, published, delta)
    return Verdict(subscription, table.qualified_name, len(published), len(table.columns), path, tuple(differences))


def delta_type(sql_type: str) -> str:
    """The type of the Delta column that a PostgreSQL type becomes, by the contract's table; both as SQL has them."""
    if sql_type.endswith("[]"):
        return f"array<{delta_type(sql_type.removesuffix('[]'))}>"
    if match := re.fullmatch(r"numeric\((\d+),(\d+)\)", sql_type):
        return f"decimal({match[1]},{match[2]})"
    return _DELTA_TYPES.get(sql_type, "string")


def compare_columns(published: Mapping[str, str], delta: Mapping[str, str]) -> list[str]:
    """What differs in names and types of the columns; their order does not count."""
    return [
        f"column {name} is {published.get(name, 'missing')} in PostgreSQL and {delta.get(name, 'missing')} in Delta"
        for name in {**published, **delta}
        if published.get(name) != delta.get(name)
    ]


def compare_rows(names: Sequence[str], key: Sequence[int], published: Iterable[Row], delta: Iterable[Row]) -> list[str]:
    """What differs in rows, as multisets.

    Args:
        names: The columns' names.
        key: Positions of the key's columns; empty for a table without.
        published: PostgreSQL's rows.
        delta: Delta's.

    Returns:
        A line for each difference, up to `DIFFERENCES_SHOWN`, and one that counts the rest.
    """
    there, here = Counter(published), Counter(delta)
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
    """Lists as tuples, so that rows can be counted."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _where(there: int, here: int) -> str:
    """On which side a row is, how often."""
    if there and here:
        return f"{there}x in PostgreSQL, {here}x in Delta"
    times = max(there, here)
    return f"only in {'PostgreSQL' if there else 'Delta'}{f' ({times}x)' if times > 1 else ''}"


def _named(names: Sequence[str], row: Sequence[Any]) -> str:
    return ", ".join(f"{name} = {_shown(value)}" for name, value in zip(names, row, strict=True))


def _shown(value: Any) -> str:
    """A value for people, not longer than a line should be."""
    text = "NULL" if value is None else repr(value) if isinstance(value, str | bytes | tuple) else str(value)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}… ({len(text)} characters)"

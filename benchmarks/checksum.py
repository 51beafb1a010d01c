"""Count and checksum of a table, computed by PostgreSQL and by Spark from the same texts of its values.

Each server makes a text of each value, by an expression of its own. Both sum a part of the MD5 of each row's texts, so
the order of rows does not matter. It is made for the types of the benchmarks' tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg
    from pyspark.sql import SparkSession

    Columns = Sequence[tuple[str, str]]
    """The columns of a table: name and type, as format_type writes it."""

_DIGITS: Final = 12
"""Hexadecimal digits of the MD5 that are summed: 48 bits, so that the sum of many rows fits."""

_PLAIN: Final = ("{0}::text", "cast({0} AS string)")
_TRIMMED: Final = ("rtrim({0}::text, ' ')", "rtrim({0})")  # ::text drops the blanks of char(n), Delta has them
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "smallint": _PLAIN,
    "integer": _PLAIN,
    "bigint": _PLAIN,
    "numeric": _PLAIN,
    "text": _TRIMMED,
    "character": _TRIMMED,
    "character varying": _TRIMMED,
    "boolean": ("{0}::int::text", "cast(cast({0} AS int) AS string)"),
    # the same number in another text: only a whole number has the same
    "double precision": ("floor({0} * 1024)::bigint::text", "cast(floor({0} * 1024) AS string)"),
    "timestamp with time zone": (
        "(extract(epoch FROM {0}) * 1000000)::bigint::text",
        "cast(unix_micros({0}) AS string)",
    ),
    "timestamp without time zone": (
        "(extract(epoch FROM {0}) * 1000000)::bigint::text",
        "cast(unix_micros(cast({0} AS timestamp)) AS string)",
    ),
}
"""For each type, without its modifier, the expressions of PostgreSQL and of Spark."""

_COLUMNS: Final = """
SELECT tablename, attname, format_type(atttypid, NULL)
FROM pg_publication_tables, pg_attribute
WHERE pubname = %s AND attrelid = format('%%I.%%I', schemaname, tablename)::regclass AND attname = ANY (attnames)
ORDER BY tablename, attnum
"""
Checksum = tuple[int, int]
"""The number of rows, and the sum of their hashes."""


def columns_of(connection: psycopg.Connection[tuple[Any, ...]], publication: str) -> dict[str, list[tuple[str, str]]]:
    """Return the published tables, by name, each with its columns."""
    found: dict[str, list[tuple[str, str]]] = {}
    for table, name, type_ in connection.execute(_COLUMNS.encode(), (publication,)):
        found.setdefault(table, []).append((name, type_))
    return found


def in_postgresql(
    connection: psycopg.Connection[tuple[Any, ...]], tables: Mapping[str, Columns]
) -> dict[str, Checksum]:
    """Return the checksum of each table of a database."""
    found = {}
    for table, columns in tables.items():
        row = connection.execute(postgresql_query(table, columns).encode()).fetchone()
        assert row is not None
        found[table] = (int(row[0]), int(row[1]))
    return found


def in_delta(spark: SparkSession, tables: Mapping[str, Columns], paths: Mapping[str, str]) -> dict[str, Checksum]:
    """Return the checksum of each Delta table; `paths` has where it is."""
    found = {}
    for table, columns in tables.items():
        row = spark.read.format("delta").load(paths[table]).selectExpr(*spark_expressions(columns)).first()
        assert row is not None
        found[table] = (int(row[0]), int(row[1]))
    return found


def postgresql_query(table: str, columns: Columns) -> str:
    """Return the query of a table's count and checksum."""
    texts = ", ".join(f"coalesce({_TEXTS[type_][0].format(name)}, '~')" for name, type_ in columns)
    hashed = f"('x' || left(md5(array_to_string(ARRAY[{texts}], '|')), {_DIGITS}))::bit({4 * _DIGITS})::bigint"
    return f"SELECT count(*), coalesce(sum({hashed}), 0) FROM {table}"


def spark_expressions(columns: Columns) -> tuple[str, str]:
    """Return the same for Spark, as expressions."""
    texts = ", ".join(f"coalesce({_TEXTS[type_][1].format(f'`{name}`')}, '~')" for name, type_ in columns)
    hashed = f"cast(conv(left(md5(concat_ws('|', {texts})), {_DIGITS}), 16, 10) AS decimal(20, 0))"
    return "count(*)", f"coalesce(sum({hashed}), 0)"

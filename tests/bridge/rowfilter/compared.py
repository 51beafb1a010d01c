"""Rows with values of every translated type, and the verdicts of filters on them: the server's and Spark's.

The rows are inserted into a table, copied in binary format and decoded as the initial copy decodes them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from pgbridge.bridge.rowfilter.row_filter import (
    C_COLLATION,
    Collation,
    FilterColumn,
    RowFilter,
    RowFilterError,
    translate,
)
from pgbridge.protocol.bulk.copy import decode_copy_binary
from pgbridge.protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TEXTS = [
    "", " ", "a", "A", "abc", "ABC", "aBc ", " b", "b  ", "a%c", "a_c", "a\\c", "xyzzy", "NSW", "ä", "Äb", "ß", "İ",
    "K", "日本語", "\U0001d518\U0001d52b", "a\nb", "\t", "12", "0", "é", "é", "Straße", "\x01", "'",
    '"', "~", "\U0010ffff",
]  # fmt: skip

TABLE: Mapping[str, tuple[str, Sequence[str]]] = {
    "b": ("boolean", ["t", "f"]),
    "b2": ("boolean", ["t", "f"]),
    "i2": ("smallint", ["0", "1", "-1", "7", "-7", "100", "32767", "-32768", "3"]),
    "i4": ("integer", ["0", "1", "-1", "2", "7", "-7", "100", "2147483647", "-2147483648", "20", "3"]),
    "j4": ("integer", ["0", "1", "-1", "2", "3", "-3", "5", "10", "100"]),
    "i8": ("bigint", ["0", "1", "-1", "7", "9223372036854775807", "-9223372036854775808", "4294967296", "100"]),
    "r": ("real", ["0", "-0", "0.1", "-0.1", "1.5", "16777217", "NaN", "Infinity", "-Infinity", "3.4e38", "1e-45",
                   "2"]),
    "d": ("double precision", ["0", "-0", "0.1", "-0.1", "1.5", "2.5", "-2.5", "NaN", "Infinity", "-Infinity",
                               "1.7976931348623157e308", "5e-324", "2", "0.10000000149011612", "4503599627370497.5"]),
    "n": ("numeric(12,3)", ["0", "1", "1.000", "-1.5", "0.1", "2.5", "-2.5", "999999999.999", "-999999999.999", "7"]),
    "m": ("numeric(38,10)", ["0", "0.1", "-0.1", "1234567890123456789012345678.0123456789", "-5", "1"]),
    "p": ("numeric(37,10)", ["0", "0.0000000001", "0.0000000002", "-0.0000000001", "1", "-5",
                             "123456789012345678901234567.0000000001"]),
    "q": ("numeric(36,18)", ["0", "0.000000000000000001", "-0.000000000000000001", "1", "123456789012345678"]),
    "e": ("double precision", ["0", "1"]),
    "u": ("numeric", ["0", "0.0", "1", "1.000", "-1.5", "-1.50", "0.1", "2.5", "-20", "-3", "100", "99.99", "NaN",
                      "Infinity", "-Infinity", "1e60", "-1e60", "1e-60", "12345678901234567890.12345", "-12", "-12.5"]),
    "t": ('text COLLATE "C"', TEXTS),
    "t2": ('text COLLATE "C"', TEXTS),
    "txt": ("text", TEXTS),
    "v": ('varchar(10) COLLATE "C"', TEXTS),
    "c": ('char(5) COLLATE "C"', ["", "a", "abc", "A", "abcde", "ä", " b", "12"]),
    "x": ("bytea", ["\\x", "\\x00", "\\xff", "\\x7f", "\\x0001", "\\x616263"]),
    "day": ("date", ["2020-01-01", "2020-02-29", "1970-01-01", "1969-12-31", "0001-01-01",
                     "9999-12-31", "2021-01-03", "2020-12-31",
                     "1582-10-10", "2024-12-30"]),
    "ts": ("timestamp", ["2020-01-01 00:00:00", "2020-02-29 12:34:56.789012", "1969-12-31 23:59:59.999999",
                         "9999-12-31 23:59:59.999999", "2020-01-01 00:00:00.000001", "2020-03-01 01:02:33.333333",
                         "1883-11-18 12:03:58", "1582-10-10 01:02:03"]),
    "tz": ("timestamptz", ["2020-01-01 00:00:00+00", "2020-01-01 05:00:00+05", "1969-12-31 23:59:59.999999+00",
                           "9999-12-31 23:59:59+00", "2020-01-01 00:00:00.000001+00"]),
    "clock": ("time", ["00:00:00", "12:34:56", "12:34:56.5", "23:59:59.999999", "24:00:00", "12:34:56.7"]),
    "span": ("interval", ["00:00:00", "1 mon", "30 days", "720:00:00", "1 mon -00:00:00.000001", "29 days 24:00:00",
                          "-1 mons", "-1 mons +30 days", "-1 years -2 mons +3 days -04:05:06.789", "1 year 2 mons",
                          "1 day", "-00:00:01.5", "178956970 years 7 mons", "-2562047788 hours",
                          "1 mon 1 day 00:00:00.1"]),
    "g": ("uuid", ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                   "ffffffff-ffff-ffff-ffff-ffffffffffff", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12"]),
    "ia": ("integer[]", ["{}", "{1}", "{1,2,3}", "{NULL}", "{1,NULL}", "{3,2,1}", "{2,2}", "{100}"]),
    "ta": ('text[] COLLATE "C"', ["{}", "{a}", "{a,b}", '{"NULL",NULL}', '{"","a b"}', "{ABC,abc}"]),
    "j": ("jsonb", ["{}", "[]", "null", "1", '"a"', "true", '{"a": 1}', '{"a": "1"}', '{"a": null}', '{"a": 1.0}',
                    '{"a": "x", "b": {"c": "y", "a": "1"}}', '{"a": 0}',
                    '{"a": "\\u0041\\n\\"\\\\", "ä": "ö"}', '["a", "b", 1]',
                    '{"a": {"b": "1"}}', '{"a": "{\\"b\\": \\"1\\"}"}', '{"a": [1, 2]}', '{"a": true}', '{"a": "true"}',
                    '{"a": 12345678901234567890123456789012345678901234567890.5}', '{"a": "\U0001d518"}', '{"": "e"}',
                    '{"A b.c": "k", "a\'b": "q"}', '["1", 1, null]', '{"b": "a"}', '{"a": 1E+2}', '{"a": ""}']),
    "Odd Name": ("integer", ["0", "1", "2"]),
}  # fmt: skip
"""Column -> its declaration, and values for it in text form."""

COLLATIONS: Mapping[str, Collation] = dict.fromkeys(("t", "t2", "v", "c", "ta"), C_COLLATION)


OIDS = {
    "boolean": 16, "smallint": 21, "integer": 23, "bigint": 20, "real": 700, "double precision": 701, "numeric": 1700,
    "text": 25, "bytea": 17, "date": 1082, "timestamp": 1114, "timestamptz": 1184, "time": 1083, "uuid": 2950,
    "interval": 1186, "integer[]": 1007, "text[]": 1009, "jsonb": 3802, "varchar(10)": 1043, "char(5)": 1042,
    **dict.fromkeys(("numeric(12,3)", "numeric(36,18)", "numeric(37,10)", "numeric(38,10)"), 1700),
}  # fmt: skip
TYPMODS = {"varchar(10)": 14, "char(5)": 9} | {
    f"numeric({digits},{scale})": (digits << 16 | scale) + 4
    for digits, scale in ((12, 3), (36, 18), (37, 10), (38, 10))
}


def columns() -> dict[str, FilterColumn]:
    """The table's columns, made without a server."""
    found = {"id": FilterColumn(resolve(OIDS["integer"], -1))}
    for name, (declaration, _) in TABLE.items():
        type_ = declaration.partition(" COLLATE")[0]
        found[name] = FilterColumn(resolve(OIDS[type_], TYPMODS.get(type_, -1)), COLLATIONS.get(name))
    return found


def refused(expression: str) -> tuple[str, str]:
    """Why a filter is refused, and its text from the place on that the message points to."""
    with pytest.raises(RowFilterError) as caught:
        translate(expression, columns(), table=("public", "rows"))
    return caught.value.reason, expression[caught.value.at :]


@dataclass(frozen=True)
class Rows:
    """The rows, on the server and in Spark."""

    connection: psycopg.Connection[Any]
    columns: Mapping[str, FilterColumn]
    frame: DataFrame
    encoding: str = "UTF8"

    def translate(self, expression: str) -> RowFilter:
        """Translate a filter of the table."""
        return translate(expression, self.columns, table=("public", "rows"), encoding=self.encoding)

    def expected(self, expression: str) -> list[bool] | str:
        """The server's verdict on each row, or the text of its error."""
        query = f'SELECT array_agg(({expression}) IS TRUE ORDER BY "id") FROM "rows"'
        try:
            with self.connection.transaction():
                row = self.connection.execute(query.encode()).fetchone()
        except psycopg.Error as error:
            return str(error)
        assert row
        found: list[bool] = row[0]
        return found

    def refusal(self, expression: str) -> str:
        """The server's error for a publication with the filter; empty if it accepts it."""
        query = f'CREATE PUBLICATION "p" FOR TABLE "rows" WHERE ({expression}) WITH (publish = \'insert\')'
        try:
            with self.connection.transaction(force_rollback=True):
                self.connection.execute(query.encode())
        except psycopg.Error as error:
            return f"{error.diag.message_primary}: {error.diag.message_detail}"
        return ""

    def shown(self, expression: str) -> str:
        """The filter as returned by pg_get_expr."""
        query = f'CREATE PUBLICATION "p" FOR TABLE "rows" WHERE ({expression}) WITH (publish = \'insert\')'
        with self.connection.transaction(force_rollback=True):
            self.connection.execute(query.encode())
            row = self.connection.execute("SELECT rowfilter FROM pg_publication_tables").fetchone()
        assert row
        return str(row[0])

    def check(self, expressions: Sequence[str]) -> None:
        """Compare the verdicts of filters, as written and as returned by pg_get_expr, with the server's."""
        refused = {one: reason for one in expressions if (reason := self.refusal(one))}
        assert refused == {}
        spelled = dict.fromkeys([*expressions, *map(self.shown, expressions)])
        expected = {one: self.expected(one) for one in spelled}
        found = self.verdicts([self.translate(one) for one in spelled])
        wrong = {one: verdicts for one, verdicts in zip(spelled, found, strict=True) if verdicts != expected[one]}
        assert {one: expected[one] for one in wrong} == wrong

    def verdicts(self, filters: Sequence[RowFilter]) -> list[list[bool]]:
        """Spark's verdicts of each filter on each row."""
        from pyspark.sql import functions as F

        found: list[list[bool]] = []
        for start in range(0, len(filters), 50):
            some = filters[start : start + 50]
            columns = [
                F.coalesce(one.to_spark(lambda name: F.col(f"`{name}`")), F.lit(False)).alias(f"f{i}")
                for i, one in enumerate(some)
            ]
            table = self.frame.select("id", *columns).toArrow().sort_by("id")
            found += [table[f"f{i}"].to_pylist() for i in range(len(some))]
        return found


def fill(connection: psycopg.Connection[Any], count: int, seed: int) -> None:
    """Fill a table `rows` with random values."""
    declarations = ", ".join(f'"{name}" {declaration}' for name, (declaration, _) in TABLE.items())
    connection.execute(f'CREATE TABLE "rows" ("id" int, {declarations})'.encode())
    chance = random.Random(seed)
    insert = sql.SQL("INSERT INTO rows VALUES ({})").format(sql.SQL(", ").join([sql.Placeholder()] * (len(TABLE) + 1)))
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL TimeZone = 'UTC'")
        for i in range(count):
            values = [_value(chance, pool, i) for _, pool in TABLE.values()]
            cursor.execute(insert, [str(i), *values])


def make(connection: psycopg.Connection[Any], spark: SparkSession, count: int, seed: int) -> Rows:
    """Fill a table `rows` with random values and copy it to Spark."""
    from pgbridge.bridge.lake.source import as_frame

    fill(connection, count, seed)
    attributes = connection.execute(
        "SELECT attname, atttypid, atttypmod FROM pg_attribute WHERE attrelid = 'rows'::regclass AND attnum > 0"
        " ORDER BY attnum"
    ).fetchall()
    names = [name for name, _, _ in attributes]
    types = [resolve(oid, typmod) for _, oid, typmod in attributes]
    with connection.cursor().copy("COPY rows TO STDOUT (FORMAT binary)") as copy:
        table: pa.Table = decode_copy_binary([bytes(message) for message in copy], types, names)
    columns = {name: FilterColumn(type_, COLLATIONS.get(name)) for name, type_ in zip(names, types, strict=True)}
    return Rows(connection, columns, as_frame(spark, table).localCheckpoint())


def _value(chance: random.Random, pool: Sequence[str], row: int) -> str | None:
    """The values of a pool in its order, then random ones, some of them NULL."""
    if row < len(pool):
        return pool[row]
    return None if chance.random() < 0.12 else chance.choice(pool)

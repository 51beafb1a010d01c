"""Which changes of type leave the values as they are, held against the server's own conversions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from bridge.apply.type_change import Values, common_type, values_after
from protocol.types import TypeInfo, resolve

D = pa.decimal128

SAME = [
    ("smallint", "integer"), ("integer", "bigint"), ("bigint", "integer"), ("integer", "numeric(14,2)"),
    ("integer", "double precision"), ("real", "double precision"), ("numeric(10,2)", "numeric(12,2)"),
    ("numeric(10,2)", "numeric(12,4)"), ("numeric(12,2)", "numeric(10,2)"), ("date", "timestamp"),
    ("text", "varchar(80)"), ("varchar(20)", "varchar(60)"), ("varchar(60)", "text"), ("uuid", "text"),
    ("jsonb", "text"), ("json", "text"), ("timestamp(0)", "timestamp(3)"), ("timestamptz(3)", "timestamptz"),
    ("time(0)", "time"), ("numeric(50,2)", "numeric(60,2)"), ("numeric(50,2)", "numeric"), ("numeric", "text"),
    ("varbit(12)", "varbit(24)"), ("varbit(12)", "varbit"), ("integer[]", "bigint[]"), ("oid", "bigint"),
    ("interval(0)", "interval"),
]  # fmt: skip
OTHER = [
    ("double precision", "real"), ("bigint", "double precision"), ("bigint", "text"), ("timestamp", "timestamp(0)"),
    ("timestamp", "date"), ("timestamp", "timestamptz"), ("numeric(10,2)", "numeric(10,1)"),
    ("numeric(10,2)", "numeric"), ("numeric", "numeric(10,2)"), ("numeric", "numeric(60,2)"), ("text", "uuid"),
    ("text", "jsonb"), ("bytea", "text"), ("inet", "cidr"), ("bit(8)", "bit(16)"), ("uuid", "bytea"),
    ("boolean", "text"), ("integer", "boolean"), ("real", "numeric(10,2)"), ("interval", "interval(0)"),
    ("interval", "text"), ("inet", "text"),
]  # fmt: skip


@pytest.fixture
def resolved(postgresql):
    """What a type's name in SQL resolves to."""

    def of(name):
        cursor = postgresql.execute(f"SELECT NULL::{name} AS x")
        column = cursor.description[0]
        typmod = column._fmod if hasattr(column, "_fmod") else -1
        del typmod
        return resolve(column.type_code, cursor.pgresult.fmod(0))

    return of


def test_values_that_stay(resolved):
    for old, new in SAME:
        assert values_after(resolved(old), resolved(new)) is Values.SAME, (old, new)


def test_values_that_become_others(resolved):
    for old, new in OTHER:
        assert values_after(resolved(old), resolved(new)) is Values.OTHER, (old, new)


def test_padding(resolved):
    for old, new in [("char(5)", "char(10)"), ("varchar(5)", "char(10)"), ("char(5)", "text")]:
        assert values_after(resolved(old), resolved(new)) is Values.PADDED, (old, new)


def test_domains_are_what_they_are_over():
    catalog = {90001: TypeInfo(90001, "positive", "public", "d", 23), 90002: TypeInfo(90002, "word", "public", "d", 25)}
    assert values_after(resolve(23, -1), resolve(90001, -1, catalog)) is Values.SAME
    assert values_after(resolve(90002, -1, catalog), resolve(25, -1)) is Values.SAME
    assert values_after(resolve(90001, -1, catalog), resolve(90002, -1, catalog)) is Values.OTHER


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (pa.int16(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.date32(), pa.timestamp("us"), pa.timestamp("us")),
        (pa.date32(), pa.timestamp("us", "UTC"), None),
        (D(10, 2), D(12, 4), D(12, 4)),
        (D(12, 2), D(12, 4), D(14, 4)),
        (D(12, 2), D(10, 2), D(12, 2)),
        (D(38, 0), D(38, 10), None),
        (pa.int32(), D(8, 2), D(12, 2)),
        (pa.int64(), D(30, 2), D(30, 2)),
        (pa.string(), pa.string(), pa.string()),
        (pa.string(), pa.int32(), None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), None),
    ],
)
def test_the_type_that_holds_both(one, other, common):
    assert common_type(one, other) == common
    assert common_type(other, one) == common

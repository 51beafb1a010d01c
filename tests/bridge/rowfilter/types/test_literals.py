"""Literals have the values that PostgreSQL's input functions return, or are refused.

Intervals are compared with months of 30 days and days of 24 hours, from the least to the greatest.
"""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from pgbridge.bridge.rowfilter.types import literals
from pgbridge.bridge.rowfilter.types.literals import FOREVER, days, nearest_float4, value_of
from pgbridge.bridge.sqltext.refusal import Refused
from tests.bridge.rowfilter.compared import refused

SPELLINGS = {
    "bool": [" TRUE ", "f", "yes", "of", "tru", "0"],
    "int2": [" 12 ", "-32768", "+7"],
    "numeric": ["1e3", " .5", "5.", "-0.10"],
    "float4": ["0.1", "16777217", "3.4028235e38", "1e-45", "1.17549435e-38"],
    "float8": ["0.1", "1e308", "5e-324", "-0"],
    "bytea": ["\\x0aFf", "\\x 00 11", "a\\\\b\\001", ""],
    "uuid": ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}",
             "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11"],
    "date": ["2020-02-29", "0001-01-01", "10000-01-01", "0044-03-15 BC", "1969-12-31", "epoch"],
    "time": ["12:34", "12:34:56.7", "24:00:00"],
}  # fmt: skip


@pytest.mark.parametrize("type_", SPELLINGS)
def test_values_are_the_servers(postgresql, type_):
    """The value, written out again, is the one that the server reads from the same text."""
    for text in SPELLINGS[type_]:
        value = value_of(type_, text, 0)
        if type_ == "date":
            query, given = "SELECT %s::date - '1970-01-01'::date = %s", value
        elif type_ == "bytea":
            query, given = "SELECT %s::bytea = %s", value
        else:
            query, given = f"SELECT %s::{type_} = %s::{type_}", repr(value) if type_ == "float8" else str(value)
        assert postgresql.execute(query, (text, given)).fetchone() == (True,), text


def test_timestamps_are_microseconds(postgresql):
    for text in ("2020-02-29 12:34:56.789012", "1969-12-31T23:59:59.9", "0001-12-31 12:00 BC", "2020-01-01"):
        row = postgresql.execute("SELECT (extract(epoch FROM %s::timestamp) * 1000000)::bigint", (text,)).fetchone()
        assert row == (value_of("timestamp", text, 0),)
    for text in ("2020-02-29 12:34:56+05:30", "2020-01-01 00:00:00Z", "2020-01-01 00:00-08"):
        row = postgresql.execute("SELECT (extract(epoch FROM %s::timestamptz) * 1000000)::bigint", (text,)).fetchone()
        assert row == (value_of("timestamptz", text, 0),)


def test_intervals_are_what_the_server_reads(postgresql):
    texts = ["1 day", "-2 hours 30 minutes", "1 week 01:02:03.5", "-00:00:01", "3 days -04:00", "1 mon 3 days", "2 yrs"]
    for text in (*texts, "1 year -13 months", "5 mins 61 secs", "-1 mons +30 days"):
        row = postgresql.execute("SELECT %s::interval::text", (text,)).fetchone()
        assert row == (value_of("interval", text, 0).text,)


def test_infinity():
    assert value_of("date", "infinity", 0) == FOREVER
    assert value_of("timestamp", "-infinity", 0) == -(2**63)
    assert math.isnan(value_of("float8", "NaN", 0))
    assert value_of("numeric", "-Infinity", 0) == Decimal("-Infinity")


def test_arrays():
    assert value_of("_int4", "{1, NULL,3}", 0) == [1, None, 3]
    assert value_of("_text", '{a,"b,\\"c", "NULL", d e }', 0) == ["a", 'b,"c', "NULL", "d e"]
    assert value_of("_text", " {} ", 0) == []


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("bool", "maybe"), ("bool", ""), ("int2", "32768"), ("int4", "1.0"), ("int4", ""), ("float8", "1e400"),
        ("float4", "1e-60"), ("numeric", "1,5"), ("numeric", "1e2000"), ("uuid", "{a0eebc999c0b4ef8bb6d6bb9bd380a11"),
        ("date", "2021-02-29"), ("date", "now"), ("date", "01/02/2020"), ("date", "0000-01-01"),
        ("date", "4715-01-01 BC"), ("timestamp", "2020-01-01 25:00"), ("timestamp", "2020-01-01 00:00+00"),
        ("timestamptz", "2020-01-01 00:00"), ("timestamptz", "2020-01-01 00:00+16"), ("time", "12:60"),
        ("interval", "1 fortnight"), ("interval", "3000000000 days"), ("interval", ""),
        ("_int4", "1,2"), ("_int4", "{{1},{2}}"), ("_int4", "{1,}"),
        ("bytea", "\\x0"), ("bytea", "\\9"), ("inet", "10.0.0.1"),
    ],
)  # fmt: skip
def test_what_is_not_read(type_, text):
    with pytest.raises(Refused) as caught:
        value_of(type_, text, 7)
    assert caught.value.at == 7


def test_days_and_singles():
    assert days(1970, 1, 1) == 0
    assert days(0, 12, 31) + 1 == days(1, 1, 1)
    assert nearest_float4(Decimal("0.1")) == 0.10000000149011612
    assert nearest_float4(Decimal("1.00000005960464477539062500001")) == 1.0000001192092896  # twice rounded, it is 1


FILTERS = [
    "span > '1 mon 3 days'",
    "span = '30 days'",
    "span <> interval '720 hours'",
    "span <= '-1 mons +30 days'",
    "span in ('1 day', '24:00', '1 year 2 months')",
    "span between '-1 days' and '30 days'",
    "span is distinct from '00:00:00'",
    "coalesce(span, '1 day') > '0 days'",
    "nullif(span, '30 days') is null",
    "case when b then span else '1 year' end >= '1 year'",
    "span = any ('{1 day,\"1 mon\",NULL}')",
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


def test_the_ends_of_the_range(spark):
    from pyspark.sql import functions as F

    texts = ["infinity", "-infinity", "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807", None]
    least = "-178956970 years -8 mons -2147483648 days -2562047788:00:54.775808"
    frame = spark.createDataFrame([(text,) for text in [*texts, least]], "t string")
    found = {row.t: row.span for row in frame.select("t", literals.span(F.col("t")).alias("span")).collect()}
    months, days, usecs = 2**31 - 1, 2**31 - 1, 2**63 - 1
    assert found[texts[2]] == (months * 30 + days) * 86_400_000_000 + usecs
    assert found[least] == (-(2**31) * 31) * 86_400_000_000 - 2**63
    assert found["-infinity"] < found[least]
    assert found["infinity"] > found[texts[2]]
    assert found[None] is None


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("greatest(span, '1 day') = '1 day'", "GREATEST of values of type interval is not translated"),
        (
            "ts + span > '2020-01-01'",
            "adding intervals is translated only for literals of days, hours, minutes and seconds",
        ),
        (
            "span > '1-2'",
            '"1-2" is not translated as type interval; write it in years, months, days, hours, minutes and seconds',
        ),
    ],
)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

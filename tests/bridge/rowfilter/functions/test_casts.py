"""Casts by functions round, cut and pad as on the server."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "c::text = t",
    "j4 - 1::bigint < 3",
    "i2 % 3::smallint = -1",
    "greatest(day, ts) > '2020-01-01'::timestamp",
    "i4::bigint = 7",
    "i4::numeric > 2.5",
    "n::integer = 3",
    "n::int = 2",
    "i4::double precision = 7",
    "i4::real > 1",
    "i8::real = 9223372036854775807::real",
    "n::double precision = 0.1",
    "m::float8 = 0.1",
    "u::float8 > 1",
    "n::numeric(12,1) = 0.1",
    "t::varchar(2) = 'ab'",
    "t::varchar = 'abc'",
    "t::char(3) = 'abc'",
    "(v)::text = 'abc'",
    "b::int = 1",
    "j4::boolean",
    "ts > '2020-01-01 00:00:00'::timestamp without time zone",
    "ts::date = '2020-02-29'",
    "day::timestamp < '2020-01-01'",
    "ts - '01:30:00'::interval < '2020-01-01'",
    "clock < '24:00:00'::time",
    "i4 = 16777217::real",
    "r = 2::numeric",
]

REFUSED = [
    ("d::numeric = 1", "the cast from double precision to numeric is not translated"),
    (
        "n::numeric(40) = 1",
        "numeric(precision, scale) is translated up to a precision of 38, with a scale from 0 to the precision",
    ),
    ("i4::oid = 1", "comparing values of type oid is not translated"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

"""Fields, truncations and arithmetic of dates and timestamps have the server's results."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "date_part('second', ts) = 33.333333",
    "date_part('second', ts) = 33 + 0.333333::float8",
    "date_part('year', day) = 2020",
    "date_part('dow', day) = 0",
    "extract(year from day) = 2020",
    "extract(year from day) = -1",
    "extract(year from day) = -44",
    "date_part('year', ts) = 2020",
    "extract(month from ts) = 2",
    "extract(dow from day) = 3",
    "extract(isodow from day) = 7",
    "extract(doy from day) = 60",
    "extract(week from day) = 53",
    "extract(week from day) = 1",
    "extract(quarter from ts) = 1",
    "extract(hour from ts) = 12",
    "extract(minute from ts) = 34",
    "extract(second from ts) = 56.789012",
    "date_part('second', ts) = 56.789012",
    "extract(second from ts) > 59",
    "extract(day from ts) = 31",
    "date_trunc('month', ts) = '2020-02-01'",
    "date_trunc('year', ts) = '0001-01-01 BC'",
    "date_trunc('week', ts) = '2019-12-30'",
    "date_trunc('hour', ts) = '2020-02-29 12:00:00'",
    "make_date(2020, 2, 29) = day",
    "isfinite(day)",
    "extract(epoch from ts) = 1582979696.789012",
    "extract(epoch from ts) < 0",
    "date_part('epoch', ts) > 1583024553.333332",
    "extract(epoch from day) = 1577836800",
    "extract(milliseconds from ts) = 56789.012",
    "date_part('milliseconds', ts) = 33333.333",
    "date_part('microseconds', ts) = 56789012",
    "extract(isoyear from day) = 2020",
    "extract(isoyear from day) <> extract(year from day)",
    "extract(isoyear from day - 740000) = -6",
    "extract(decade from ts) = 202",
    "extract(decade from day - 740000) between -2 and 5",
    "extract(century from day) in (1, 20, 100)",
    "extract(century from day - 740000) = -1",
    "extract(millennium from day) = 10",
    "extract(millennium from ts - interval '740000 days') = -1",
]

REFUSED = [
    ("extract(julian from ts) = 0", 'the field "julian" of type timestamp without time zone is not translated'),
    ("extract(hour from day) = 0", 'the field "hour" of type date is not translated'),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

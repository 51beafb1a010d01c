"""Arithmetic has the server's results: truncating division, the dividend's sign, the same errors."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "j4 <> 0 AND i2 / j4 > 1",
    "j4 = 0 OR i2 % j4 = 1",
    "CASE WHEN j4 <> 0 THEN i2 / j4 = 7 END",
    "i4 % 3 = 1",
    "i4 / 2 = 3",
    "-j4 = 3",
    "i4 / 3 > -3",
    "i8 % 7 = -1",
    "j4 * j4 > 9",
    "j4 + 5 = 6",
    "d - 1 > 1",
    "r + 1 > 1.5",
    "n + 1 > 2",
    "n * 2 = 5",
    "n - n = 0",
    "n % 2 = 1",
    "p + p > 0",
    "p - p <> 0",
    "p + 0.0000000001 = p - 1",
    "q + q + q > 0",
    "q - i4 = 0",
    "q % 1 > 0",
    "CASE WHEN d IS NULL OR e <> 0 THEN d / e > 1 END",
    "e <> 0 AND d / e BETWEEN 1 AND 3",
    "CASE WHEN j4 > 0 THEN i4 / nullif(j4, 3::float8) > 1.5 END",
    "- n > 1",
    "+ n > 1",
    "day - date '2020-01-01' > 30",
    "day + 1 = '2020-01-01'",
    "ts + interval '1 day' > '2020-01-02'",
    "- 2 + j4 = 3",
    "2 + 3 * j4 = 5",
    "~ i4 & 3 = 1",
    "i2 | 8 = 15",
    "i8 # i4 > 0",
    "ts + null::interval is null",
]

REFUSED = [
    ("i4 + 'a' = 1", 'invalid input syntax for type integer: "a"'),
    ("n / 2 = 1", "the operator / on numeric values is not translated: the scale of its result depends on them"),
    (
        "i4 / nullif(j4, 2.5) > 1",
        "the operator / on numeric values is not translated: the scale of its result depends on them",
    ),
    ("u + 1 = 2", "arithmetic on numeric values without a precision (of at most 38 digits) is not translated"),
    (
        "ts + interval '1 month' > '2020-01-01'",
        "adding intervals is translated only for literals of days, hours, minutes and seconds",
    ),
    (
        "ts - ts > interval '1 day'",
        "the operator timestamp without time zone - timestamp without time zone is not translated",
    ),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

"""Functions on numbers have the server's results, also for special and extreme values."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "to_hex(i4) = 'ffffffff'",
    "to_hex(i8) = 'ffffffffffffffff'",
    "to_hex(i2::int) = '64'",
    "to_hex(i8) = '100000000'",
    "sqrt(abs(d)) = 1.5811388300841898",
    "sqrt(abs(d)) = 'Infinity'",
    "sqrt(i4 + 2147483648) > 46340",
    "sqrt(abs(r)) = 'NaN'",
    "abs(j4) > 2",
    "abs(n) > 2",
    "abs(d) > 2",
    "mod(i4, 3) = 1",
    "floor(n) = 2",
    "ceil(n) = -2",
    "floor(d) = 2",
    "ceil(d) = 3",
    "round(d) = 2",
    "round(n) = 3",
    "round(n) = -3",
    "round(n, 1) = 0.1",
    "trunc(n) = -2",
    "trunc(d) = -2",
    "sign(n) = -1",
    "sign(d) = 0",
    "sign(d) = 1",
]

REFUSED = [
    ("cbrt(d) = 1", "the function cbrt is not translated"),
    ("to_hex(i2) = '1'", "function to_hex(smallint) does not exist or is not unique"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

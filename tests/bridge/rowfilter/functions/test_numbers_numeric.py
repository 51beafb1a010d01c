"""Values of type numeric are compared by value, as decimals and as text."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "n = ANY (ARRAY[1::numeric, 2.5])",
    "u <> ALL ('{1.00,NaN,-1.5}')",
    "n < ANY (ARRAY[i4, 0.1])",
    "m = ANY ('{0.10}')",
    "u = ANY (ARRAY[n, m])",
    "n > 1.5 AND n < 100",
    "n = 1.0000",
    "n > i4",
    "m > n",
    "m = 0.1",
    "u = 1",
    "u = 1.0",
    "u > 0.05",
    "u < -12",
    "u <= -1.5",
    "u >= n",
    "u <> 'NaN'",
    "u = 'NaN'",
    "u < '-Infinity' or u = 'infinity'",
    "u > m",
    "u > i8",
    "u < 12345678901234567890.123456",
    "u between -20 and -1.5",
    "u > d",
    "u is distinct from 1.0",
    "n in (1, 2.5, 0.1)",
    "u in (1, 2.5, 0.1)",
    "case when b then n else 1 end = 1",
    "case when b then u else n end > 1",
    "least(n, i4) < 1",
    "n = '1.5'",
    "n = d",
    "m = i8",
]

REFUSED = [
    ("greatest(u, n) > 1", "GREATEST of values of type numeric is not translated"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

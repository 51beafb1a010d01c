"""Functions on numbers: whole, special and extreme ones."""

from __future__ import annotations

import pytest

from tests.bridge.filter.verdicts import refused

FILTERS = [
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
    ("sqrt(d) = 1", "the function sqrt is not translated"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

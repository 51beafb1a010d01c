"""Rows are compared column by column; the result is NULL where it depends on a NULL."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "(i4, d) > (7, 0)",
    "(i4, t) <= (j4, 'abc')",
    "row(i4) < row(3)",
    "(b, i4, t) >= (b2, j4, t2)",
    "(n, u) < (i4, 1)",
    "(i4, null) < (7, 1)",
    "(span, i4) < ('1 mon', j4)",
    "(i4, t) IS DISTINCT FROM (1, 'a')",
    "(i4, b) IS NOT DISTINCT FROM (j4, b2)",
    "(i4, t) IN ((1, 'a'), (j4, t2), (7, null))",
    "(i4, t) NOT IN ((1, 'a'), (7, null))",
    "(i4, j4) IN ((1, 2))",
    "(i4, j4) BETWEEN (0, 1) AND (7, 2)",
    "(i4, j4) IS NULL",
    "row(i4, j4, t) IS NOT NULL",
    "NOT (i4, j4) IS NULL",
    # what comes behind what decides is not computed
    "i4 <> 0 AND (i4, 7 / i4) > (0, 0) OR i4 = 0 AND (i4, 7 / (j4 - j4)) > (-1, 0)",
]
REFUSED = [
    ("(i4, j4) < (1, 2, 3)", "unequal number of entries in row expressions"),
    ("(i4, j4) = i4", "unequal number of entries in row expressions"),
    ("(i4, j4) ~~ ('a', 'b')", "rows are not compared by the operator ~~"),
    ("(i4, (j4, b)) = (1, (2, true))", "a row of values is translated only where it is compared with another row"),
    ("(txt, i4) < ('a', 1)", "the order of text depends on collation"),
    ("(i4, t) < (1, 2)", "operator does not exist: text < integer"),
    ("- (i4, j4) = 1", "a row of values is translated only where it is compared with another row"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0].startswith(reason)

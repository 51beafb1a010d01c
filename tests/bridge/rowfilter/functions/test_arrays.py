"""Containment, overlap, ANY and ALL have the server's results, also with NULLs and without elements."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "array_upper(ia, 1) = 3",
    "array_lower(ta, 1) = 1",
    "array_lower(ia, 1) is null",
    "array_upper(ia, 2) is null",
    "array_ndims(ia) = 1",
    "array_ndims(ta) is null",
    "i4 = any ('{1,7}')",
    "i4 = any (array[1,7])",
    "i4 = any (ia)",
    "j4 = any (ia)",
    "j4 <> all (ia)",
    "j4 < any (ia)",
    "j4 >= all (ia)",
    "t = any (ta)",
    "t = any (array['a','abc'])",
    "v = any (array['a','abc'])",
    "t <> all ('{a,\"\",abc}'::text[])",
    "i4 = any ('{}'::int[])",
    "i4 = all ('{}'::int[])",
    "j4 = any ('{1,NULL}')",
    "ia @> array[1]",
    "ia @> array[1,2]",
    "ia @> '{}'",
    "ia <@ array[1,2,3]",
    "ia && array[2,5]",
    "ia @> array[null]::int[]",
    "ia = array[1]",
    "ia <> '{1,NULL}'",
    "ia = '{NULL}'",
    "ta @> array['a']",
    "ta @> '{a}'",
    "ta && '{b,\"a b\"}'",
    "array_length(ia, 1) = 1",
    "array_length(ia, 1) is null",
    "array_length(ia, 2) is null",
    "cardinality(ia) = 0",
    "cardinality(ta) > 1",
    "ta = '{a,b}'",
]

REFUSED = [
    ("t = any(t2)", "op ANY/ALL (array) requires array on right side"),
    ("i2 = any('{40000}')", 'value "40000" is out of range for type smallint'),
    ("ia = '[0:1]={1,2}'", 'an array literal with bounds is not translated: "[0:1]={1,2}"'),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

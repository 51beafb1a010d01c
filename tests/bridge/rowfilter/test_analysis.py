"""Expressions have PostgreSQL's types, call what PostgreSQL would call, or are refused."""

from __future__ import annotations

import pytest

from pgbridge.bridge.sqltext.refusal import ONLY_SIMPLE
from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "r in (0.1, 1.5)",
    "r in (0.1)",
    "b <> true",
    "b is true",
    "b is not true",
    "b is false",
    "b is unknown",
    "b is not unknown",
    "b is null",
    "i4 is not null",
    "b is distinct from b2",
    "i4 is distinct from j4",
    "i4 is not distinct from null",
    "t is distinct from 'a'",
    "r is not distinct from 'NaN'",
    "c is distinct from 'a'",
    "i4 in (1, 7, -7)",
    "i4 not in (1, 7, -7)",
    "i4 in (1, null)",
    "i4 not in (1, null)",
    "i4 in (1, j4)",
    "t in ('a', 'abc', 'ä')",
    "c in ('a', 'abc')",
    "t not in ('a', t2)",
    "i4 in (1, 2.5)",
    "day in ('2020-01-01', '1970-01-01')",
    "i4 between 0 and 10",
    "i4 not between 0 and 10",
    "i4 between symmetric 10 and 0",
    "i4 not between symmetric 10 and j4",
    "t between 'a' and 'b'",
    "case when i4 > 0 then true when i4 < 0 then false end",
    "case i4 when 1 then 'one' when 7 then 'seven' else 'x' end = 'one'",
    "case when b then i4 else 1.5 end > 1",
    "coalesce(i4, j4, 0) > 1",
    "coalesce(t, t2, '') = ''",
    "coalesce(b, false)",
    "nullif(i4, 1) is null",
    "nullif(t, '') is null",
    "nullif(i4, 1.0) = 7",
    "nullif(c, t) LIKE 'ab%'",
    "nullif(c, t) || '.' = 'abc.'",
    "greatest(i4, j4) > 5",
    "least(i4, j4, null) < 0",
    "greatest(d, 0.5) = 'NaN'",
    "greatest(t, 'b') = 'b'",
    "(i4, t) = (1, 'A')",
    "(i4, t) <> (1, 'A')",
    "row(i4, b) = row(7, true)",
    "rows.i4 = 1 and public.rows.t = 'A'",
    "true",
    "null",
    "i4 > 1 is true",
    "(((i4 = 1)))",
    "r in (1, 2)",
]

REFUSED = [
    (
        "v in ('a', 'b')",
        ONLY_SIMPLE,
    ),
    (
        "ia[1] = 1",
        ONLY_SIMPLE,
    ),
    (
        "i4::text = '1'",
        ONLY_SIMPLE,
    ),
    (
        "t::int = 1",
        ONLY_SIMPLE,
    ),
    (
        "r = any(array[0.1, 0.2])",
        ONLY_SIMPLE,
    ),
    ("now() > '2020-01-01'", "User-defined or built-in mutable functions are not allowed."),
    ("random() > 0.5", "User-defined or built-in mutable functions are not allowed."),
    (
        "current_date > day",
        ONLY_SIMPLE,
    ),
    ("date_trunc('month', day) = '2020-01-01'", "User-defined or built-in mutable functions are not allowed."),
    ("day::timestamptz > '2020-01-01 00:00:00+00'", "User-defined or built-in mutable functions are not allowed."),
    ("t || i4 = 'x'", "User-defined or built-in mutable functions are not allowed."),
    ("xmin is null", "System columns are not allowed."),
    (
        "(select true)",
        ONLY_SIMPLE,
    ),
    ("nosuch = 1", 'column "nosuch" does not exist'),
    ("i4", "argument of PUBLICATION WHERE must be type boolean, not type integer"),
    ("i4 = t", "operator does not exist: integer = text"),
    ("ts > tz", "User-defined or built-in mutable functions are not allowed."),
    ("foo(i4) = 1", "the function foo is not translated"),
    ("concat(t, 'a') = 'a'", "User-defined or built-in mutable functions are not allowed."),
    ("count(*) > 1", "the prefix operator * is not translated"),
    ("to_char(ts, 'YYYY') = '2020'", "User-defined or built-in mutable functions are not allowed."),
    ("tz + interval '1 day' > '2020-01-01 00:00:00+00'", "User-defined or built-in mutable functions are not allowed."),
    ("rows.rows is null", 'column "rows" does not exist'),
    ("other is null", 'column "other" does not exist'),
    ("case when i4 then true end", "argument of CASE/WHEN must be type boolean, not type integer"),
    ("i4 and b", "argument of AND must be type boolean, not type integer"),
    ("not i4", "argument of NOT must be type boolean, not type integer"),
    ("coalesce(i4, t) = 1", "COALESCE types integer and text cannot be matched"),
    ("length(i4) = 1", "function length(integer) does not exist or is not unique"),
    ("abs(t) = 1", "function abs(text) does not exist or is not unique"),
    ("age(ts) > '1 day'", "User-defined or built-in mutable functions are not allowed."),
    ("t is true", "argument of IS TRUE must be type boolean, not type text"),
    ("mod(d, 2) = 1", "function mod(double precision, integer) does not exist or is not unique"),
    (
        "i4 = all (select 1)",
        ONLY_SIMPLE,
    ),
    (
        "exists(select 1)",
        ONLY_SIMPLE,
    ),
    ("nullif(i4, 't') = 1", 'invalid input syntax for type integer: "t"'),
    ("least(c, 'b') = 'a'", "LEAST of values of type character is not translated"),
    ("date(ts) = '2020-01-01'", "the function date is not translated"),
    ("text(v) = 'a'", "the function text is not translated"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason

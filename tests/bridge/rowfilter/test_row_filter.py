"""Row filters have the server's verdicts, or are refused at once; both are checked against the server."""

from __future__ import annotations

import random

import pytest

from pgbridge.bridge.rowfilter.row_filter import FilterColumn, RowFilterError, translate
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.protocol.values.pg_type import TypeInfo
from pgbridge.protocol.values.types import resolve
from tests.bridge.rowfilter import compared, test_analysis
from tests.bridge.rowfilter.random_filters import Filters

SIMPLE = "Only columns, constants, built-in operators, built-in data types, built-in collations, and immutable"
LITERALS = [
    '"Odd Name" = 1',
    r"t = E'a\nb'",
    r"""t = E'\u0061\ud835\udd18' or U&"t" = U&'\0061\+01D518\D835\DD2B'""",
    r"""U&"!0069!0034" UESCAPE '!' = 7 and t <> U&'?0061' /* c */ uescape '?'""",
    r"""U&"Odd\0020Name" = 1""",
    "t = 'a' -- continued\n  'bc'",
    "t = $$'$$",
    "t = $q$abc$q$",
    "i4 = 1 /* comment */",
]
RAISING = [
    ("i4 / (j4 - j4) = 1", "division by zero"),
    ("i4 % (j4 - j4) = 1", "division by zero"),
    ("i4 + 2147483647 > 0 OR i4 - 2147483647 > 0", "integer out of range"),
    ("-i2 > 0", "smallint out of range"),
    ("i8 * 2 > 0", "bigint out of range"),
    ("d * 2 > 0", "value out of range: overflow"),
    ("d / 0 > 1", "division by zero"),
    ("d * 0.1 > 1", "value out of range: underflow"),
    ("i8::int > 0", "integer out of range"),
    ("d::bigint = 1", "bigint out of range"),
    ("CASE WHEN e = 1 THEN (e + 9223372036854775807)::bigint = 1 END", "bigint out of range"),
    ("d::real > 1", "value out of range"),
    ("n::smallint = 1", "smallint out of range"),
    ("n::numeric(5,2) > 1", "numeric field overflow"),
    ("substr(t, 1, j4) = 'a'", "negative substring length not allowed"),
    ("abs(i4) > 1", "integer out of range"),
    ("make_date(2020, 13, 1) = day", "date field value out of range"),
    ("day + 2147483647 > day", "date out of range"),
    ("split_part(t, 'a', j4) = ''", "field position must not be zero"),
    ("overlay(t placing t2 from j4) = ''", "negative substring length not allowed"),
    ("sqrt(d) > 1", "cannot take square root of a negative number"),
    ("repeat(t, 1073741824) = ''", "requested length too large"),
    ("rpad(t, 2147483647) = ''", "requested length too large"),
]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))])
def test_random_filters(rows, seed):
    """Any filter of the grammar has the server's verdict on every row, unless the server raises an error."""
    filters = Filters(random.Random(seed))
    expressions = list(dict.fromkeys(filters.condition(2) for _ in range(60)))
    expected = {one: rows.expected(one) for one in expressions}
    computed = [one for one in expressions if isinstance(expected[one], list)]
    assert len(computed) > len(expressions) * 0.9
    # a test of nothing but constants would pass whatever the translation does
    assert sum(len(set(expected[one])) == 2 for one in computed) > len(computed) * 0.6
    found = rows.verdicts([rows.translate(one) for one in computed])
    wrong = {one: verdict for one, verdict in zip(computed, found, strict=True) if verdict != expected[one]}
    assert {one: expected[one] for one in wrong} == wrong


def test_random_filters_are_taken_by_the_server(rows):
    """The server accepts each translated filter for a publication, and its own spelling is translated, too."""
    filters = Filters(random.Random(4))
    for _ in range(300):
        expression = filters.condition(2)
        assert not rows.refusal(expression), expression
        assert rows.translate(rows.shown(expression)).columns == rows.translate(expression).columns


@pytest.mark.parametrize(("expression", "message"), RAISING)
def test_where_the_server_raises_so_do_we(rows, expression, message):
    """There is no verdict on such a row: the walsender of a publication with the filter stops at it."""
    assert message in rows.expected(expression)
    with pytest.raises(Exception, match=r"row filter|ARITHMETIC_OVERFLOW|BY_ZERO|OVERFLOW|OUT_OF_RANGE|DATETIME"):
        rows.verdicts([rows.translate(expression)])


def test_what_the_server_refuses_in_its_own_words(rows):
    """The reasons of `check_simple_rowfilter_expr_walker` are those that the server gives."""
    ours = [
        (one, reason)
        for one, reason in test_analysis.REFUSED
        if reason.endswith("are not allowed.") or SIMPLE in reason
    ]
    assert len(ours) > 10
    for expression, reason in ours:
        assert reason in rows.refusal(expression), expression


def test_literals_and_comments_are_read_as_the_server_reads_them(rows):
    rows.check(LITERALS)


def test_columns_are_those_it_depends_on():
    filter_ = translate(
        '(i4 > 1 OR "Odd Name" = 2) AND public.rows.t IS NOT NULL',
        compared.columns(),
        table=("public", "rows"),
    )
    assert filter_.columns == {"i4", "Odd Name", "t"}


def test_message_shows_the_place():
    with pytest.raises(RowFilterError) as caught:
        translate("i4 > 1 AND\n  now() > '2020-01-01'", compared.columns())
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value).splitlines() == [
        "invalid publication WHERE expression: User-defined or built-in mutable functions are not allowed.",
        "  now() > '2020-01-01'",
        "  ^",
    ]


def test_user_defined_types_are_refused_where_they_are_used():
    mood = resolve(70_000, -1, {70_000: TypeInfo(70_000, "mood", "public", "e")})
    columns = {**compared.columns(), "mood": FilterColumn(mood)}
    assert translate("i4 = 1", columns).columns == {"i4"}
    with pytest.raises(RowFilterError, match=r"User-defined types are not allowed\.\nmood = 'sad'\n\^"):
        translate("mood = 'sad'", columns)


def test_deep_nesting_is_refused():
    with pytest.raises(RowFilterError, match="nested too deeply"):
        translate("(" * 5000 + "b" + ")" * 5000, compared.columns())

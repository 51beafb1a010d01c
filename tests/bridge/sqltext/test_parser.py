"""Operators bind as in PostgreSQL, and what is no expression of its is none here."""

from __future__ import annotations

import re

import pytest

from bridge.sqltext.parser import parse
from bridge.sqltext.refusal import Refused
from tests.bridge.rowfilter.compared import refused

REFUSED = [
    ("i4 between 1 and", "syntax error at end of input"),
    ("i4 = 1 1", "syntax error"),
    ("i4 = 1; drop table rows", "syntax error"),
    ("i4 is distinct from", "syntax error at end of input"),
    ("i4 < j4 < i2", "syntax error"),
    ("t = 'a' or", "syntax error at end of input"),
]


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("NOT a = b IS NULL", "NOT ((a = b) IS NULL)"),
        ("a < b IS TRUE", "(a < b) IS TRUE"),
        ("- 2 ^ 2", "(-2) ^ 2"),
        ("- a::int", "- (a::int)"),
        ("a || b + 1 || c", "(a || (b + 1)) || c"),
        ("a + b * c - d", "(a + (b * c)) - d"),
        ("a LIKE b || 'x' AND c OR d", "((a LIKE (b || 'x')) AND c) OR d"),
        ("a = b ~ c", "a = (b ~ c)"),
        ("a -> 'b' ->> 'c' = 'd'", "((a -> 'b') ->> 'c') = 'd'"),
        ("a BETWEEN 1 AND 2 AND b", "(a BETWEEN 1 AND 2) AND b"),
        ("a IS DISTINCT FROM b AND c", "(a IS DISTINCT FROM b) AND c"),
        ("a IN (1) = b", "(a IN (1)) = b"),
        ("a = ANY (b) AND c", "(a = ANY (b)) AND c"),
        ("a <> -1", "a != - 1"),
        ('a COLLATE "C" || b', '(a COLLATE "C") || b'),
        ("a = NOT b", "a = (NOT b)"),
        ("a NOTNULL", "a IS NOT NULL"),
        ("CAST(a AS int)", "a::integer"),
        ("int '1'", "'1'::int4"),
    ],
)  # fmt: skip
def test_precedence(text, same):
    assert shape(text) == shape(same)


@pytest.mark.parametrize(
    "text",
    ["a < b < c", "a = b = c", "a LIKE b LIKE c", "a BETWEEN 1 AND 2 BETWEEN c AND d", "a b", "", "(a", "a)",
     "CASE END",
     "a IS", "a NOT b", "select", "a IN ()", "ARRAY[1", "a::", "f(a,)", "a.", "! a", "a IS DISTINCT b"],
)  # fmt: skip
def test_no_expression(text):
    with pytest.raises(Refused):
        parse(text)


def shape(text: str) -> str:
    """The parse tree without its places."""
    return re.sub(r"\bat=\d+(, )?", "", repr(parse(text)))

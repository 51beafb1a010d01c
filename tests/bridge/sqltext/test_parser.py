"""Operators have PostgreSQL's precedence, and what PostgreSQL does not parse is refused."""

from __future__ import annotations

import re

import psycopg
import pytest

from pgbridge.bridge.sqltext.parser import parse
from pgbridge.bridge.sqltext.refusal import Refused
from tests.bridge.rowfilter.compared import refused

REFUSED = [
    ("i4 between 1 and", "syntax error at end of input"),
    ("i4 = 1 1", "syntax error"),
    ("i4 = 1; drop table rows", "syntax error"),
    ("i4 is distinct from", "syntax error at end of input"),
    ("i4 < j4 < i2", "syntax error"),
    ("t = 'a' or", "syntax error at end of input"),
    ("t = B'1'", "B'…' literals are not translated"),
    ("t = N'1'", "N'…' literals are not translated"),
    ("$1 = 1", "there is no parameter $1"),
    ("i4 = 1abc", "trailing junk after numeric literal"),
    ("1_000 = i4", "before version 16, PostgreSQL reads this number differently; write plain decimal digits"),
    ("0x10 = i4", "before version 16, PostgreSQL reads this number differently; write plain decimal digits"),
    (
        r"t = E'\xc3\xa4'",
        r"what an escape beyond ASCII means depends on the encoding; write the character or \u…",
    ),
    ("t = mood 'sad'", "User-defined types are not allowed."),
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


def test_keywords_name_columns_as_on_the_server(postgresql):
    """Each keyword that names a column there, unquoted, does so here; no reserved one does."""
    postgresql.autocommit = True
    wrong = []
    for (word,) in postgresql.execute("SELECT word FROM pg_get_keywords() WHERE catcode <> 'R'").fetchall():
        query = f'SELECT FROM (SELECT 1 AS "{word}") AS t WHERE ({word} = 1) AND t.{word} = 1'
        try:
            postgresql.execute(query.encode())
            there = True
        except psycopg.Error:
            there = False
        try:
            here = shape(f"({word} = 1) AND t.{word} = 1").count("ColumnName") == 2
        except Refused:
            here = False
        wrong += [word] * (here != there)
    assert wrong == []


def shape(text: str) -> str:
    """The parse tree without its places."""
    return re.sub(r"\bat=\d+(, )?", "", repr(parse(text)))

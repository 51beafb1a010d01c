"""Literals, names and comments are read as scan.l reads them."""

from __future__ import annotations

import pytest

from bridge.sqltext.lexer import tokens
from bridge.sqltext.refusal import Refused
from tests.bridge.rowfilter.compared import refused

REFUSED = [
    ("t = B'1'", "B'…' literals are not translated"),
    ("$1 = 1", "there is no parameter"),
    ("i4 = 1abc", "trailing junk after numeric literal (only plain decimal digits are read)"),
    ("1_000 = i4", "trailing junk after numeric literal (only plain decimal digits are read)"),
    ("0x10 = i4", "trailing junk after numeric literal (only plain decimal digits are read)"),
    (r"t = U&'\0061'", "U& literals are not translated; write the characters or E'\\u…'"),
]


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Abc "Abc" "a""b"', ["abc", "Abc", 'a"b']),
        ("'it''s' E'\\n\\'\\u0041\\101' $$a'b$$ $x$$$$x$", ["it's", "\n'AA", "a'b", "$$"]),
        ("'a'\n  'b' 'c'", ["ab", "c"]),
        ("1 .5 1.5e-3 2.", ["1", ".5", "1.5e-3", "2."]),
        ("a-1=-1 <>-2 @-3 !=b", ["a", "-", "1", "=", "-", "1", "<>", "-", "2", "@-", "3", "<>", "b"]),
        ("a/* /* */ */b--c\nd", ["a", "b", "d"]),
        ("a::int[1]", ["a", "::", "int", "[", "1", "]"]),
        ("ÄB", ["Äb"]),
    ],
)
def test_tokens(text, expected):
    assert [token.text for token in tokens(text)] == [*expected, ""]


@pytest.mark.parametrize(
    "text",
    [
        "'a",
        '"a',
        "$$a",
        "/* a",
        '""',
        "1a",
        "E'\\u00'",
        "E'\\xff'",
        "E'\\ud800'",
        "X'1'",
        "U&'a'",
        "$1",
        "a" * 64,
        "\\",
    ],
)
def test_what_is_not_read(text):
    with pytest.raises(Refused):
        tokens(text)

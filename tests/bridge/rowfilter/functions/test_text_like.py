"""LIKE and ILIKE match what they match on the server, or are refused."""

from __future__ import annotations

import pytest

from pgbridge.bridge.rowfilter.functions.text import like_escaped, pattern_of
from pgbridge.bridge.sqltext.refusal import Refused
from tests.bridge.rowfilter.compared import refused

FILTERS = [
    "c like 'a%'",
    "c like 'a'",
    "v like 'a%'",
    "t like 'a%'",
    "t like '%c'",
    "t like '%b%'",
    "t like 'a_c'",
    r"t like 'a\%c'",
    r"t like 'a\\c'",
    "t like 'a!%c' escape '!'",
    "t not like '%a%'",
    "t like ''",
    "t like '%'",
    "t like '_'",
    "t like '%%'",
    "t like '_%_'",
    "t ilike 'ABC'",
    "t ilike '%B%'",
    "t ilike 'a_c'",
    "t ilike 'ä'",
    "t not ilike 'k'",
    "txt like '%b%'",
]

REFUSED = [
    (
        "txt ilike 'a'",
        'case depends on collation "default", which only the server knows; ILIKE … COLLATE "C" is translated',
    ),
    (r"t like 'a\'", "LIKE pattern must not end with escape character"),
    ("t like t2", "a pattern that is not a literal is not translated"),
    ("t similar to 'a'", "SIMILAR is not translated"),
    ("t like 'a%' escape 'xx'", "invalid escape string: Escape string must be empty or one character."),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason


def test_ilike_and_like_agree_with_the_server(rows):
    patterns = ["ABC", "a%", "%C", "%b%", "", "%", "_B_", "ä", "a\\_c", "a.c", "%\\%%"]
    rows.check([f"t {operator} '{one}'" for one in patterns for operator in ("LIKE", "ILIKE", "NOT ILIKE")])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc", ("equals", "abc")), ("a%", ("starts", "a")), ("%a", ("ends", "a")), ("%a%", ("contains", "a")),
        ("", ("equals", "")), ("a\\%", ("equals", "a%")), ("a\\\\", ("equals", "a\\")),
        ("a_%", ("matches", r"(?s)\Aa..*\z")), ("a%b", ("matches", r"(?s)\Aa.*b\z")),
        ("a._", ("matches", r"(?s)\Aa\x{2e}.\z")),
    ],
)  # fmt: skip
def test_patterns(pattern, expected):
    assert pattern_of(pattern) == expected


def test_escapes_of_like():
    assert like_escaped("a!%b!!", "!") == "a\\%b\\!"
    assert like_escaped("a\\%", "") == "a\\\\%"
    with pytest.raises(Refused, match="must not end with escape"):
        like_escaped("a!", "!")

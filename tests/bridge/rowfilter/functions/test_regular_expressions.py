"""LIKE and regular expressions match in Java what they match on the server, or are refused."""

from __future__ import annotations

import pytest

from bridge.rowfilter.functions.patterns import like, like_escaped, regular_expression
from bridge.sqltext.refusal import Refused
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
    "t ~ '^a'",
    "t ~ 'b$'",
    "t ~ '^[a-c]+$'",
    "t !~ '[^a-z]'",
    "t ~* 'ABC'",
    "t ~ '.'",
    "t ~ '^.$'",
    r"t ~ '\d'",
    r"t ~ '^\w+$'",
    r"t ~ '\s'",
    "t ~ 'a|b'",
    "t ~ '(ab|x)y?z{2}'",
    "t ~ ''",
    "txt ~ '^[a-zä]+$'",
    "txt like '%b%'",
    "t ~ '[[:upper:]]'",
    "t !~* '[a-c]'",
    "v ~ '^a'",
]

REFUSED = [
    ("txt ilike 'a'", 'case by collation "default" is the server\'s alone; ILIKE … COLLATE "C" can be had'),
    ("txt ~* 'a'", "case is the server's collation's; case-insensitive matching is translated by collation C only"),
    (r"txt ~ '\w'", "\\w is by the server's collation; it is translated by collation C only"),
    (r"t ~ '(a)\1'", "\\1 in the regular expression '(a)\\\\1' is not translated"),
    ("t ~ 'a(?=b)'", "(? in the regular expression 'a(?=b)' is not translated"),
    (r"t like 'a\'", "LIKE pattern must not end with escape character"),
    ("t like t2", "a pattern that is not a literal is not translated"),
    ("t similar to 'a'", "SIMILAR is not translated"),
    (r"x like '\x00'", "the operator bytea ~~ bytea is not translated"),
    ("t ~ '['", "invalid regular expression: '[' ends too early"),
    ("t ~ 'a{3,1}'", "invalid regular expression: invalid repetition count(s) in 'a{3,1}'"),
    ("t ~ '***=a'", "directors (***) are not translated"),
    ("t like 'a%' escape 'xx'", "invalid escape string: Escape string must be empty or one character."),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc", ("equals", "abc")), ("a%", ("starts", "a")), ("%a", ("ends", "a")), ("%a%", ("contains", "a")),
        ("", ("equals", "")), ("a\\%", ("equals", "a%")), ("a\\\\", ("equals", "a\\")),
        ("a_%", ("matches", r"(?s)\Aa..*\z")), ("a%b", ("matches", r"(?s)\Aa.*b\z")),
        ("a._", ("matches", r"(?s)\Aa\x{2e}.\z")),
    ],
)  # fmt: skip
def test_like(pattern, expected):
    assert like(pattern) == expected


def test_escapes_of_like():
    assert like_escaped("a!%b!!", "!") == "a\\%b\\!"
    assert like_escaped("a\\%", "") == "a\\\\%"
    with pytest.raises(Refused, match="must not end with escape"):
        like_escaped("a!", "!")


@pytest.mark.parametrize(
    "pattern",
    ["(a", "a)", "*a", "a**", "^*", "(?=a)", "(?i)a", "\\1", "\\y", "[[.a.]]", "[]a]", "[b-a]", "a{2,1}", "a{", "a{,2}",
     "[a", "a\\", "[[:nosuch:]]", "***:a", "[a-\\d]", "a{256}"],
)  # fmt: skip
def test_what_is_no_common_expression(pattern):
    with pytest.raises(Refused):
        regular_expression(pattern, any_case=False, ascii_types=True)


def test_types_of_characters_need_collation_c():
    assert regular_expression(r"\d[^\w.]", any_case=True, ascii_types=True) == r"(?is)[0-9][^A-Za-z0-9_\x{2e}]"
    for pattern in (r"\d", "[[:alpha:]]"):
        with pytest.raises(Refused, match="collation"):
            regular_expression(pattern, any_case=False, ascii_types=False)
    with pytest.raises(Refused, match="case"):
        regular_expression("a", any_case=True, ascii_types=False)

"""Regular expressions match in Java what they match on the server, or are refused."""

from __future__ import annotations

import pytest

from pgbridge.bridge.rowfilter.functions.regular_expressions import regular_expression
from pgbridge.bridge.sqltext.refusal import Refused
from tests.bridge.rowfilter.compared import refused

FILTERS = [
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
    "t ~ '[[:upper:]]'",
    "t !~* '[a-c]'",
    "v ~ '^a'",
]

REFUSED = [
    ("txt ~* 'a'", 'case depends on the collation, which only the server knows; it is translated in collation "C"'),
    (r"txt ~ '\w'", '\\w depends on the collation, which only the server knows; it is translated in collation "C"'),
    (r"t ~ '(a)\1'", "\\1 in the regular expression '(a)\\\\1' is not translated"),
    ("t ~ 'a(?=b)'", "(? in the regular expression 'a(?=b)' is not translated"),
    (r"x like '\x00'", "the operator bytea ~~ bytea is not translated"),
    ("t ~ '['", "invalid regular expression: '[' ends too early"),
    ("t ~ 'a{3,1}'", "invalid regular expression: invalid repetition count(s) in 'a{3,1}'"),
    ("t ~ '***=a'", "directors (***) are not translated"),
]


def test_verdicts_are_the_servers(rows):
    rows.check(FILTERS)


@pytest.mark.parametrize(("expression", "reason"), REFUSED)
def test_what_is_refused(expression, reason):
    assert refused(expression)[0] == reason


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

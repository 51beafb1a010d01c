"""Patterns of LIKE with case and collation, and what has no translation."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused


def test_ilike_and_like_agree_with_the_server(rows):
    patterns = ["ABC", "a%", "%C", "%b%", "", "%", "_B_", "ä", "a\\_c", "a.c", "%\\%%"]
    rows.check([f"t {operator} '{one}'" for one in patterns for operator in ("LIKE", "ILIKE", "NOT ILIKE")])


@pytest.mark.parametrize(
    ("expression", "reason", "place"),
    [
        ("b AND cbrt(d) = 1", "the function cbrt is not translated", "cbrt(d)"),
        ("x LIKE '\\x00'", "the operator bytea ~~ bytea is not translated", "LIKE"),
        ("t LIKE t2", "a pattern that is not a literal is not translated", "t2"),
        ("t LIKE 'a%' ESCAPE 'xx'", "invalid escape string: Escape string must be empty or one character.", "ESCAPE"),
    ],
)
def test_what_is_not_translated(expression, reason, place):
    found, at = refused(expression)
    assert found == reason
    assert at.startswith(place)

"""Operators and functions without a translation are refused, each at its place."""

from __future__ import annotations

import pytest

from tests.bridge.rowfilter.compared import refused


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

"""The message shows the line of the place, cut if it is long, and a caret below the place."""

from __future__ import annotations

from pgbridge.bridge.sqltext.refusal import RowFilterError


def test_long_line_is_cut_around_the_place():
    expression = "x" * 200 + "HERE" + "y" * 200
    shown = str(RowFilterError(expression, 200, "why")).splitlines()
    assert shown[0] == "invalid publication WHERE expression: why"
    assert shown[1].startswith("…x")
    assert shown[1].endswith("y…")
    assert shown[1][shown[2].index("^") :].startswith("HERE")


def test_place_behind_the_end():
    error = RowFilterError("a =", 3, "syntax error at end of input", hint="go on")
    assert str(error).splitlines()[1:] == ["a =", "   ^", "HINT:  go on"]
    assert (error.expression, error.at, error.reason) == ("a =", 3, "syntax error at end of input")

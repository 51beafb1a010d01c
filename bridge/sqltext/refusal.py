"""A row filter that is not taken: with the expression, the place in it and the reason."""

from __future__ import annotations

from typing import Final

from bridge.errors import ConfigError

ONLY_SIMPLE: Final = (
    "Only columns, constants, built-in operators, built-in data types, built-in collations, "
    "and immutable built-in functions are allowed."
)
USER_DEFINED_TYPES: Final = "User-defined types are not allowed."
MUTABLE_FUNCTIONS: Final = "User-defined or built-in mutable functions are not allowed."
USER_DEFINED_COLLATIONS: Final = "User-defined collations are not allowed."
SYSTEM_COLUMNS: Final = "System columns are not allowed."
USER_DEFINED_OPERATORS: Final = "User-defined operators are not allowed."
OF_POSTGRESQL: Final = frozenset(
    {
        ONLY_SIMPLE, USER_DEFINED_TYPES, MUTABLE_FUNCTIONS, USER_DEFINED_COLLATIONS, SYSTEM_COLUMNS,
        USER_DEFINED_OPERATORS,
    }
)  # fmt: skip
"""PostgreSQL's own reasons: `check_simple_rowfilter_expr_walker` of publicationcmds.c."""

_SHOWN_BEFORE: Final = 60
_SHOWN: Final = 110


class Refused(Exception):
    """Something in the expression cannot be had.

    Attributes:
        reason: Why.
        at: Where, as an index into the expression; None where only the caller knows.
    """

    def __init__(self, reason: str, at: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


class RowFilterError(ConfigError):
    """A row filter that PostgreSQL would not take, or that cannot be evaluated exactly as PostgreSQL does.

    Attributes:
        expression: The filter's text.
        at: Index of the place in it.
        reason: Why it is refused.
    """

    def __init__(self, expression: str, at: int, reason: str, *, hint: str = "") -> None:
        super().__init__(f"invalid publication WHERE expression: {reason}\n{_pointed(expression, at)}", hint=hint)
        self.expression = expression
        self.at = at
        self.reason = reason


def _pointed(expression: str, at: int) -> str:
    """The line of the expression that the place is in, with a caret below the place."""
    at = min(max(at, 0), len(expression))
    start = expression.rfind("\n", 0, at) + 1
    end = expression.find("\n", at)
    line = expression[start : len(expression) if end < 0 else end].replace("\t", " ")
    column = at - start
    first = max(0, column - _SHOWN_BEFORE)
    cut = line[first : first + _SHOWN]
    before, after = "…" if first else "", "…" if first + _SHOWN < len(line) else ""
    return f"{before}{cut}{after}\n{' ' * (column - first + len(before))}^"

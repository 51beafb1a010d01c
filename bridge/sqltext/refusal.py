"""Refusals of SQL text, with the reason and the place, and PostgreSQL's reasons to refuse a row filter."""

from __future__ import annotations

from typing import Final

from pgbridge.bridge.runtime.errors import ConfigError

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
    """PostgreSQL would refuse a part of the text, or pgbridge does not translate it.

    Attributes:
        reason: Why it is refused.
        at: The index of the place in the text; None if only the caller knows it.
    """

    def __init__(self, reason: str, at: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


class RowFilterError(ConfigError):
    """A row filter that PostgreSQL would refuse, or that cannot be computed exactly as PostgreSQL does.

    Attributes:
        expression: The filter's text.
        at: The index of the place in the text.
        reason: Why it is refused.
    """

    def __init__(self, expression: str, at: int, reason: str, *, hint: str = "") -> None:
        super().__init__(f"invalid publication WHERE expression: {reason}\n{_pointed(expression, at)}", hint=hint)
        self.expression = expression
        self.at = at
        self.reason = reason


def _pointed(expression: str, at: int) -> str:
    """The expression's line with the place, and a caret below the place."""
    at = min(max(at, 0), len(expression))
    start = expression.rfind("\n", 0, at) + 1
    end = expression.find("\n", at)
    line = expression[start : len(expression) if end < 0 else end].replace("\t", " ")
    column = at - start
    first = max(0, column - _SHOWN_BEFORE)
    cut = line[first : first + _SHOWN]
    before, after = "…" if first else "", "…" if first + _SHOWN < len(line) else ""
    return f"{before}{cut}{after}\n{' ' * (column - first + len(before))}^"

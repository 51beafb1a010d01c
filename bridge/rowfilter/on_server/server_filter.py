"""A row filter that a server computes: the statements that have it checked, and that ask for verdicts on rows.

The expression is put into a statement as it stands, so it has to be one expression: that, its tokens tell. What it
means is the server's business. The rows are given as parameters, each value as the stream had it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.sqltext.keywords import quote_identifier
from bridge.sqltext.lexer import Kind, Token, tokens
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROW: Final = '"pgbridge row"'
"""The number of a row, under a name that no expression has by chance."""

_CLOCK: Final = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_STRINGS: Final = frozenset({Kind.STRING, Kind.NATIONAL, Kind.BYTES})
_OPENING: Final = {"(": ")", "[": "]"}


class VerdictError(Exception):
    """A server raises an error where it computes a filter for a row: there is no verdict.

    Attributes:
        row: Its index among those that were asked about.
        reason: The server's words.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """A table's column, as a server has it.

    Attributes:
        type_oid: Of its declared type.
        collation: `schema.name`; None where it is the database's default, or where the type has none.
    """

    name: str
    type_oid: int
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class ServerFilter:
    """A row filter that a server has taken.

    Attributes:
        expression: As it was written.
        text: As it is sent.
        table: The table's name, which may stand before a column's.
        columns: What it depends on.
        collations: Of each of those.
    """

    expression: str
    text: str
    table: str
    columns: tuple[str, ...]
    collations: tuple[str | None, ...]

    def statement(self, rows: int) -> str:
        """A query whose one value has a letter, t or f, for each of some rows: whether it passes.

        Its parameters are the rows' values, in the order of `columns`, one row after the other.
        """
        count = len(self.columns)
        values = ", ".join(
            f"({', '.join([str(row), *(f'${row * count + i + 1}' for i in range(count))])})" for row in range(rows)
        )
        given = [f"v{i}" for i in range(count)]
        outputs = [_output(*one) for one in zip(given, self.columns, self.collations, strict=True)]
        return (
            f"SELECT string_agg(CASE WHEN (\n{self.text}\n) THEN 't' ELSE 'f' END, '' ORDER BY {_ROW}) "
            f"FROM (SELECT {', '.join([_ROW, *outputs])} FROM (VALUES {values}) AS given({', '.join([_ROW, *given])})"
            f") AS {quote_identifier(self.table)}"
        )


def any_of(filters: Sequence[ServerFilter]) -> ServerFilter:
    """What passes one of several filters of a table."""
    first, *others = filters
    if not others:
        return first
    collations = {name: at for one in filters for name, at in zip(one.columns, one.collations, strict=True)}
    return ServerFilter(
        " OR ".join(f"({one.expression})" for one in filters),
        "\n OR ".join(f"({one.text}\n)" for one in filters),
        first.table,
        tuple(collations),
        tuple(collations.values()),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """An expression that may be a row filter, if the server takes it.

    Attributes:
        expression: As it was written.
        text: As it is sent.
        table: The table's name.
        columns: Those of the table that it may look at.
        reads_clock: It has a string that would be the time of its reading, if it is one of a date or a time.
    """

    expression: str
    text: str
    table: str
    columns: tuple[ServerColumn, ...]
    reads_clock: bool

    @property
    def statement(self) -> str:
        """A statement to be parsed, never to be run; its parameters are the columns' values."""
        return f"{self._head}{self.text}\n)"

    @property
    def _head(self) -> str:
        outputs = [_output(f"${i}", column.name, column.collation) for i, column in enumerate(self.columns, 1)]
        return f"SELECT FROM (SELECT {', '.join(outputs)}) AS {quote_identifier(self.table)} WHERE (\n"

    def place(self, at: int) -> int:
        """Of an offset in the statement, in bytes, the one in the expression, as near as can be told."""
        shown = self.statement.encode()[: max(at, 0)].decode(errors="ignore")
        found = len(shown) - len(self._head)
        removed = len(self.expression) - len(self.text)
        # qualifiers were taken out before it, or after it: the place is theirs at the most
        return 0 if found < 0 or removed else found

    def taken(self, numbers: frozenset[int]) -> ServerFilter:
        """The filter, which looks at the columns of these numbers."""
        some = [self.columns[number - 1] for number in sorted(numbers)]
        return ServerFilter(
            self.expression,
            self.text,
            self.table,
            tuple(column.name for column in some),
            tuple(column.collation for column in some),
        )


def candidate(expression: str, columns: Mapping[str, ServerColumn], table: tuple[str, str]) -> Candidate:
    """Make sure that a text is one expression, and no more than that.

    Args:
        expression: The text between the parentheses of WHERE.
        columns: The table's, by name.
        table: Its schema and name.

    Raises:
        Refused: It cannot be one.
    """
    found = tokens(expression)
    _check_closed(found)
    for token in found:
        if token.kind is Kind.PARAMETER:
            raise Refused(f"there is no parameter {token.value}", token.start)
    names = {token.value for token in found if token.kind in {Kind.WORD, Kind.QUOTED}}
    clock = any(token.kind in _STRINGS and _CLOCK.search(token.value) for token in found)
    some = tuple(column for name, column in columns.items() if name in names)
    return Candidate(expression, _without_schema(expression, found, table), table[1], some, clock)


def _check_closed(found: Sequence[Token]) -> None:
    """Refuse text that would end the parentheses it is put into, or the statement."""
    waiting: list[str] = []
    for token in found:
        if token.kind is not Kind.MARK:
            continue
        closing = token.value in _OPENING.values()
        if token.value in _OPENING:
            waiting.append(_OPENING[token.value])
        elif token.value == ";" or (closing and (not waiting or waiting.pop() != token.value)):
            raise Refused(f"syntax error at or near {token}", token.start)
    if waiting or len(found) == 1:
        raise Refused("syntax error at end of input", found[-1].start)


def _without_schema(expression: str, found: Sequence[Token], table: tuple[str, str]) -> str:
    """The text without the schema's name in `schema.table.column`: what is asked about is not the table itself."""
    text, end = "", 0
    for i, token in enumerate(found[:-4]):
        dots = found[i + 1].is_symbol(".") and found[i + 3].is_symbol(".")
        first = i == 0 or not found[i - 1].is_symbol(".")
        if dots and first and (token.value, found[i + 2].value) == table:
            text += expression[end : token.start]
            end = found[i + 2].start
    return text + expression[end:]


def _output(value: str, name: str, collation: str | None) -> str:
    collate = ""
    if collation is not None:
        schema, _, own = collation.partition(".")
        collate = f" COLLATE {quote_identifier(schema)}.{quote_identifier(own)}"
    return f"{value}{collate} AS {quote_identifier(name)}"

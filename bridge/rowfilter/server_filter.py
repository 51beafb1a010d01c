"""A row filter that a PostgreSQL server computes, where Spark cannot: whether it may, and what it gives for rows.

The server checks the text and prints its parse tree (debug_print_parse). The rules for the tree are those of
`check_simple_rowfilter_expr_walker` (publicationcmds.c). It has the OID of each function, operator, type and collation
and the number of each column, so nothing has to be guessed from the text. outfuncs.c prints a node as
`{NODE :field value …}`, and lists in parentheses.

Both statements, the one that checks and the one that returns verdicts, contain the text of the filter, so the text must
be exactly one expression; its tokens show whether it is. Its meaning is left to the server. The rows are parameters,
each value as it came in the stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.sqltext import refusal
from pgbridge.bridge.sqltext.lexer import Kind, Token, quote_identifier, tokens

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

FIRST_NORMAL_OID: Final = 16384
"""FirstNormalObjectId: the least OID of an object that is not built-in."""

_TOKEN: Final = re.compile(r"[(){}]|(?:\\.|[^\s(){}\\])+", re.DOTALL)
_SIMPLE: Final = frozenset(
    {
        "VAR", "CONST", "FUNCEXPR", "OPEXPR", "DISTINCTEXPR", "NULLIFEXPR", "SCALARARRAYOPEXPR", "BOOLEXPR",
        "RELABELTYPE", "COLLATEEXPR", "CASEEXPR", "CASEWHEN", "CASETESTEXPR", "ARRAYEXPR", "ROWEXPR",
        "ROWCOMPAREEXPR", "COALESCEEXPR", "MINMAXEXPR", "XMLEXPR", "NULLTEST", "BOOLEANTEST",
        # before PostgreSQL 16
        "COLLATE", "CASE", "WHEN", "ARRAY", "ROW", "ROWCOMPARE", "COALESCE", "MINMAX",
    }
)  # fmt: skip
_FUNCTIONS: Final = ("funcid", "opfuncid")
_OPERATORS: Final = ("opno", "opnos")
_TYPES: Final = (
    "vartype", "consttype", "funcresulttype", "opresulttype", "resulttype", "casetype", "typeId", "array_typeid",
    "element_typeid", "row_typeid", "coalescetype", "minmaxtype",
)  # fmt: skip
_COLLATIONS: Final = (
    "varcollid", "constcollid", "funccollid", "opcollid", "inputcollid", "inputcollids", "resultcollid", "collOid",
    "casecollid", "collation", "array_collid", "coalescecollid", "minmaxcollid",
)  # fmt: skip


@dataclass
class Node:
    """A node of the tree; `fields` has the words and nodes behind each field's name, without lists' parentheses."""

    name: str
    fields: dict[str, list[str | Node]] = field(default_factory=dict)

    def numbers(self, *names: str) -> list[int]:
        """The numbers in these fields."""
        words = [word for name in names for word in self.fields.get(name, ())]
        return [int(word) for word in words if isinstance(word, str) and word.isdigit()]

    def nodes(self) -> Iterator[Node]:
        """This node and all nodes below it."""
        yield self
        for values in self.fields.values():
            for value in values:
                if isinstance(value, Node):
                    yield from value.nodes()

    @property
    def at(self) -> int:
        """Its offset in the statement's text, in bytes; -1 if it has none."""
        words = self.fields.get("location", ["-1"])
        return int(str(words[0]))


@dataclass(frozen=True)
class Where:
    """The condition of a WHERE clause."""

    root: Node

    @property
    def functions(self) -> frozenset[int]:
        """OIDs of the functions that it calls, also of those behind its operators."""
        return frozenset(oid for node in self.root.nodes() for oid in node.numbers(*_FUNCTIONS))

    @property
    def operators(self) -> frozenset[int]:
        """OIDs of its operators."""
        return frozenset(oid for node in self.root.nodes() for oid in node.numbers(*_OPERATORS))

    @property
    def columns(self) -> frozenset[int]:
        """Numbers of the columns that it depends on, from 1."""
        return frozenset(n for node in self.root.nodes() if node.name == "VAR" for n in node.numbers("varattno"))

    @property
    def constant_types(self) -> frozenset[int]:
        """OIDs of its constants' types."""
        return frozenset(oid for node in self.root.nodes() for oid in node.numbers("consttype"))

    def check(self, mutable: Collection[int], mutable_operators: Collection[int]) -> None:
        """Refuse what PostgreSQL does not allow in a row filter.

        Args:
            mutable: OIDs of the functions among `functions` that are not immutable.
            mutable_operators: OIDs of the operators among `operators` whose functions are not immutable.

        Raises:
            Refused: In PostgreSQL's words, with the place in the statement.
        """
        for node in self.root.nodes():
            if reason := _refusal(node, frozenset(mutable), frozenset(mutable_operators)):
                raise refusal.Refused(reason, max(node.at, 0))


def _refusal(node: Node, mutable: frozenset[int], mutable_operators: frozenset[int]) -> str:  # noqa: PLR0911 - a line for each
    def user_defined(*names: str) -> bool:
        return any(oid >= FIRST_NORMAL_OID for oid in node.numbers(*names))

    if node.name not in _SIMPLE:
        return refusal.ONLY_SIMPLE
    if node.name == "VAR":
        attnum = node.fields["varattno"][0]
        if str(attnum).startswith("-"):
            return refusal.SYSTEM_COLUMNS
        if attnum == "0":
            return refusal.USER_DEFINED_TYPES  # the whole row, whose type is the table's
    if user_defined(*_OPERATORS):
        return refusal.USER_DEFINED_OPERATORS
    functions = node.numbers(*_FUNCTIONS)
    if user_defined(*_FUNCTIONS) or not mutable.isdisjoint(functions):
        return refusal.MUTABLE_FUNCTIONS
    if not mutable_operators.isdisjoint(node.numbers(*_OPERATORS)):
        return refusal.MUTABLE_FUNCTIONS
    if user_defined(*_TYPES):
        return refusal.USER_DEFINED_TYPES
    return refusal.USER_DEFINED_COLLATIONS if user_defined(*_COLLATIONS) else ""


def where(shown: str) -> Where:
    """The WHERE clause of a query's parse tree.

    Args:
        shown: The tree of a SELECT … WHERE …, as debug_print_parse prints it.

    Raises:
        ValueError: The text is not such a tree.
    """
    query = _read(shown)
    clauses = [value for value in query.fields.get("jointree", []) if isinstance(value, Node)]
    conditions = [value for clause in clauses for value in clause.fields.get("quals", []) if isinstance(value, Node)]
    if query.name != "QUERY" or len(conditions) != 1:
        raise ValueError("not a query with a WHERE clause")
    return Where(conditions[0])


def _read(shown: str) -> Node:
    top = Node("")
    open_nodes: list[tuple[Node, str]] = [(top, "")]
    top.fields[""] = []
    words = iter(_TOKEN.findall(shown))
    for word in words:
        node, name = open_nodes[-1]
        if word == "{":
            made = Node(next(words, ""))
            node.fields.setdefault(name, []).append(made)
            open_nodes.append((made, ""))
        elif word == "}":
            open_nodes.pop()
            if not open_nodes:
                break
        elif word.startswith(":"):
            open_nodes[-1] = (node, word[1:])
            node.fields[word[1:]] = []
        elif word not in "()":
            node.fields.setdefault(name, []).append(word)
    trees = [value for value in top.fields[""] if isinstance(value, Node)]
    if len(open_nodes) != 1 or len(trees) != 1:
        raise ValueError("not a tree of nodes")
    return trees[0]


_ROW: Final = '"pgbridge row"'
"""The column with a row's number, under a name that no expression uses by chance."""

_CLOCK: Final = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_STRINGS: Final = frozenset({Kind.STRING, Kind.NATIONAL, Kind.BYTES})
_OPENING: Final = {"(": ")", "[": "]"}


class VerdictError(Exception):
    """A filter could not be computed for a row, so there is no verdict.

    Attributes:
        row: The index of the row among those that were asked about.
        reason: The message of the server, or of Spark.
        column: The column whose value the filter cannot be computed with; None if it is not known to be a value's.
    """

    def __init__(self, row: int, reason: str, *, column: str | None = None, hint: str = "") -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason
        self.column = column
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """A table's column on the server.

    Attributes:
        type_oid: The OID of its declared type.
        collation: The collation's `schema.name`; None for the database's default or a type that is not collatable.
    """

    name: str
    type_oid: int
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class ServerFilter:
    """A row filter that the server has accepted.

    Attributes:
        expression: The text of the definition.
        text: The text for the server, without the schema of qualified names.
        table: The table's name, with which columns may be qualified.
        columns: Names of the columns that it depends on.
        collations: The collation of each of these columns, as in `ServerColumn`.
    """

    expression: str
    text: str
    table: str
    columns: tuple[str, ...]
    collations: tuple[str | None, ...]

    def statement(self, rows: int) -> str:
        """A query that returns one string with a letter for each row: t if the row passes, else f.

        Its parameters are the values of the rows, in the order of `columns`, one row after the other.
        """
        count = len(self.columns)
        values = ", ".join(
            f"({', '.join([str(row), *(f'${row * count + i + 1}' for i in range(count))])})" for row in range(rows)
        )
        given = [f"v{i}" for i in range(count)]
        outputs = [_output(*output) for output in zip(given, self.columns, self.collations, strict=True)]
        return (
            f"SELECT string_agg(CASE WHEN (\n{self.text}\n) THEN 't' ELSE 'f' END, '' ORDER BY {_ROW}) "
            f"FROM (SELECT {', '.join([_ROW, *outputs])} FROM (VALUES {values}) AS given({', '.join([_ROW, *given])})"
            f") AS {quote_identifier(self.table)}"
        )


def any_of(filters: Sequence[ServerFilter]) -> ServerFilter:
    """The filter that a row passes if it passes one of these filters of the same table."""
    first, *others = filters
    if not others:
        return first
    collations = {
        name: at for row_filter in filters for name, at in zip(row_filter.columns, row_filter.collations, strict=True)
    }
    return ServerFilter(
        " OR ".join(f"({row_filter.expression})" for row_filter in filters),
        "\n OR ".join(f"({row_filter.text}\n)" for row_filter in filters),
        first.table,
        tuple(collations),
        tuple(collations.values()),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """An expression that the server has not checked yet.

    Attributes:
        expression: The text of the definition.
        text: The text for the server, without the schema of qualified names.
        table: The table's name.
        columns: The columns that it may depend on.
        reads_clock: Whether one of its strings would be the current time if it were read as a date or time.
    """

    expression: str
    text: str
    table: str
    columns: tuple[ServerColumn, ...]
    reads_clock: bool

    @property
    def statement(self) -> str:
        """A statement to be parsed but not executed; its parameters stand for the columns."""
        return f"{self._head}{self.text}\n)"

    @property
    def _head(self) -> str:
        outputs = [_output(f"${i}", column.name, column.collation) for i, column in enumerate(self.columns, 1)]
        return f"SELECT FROM (SELECT {', '.join(outputs)}) AS {quote_identifier(self.table)} WHERE (\n"

    def place(self, at: int) -> int:
        """The index in the expression for an offset in bytes in the statement; 0 if it cannot be told."""
        shown = self.statement.encode()[: max(at, 0)].decode(errors="ignore")
        index = len(shown) - len(self._head)
        removed = len(self.expression) - len(self.text)
        # without a schema's name, indexes behind it are different
        return 0 if index < 0 or removed else index

    def taken(self, numbers: frozenset[int]) -> ServerFilter:
        """The accepted filter, which depends on the columns with these numbers, from 1."""
        columns = [self.columns[number - 1] for number in sorted(numbers)]
        return ServerFilter(
            self.expression,
            self.text,
            self.table,
            tuple(column.name for column in columns),
            tuple(column.collation for column in columns),
        )


def candidate(expression: str, columns: Mapping[str, ServerColumn], table: tuple[str, str]) -> Candidate:
    """Check that a text is at most one expression, which cannot end the statement that it is put into.

    Args:
        expression: The text between the parentheses of WHERE.
        columns: The table's columns by name.
        table: The table's schema and name.

    Raises:
        Refused: It is not; with the place.
    """
    expression_tokens = tokens(expression)
    _check_closed(expression_tokens)
    for token in expression_tokens:
        if token.kind is Kind.PARAMETER:
            raise refusal.Refused(f"there is no parameter {token.value}", token.start)
    names = {token.value for token in expression_tokens if token.kind in {Kind.WORD, Kind.QUOTED}}
    clock = any(token.kind in _STRINGS and _CLOCK.search(token.value) for token in expression_tokens)
    used = tuple(column for name, column in columns.items() if name in names)
    return Candidate(expression, _without_schema(expression, expression_tokens, table), table[1], used, clock)


def _check_closed(expression_tokens: Sequence[Token]) -> None:
    """Refuse a text that would close the parentheses around it, or end the statement."""
    waiting: list[str] = []
    for token in expression_tokens:
        if token.kind is not Kind.MARK:
            continue
        closing = token.value in _OPENING.values()
        if token.value in _OPENING:
            waiting.append(_OPENING[token.value])
        elif token.value == ";" or (closing and (not waiting or waiting.pop() != token.value)):
            raise refusal.Refused(f"syntax error at or near {token}", token.start)
    if waiting or len(expression_tokens) == 1:
        raise refusal.Refused("syntax error at end of input", expression_tokens[-1].start)


def _without_schema(expression: str, expression_tokens: Sequence[Token], table: tuple[str, str]) -> str:
    """The text with `table.column` for `schema.table.column`: in the statement, the table is a subquery's alias."""
    text, end = "", 0
    for i, token in enumerate(expression_tokens[:-4]):
        dots = expression_tokens[i + 1].is_symbol(".") and expression_tokens[i + 3].is_symbol(".")
        first = i == 0 or not expression_tokens[i - 1].is_symbol(".")
        if dots and first and (token.value, expression_tokens[i + 2].value) == table:
            text += expression[end : token.start]
            end = expression_tokens[i + 2].start
    return text + expression[end:]


def _output(value: str, name: str, collation: str | None) -> str:
    collate = ""
    if collation is not None:
        schema, _, own = collation.partition(".")
        collate = f" COLLATE {quote_identifier(schema)}.{quote_identifier(own)}"
    return f"{value}{collate} AS {quote_identifier(name)}"

"""PostgreSQL's parse tree of a WHERE clause, printed by debug_print_parse, and the check that a row filter may have it.

The rules are those of `check_simple_rowfilter_expr_walker` (publicationcmds.c). The tree has the OID of each function,
operator, type and collation and the number of each column, so nothing has to be guessed from the text.

outfuncs.c prints a node as `{NODE :field value …}`, and lists in parentheses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bridge.sqltext.refusal import (
    MUTABLE_FUNCTIONS,
    ONLY_SIMPLE,
    SYSTEM_COLUMNS,
    USER_DEFINED_COLLATIONS,
    USER_DEFINED_OPERATORS,
    USER_DEFINED_TYPES,
    Refused,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

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
                raise Refused(reason, max(node.at, 0))


def _refusal(node: Node, mutable: frozenset[int], mutable_operators: frozenset[int]) -> str:  # noqa: PLR0911 - a line for each
    def user_defined(*names: str) -> bool:
        return any(oid >= FIRST_NORMAL_OID for oid in node.numbers(*names))

    if node.name not in _SIMPLE:
        return ONLY_SIMPLE
    if node.name == "VAR":
        attnum = node.fields["varattno"][0]
        if str(attnum).startswith("-"):
            return SYSTEM_COLUMNS
        if attnum == "0":
            return USER_DEFINED_TYPES  # the whole row, whose type is the table's
    if user_defined(*_OPERATORS):
        return USER_DEFINED_OPERATORS
    functions = node.numbers(*_FUNCTIONS)
    if user_defined(*_FUNCTIONS) or not mutable.isdisjoint(functions):
        return MUTABLE_FUNCTIONS
    if not mutable_operators.isdisjoint(node.numbers(*_OPERATORS)):
        return MUTABLE_FUNCTIONS
    if user_defined(*_TYPES):
        return USER_DEFINED_TYPES
    return USER_DEFINED_COLLATIONS if user_defined(*_COLLATIONS) else ""


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

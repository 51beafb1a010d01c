"""The nodes of an expression's raw parse tree, in which names and types have not been looked up.

The `at` of a node is the index in the text that a message about the node points to.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """An expression."""

    at: int


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A literal: its `kind` is string, integer, decimal, boolean or null, its `text` the value as a token has it."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ColumnName(Node):
    """A column's name, qualified or not."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type: its name in pg_type, its modifiers, and whether an array of it is meant."""

    at: int
    name: str
    modifiers: tuple[int, ...] = ()
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class TypeCast(Node):
    """`argument::type`, CAST, and `type 'literal'`."""

    argument: Node
    type: TypeName


@dataclass(frozen=True, slots=True)
class Collate(Node):
    """`argument COLLATE collation`."""

    argument: Node
    collation: str


@dataclass(frozen=True, slots=True)
class Operator(Node):
    """A prefix (one argument) or binary operator."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quantified(Node):
    """`left operator ANY (right)`, or ALL."""

    name: str
    left: Node
    right: Node
    every: bool


@dataclass(frozen=True, slots=True)
class BooleanOperator(Node):
    """AND or OR of two arguments, NOT of one."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Test(Node):
    """`argument IS [NOT] what`; what is null, true, false or unknown."""

    argument: Node
    what: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Distinct(Node):
    """`left IS [NOT] DISTINCT FROM right`."""

    left: Node
    right: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class In(Node):
    """`argument [NOT] IN (items)`."""

    argument: Node
    items: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Case(Node):
    """CASE, with or without an operand and ELSE."""

    operand: Node | None
    branches: tuple[tuple[Node, Node], ...]
    default: Node | None


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function call, or an expression in its form: COALESCE, NULLIF, GREATEST or LEAST."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ArrayItems(Node):
    """`ARRAY[items]`."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Row(Node):
    """`(a, b)` and `ROW(a, b)`."""

    items: tuple[Node, ...]

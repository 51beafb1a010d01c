"""What a row filter's text says, before any type is known: nodes in the sense of PostgreSQL's raw parse tree.

Each node's `at` is an index into the text: the place that a message about it points to.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """Any expression."""

    at: int


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A literal; `kind` is string, integer, decimal, boolean or null, `text` its value as written."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ColumnName(Node):
    """A name, qualified or not."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as written: PostgreSQL's internal name, its modifiers, and whether an array of it is meant."""

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
    """AND and OR of two, NOT of one argument."""

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
    """CASE, with an operand or without; `default` may be absent."""

    operand: Node | None
    branches: tuple[tuple[Node, Node], ...]
    default: Node | None


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function, or what looks like one: COALESCE, NULLIF, GREATEST and LEAST are not pg_proc's."""

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

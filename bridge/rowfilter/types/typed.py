"""The typed expression: each node has a PostgreSQL type, and how Spark computes it from its arguments' columns.

A type is named as in pg_type: `int4`, `_text` (an array), `unknown` (a string literal whose type is still open).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    Resolver = Callable[[str], Column]
    Apply = Callable[..., Column]

UNKNOWN: Final = "unknown"
STRINGS: Final = frozenset({"text", "varchar", "bpchar"})
COLLATABLE: Final = STRINGS | {"name", UNKNOWN}


@dataclass(frozen=True, slots=True)
class Collation:
    """What a collation does, as far as it decides verdicts.

    Attributes:
        name: As in pg_collation.
        bytewise: It orders by bytes: locale C, POSIX or the builtin provider's.
        deterministic: Only equal bytes are equal.
        ascii_case: Upper and lower case are those of ASCII, nothing else has any: LC_CTYPE C or POSIX.
        default: It is the database's, which gives way to any other.
        user_defined: It does not come with PostgreSQL: a column that has it cannot be in a row filter.
    """

    name: str
    bytewise: bool
    deterministic: bool = True
    ascii_case: bool = False
    default: bool = False
    user_defined: bool = False


C_COLLATION: Final = Collation("C", bytewise=True, ascii_case=True)
DATABASE_DEFAULT: Final = Collation("default", bytewise=False, default=True)
"""The database's collation, of which nothing is known but that it is deterministic."""


class Strength(NamedTuple):
    """A collation, and how an expression came by it (collation derivation of parse_collate.c)."""

    collation: Collation
    explicit: bool = False
    conflict: bool = False


class Digits(NamedTuple):
    """A numeric that stands in Spark as decimal(precision, scale)."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression with its type.

    Attributes:
        type: PostgreSQL's.
        at: Its place in the text.
        apply: Makes its Spark column of those of `arguments`.
        arguments: What it is computed from.
        digits: Of a numeric: it is a decimal with them; None: it is a string of PostgreSQL's text output.
        strength: Of a collatable type: its collation.
    """

    type: str
    at: int
    apply: Apply = field(compare=False)
    arguments: tuple[Typed, ...] = ()
    digits: Digits | None = None
    strength: Strength | None = None

    def to_spark(self, resolve: Resolver) -> Column:
        """The column, over those that `resolve` gives."""
        return self.apply(*(argument.to_spark(resolve) for argument in self.arguments))

    def columns(self) -> frozenset[str]:
        """Names of all columns it is computed from."""
        return frozenset().union(*(argument.columns() for argument in self.arguments))

    def relabelled(self, type_: str) -> Typed:
        """The same value under a type that is stored alike."""
        return replace(self, type=type_)


@dataclass(frozen=True, slots=True)
class ColumnReference(Typed):
    """A column of the table."""

    name: str = ""

    def to_spark(self, resolve: Resolver) -> Column:
        """What the caller has for it."""
        return resolve(self.name)

    def columns(self) -> frozenset[str]:
        """Itself."""
        return frozenset({self.name})


@dataclass(frozen=True, slots=True)
class Constant(Typed):
    """A literal; `value` is None for NULL, a string while the type is unknown."""

    value: Any = None


def merged(arguments: tuple[Typed, ...]) -> Strength | None:
    """The collation that an operation on these has, if it has any.

    Raises:
        Refused: Two COLLATE clauses contradict each other.
    """
    result: Strength | None = None
    for argument in arguments:
        one = argument.strength
        if one is None or result is None:
            result = result or one
        elif one.explicit and result.explicit:
            if one.collation.name != result.collation.name:
                raise Refused("collation mismatch between explicit collations", argument.at)
        elif one.explicit or result.explicit:
            result = one if one.explicit else result
        elif one.collation.name == result.collation.name:
            result = result if one.collation is DATABASE_DEFAULT else one
        elif result.collation.default:
            result = one
        elif not one.collation.default:
            result = Strength(result.collation, conflict=True)
    return result


def collation_of(arguments: tuple[Typed, ...], at: int) -> Collation:
    """The collation by which these are compared.

    Raises:
        Refused: There are two that contradict each other.
    """
    strength = merged(arguments)
    if strength is None:
        return DATABASE_DEFAULT
    if strength.conflict:
        raise Refused("could not determine which collation to use", at)
    return strength.collation

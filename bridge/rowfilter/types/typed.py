"""Typed expressions: each node has a PostgreSQL type, and computes its Spark column from those of its arguments.

Types have their names in pg_type: `int4`, `_text` (an array), `unknown` (a string literal without a type yet). The
leaves are the columns of a table that a row filter can name, and constants, in the Spark type of their PostgreSQL type.

The walsender of a server-side publication stops at a row that PostgreSQL has no verdict on, so computing the filter
fails here, too (`failure`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.types.pg_catalog import shown
from pgbridge.bridge.sqltext.refusal import USER_DEFINED_COLLATIONS, USER_DEFINED_TYPES, Refused
from pgbridge.protocol.values import pg_type, types

if TYPE_CHECKING:
    from decimal import Decimal

Resolver = Callable[[str], Column]
Apply = Callable[..., Column]

UNKNOWN: Final = "unknown"
STRINGS: Final = frozenset({"text", "varchar", "bpchar"})
COLLATABLE: Final = STRINGS | {"name", UNKNOWN}


@dataclass(frozen=True, slots=True)
class Collation:
    """A collation, and the properties that decide verdicts.

    Attributes:
        name: The name in pg_collation.
        bytewise: Whether it orders text by its bytes: locale C or POSIX, or the builtin provider.
        deterministic: Whether texts are equal only if their bytes are.
        ascii_case: Whether only ASCII letters have upper and lower case: LC_CTYPE C or POSIX.
        default: Whether it is the database's default, over which any other collation takes precedence.
        user_defined: Whether it was created by a user; a row filter cannot name columns that have it.
    """

    name: str
    bytewise: bool
    deterministic: bool = True
    ascii_case: bool = False
    default: bool = False
    user_defined: bool = False


C_COLLATION: Final = Collation("C", bytewise=True, ascii_case=True)
DATABASE_DEFAULT: Final = Collation("default", bytewise=False, default=True)
"""The database's collation if nothing is known about it, except that it is deterministic."""


class Strength(NamedTuple):
    """The collation of an expression, and how it was derived (parse_collate.c)."""

    collation: Collation
    explicit: bool = False
    conflict: bool = False


class Digits(NamedTuple):
    """The precision and scale of a numeric that is a decimal in Spark."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression with its type.

    Attributes:
        type: The name of its PostgreSQL type.
        at: Its index in the filter's text.
        apply: Returns its Spark column, given those of `arguments`.
        arguments: The expressions that it is computed from.
        digits: The precision and scale of a numeric; None if its Spark column has PostgreSQL's text output.
        strength: The collation of a collatable type.
    """

    type: str
    at: int
    apply: Apply = field(compare=False)
    arguments: tuple[Typed, ...] = ()
    digits: Digits | None = None
    strength: Strength | None = None

    def to_spark(self, resolve: Resolver) -> Column:
        """The Spark column, computed from the columns that `resolve` returns."""
        return self.apply(*(argument.to_spark(resolve) for argument in self.arguments))

    def columns(self) -> frozenset[str]:
        """Names of all columns that it is computed from."""
        return frozenset().union(*(argument.columns() for argument in self.arguments))

    def relabelled(self, type_: str) -> Typed:
        """The same value as a binary-coercible type."""
        return replace(self, type=type_)


@dataclass(frozen=True, slots=True)
class ColumnReference(Typed):
    """A column of the table."""

    name: str = ""

    def to_spark(self, resolve: Resolver) -> Column:
        """The column that `resolve` returns."""
        return resolve(self.name)

    def columns(self) -> frozenset[str]:
        """Only its own name."""
        return frozenset({self.name})


@dataclass(frozen=True, slots=True)
class Constant(Typed):
    """A literal; `value` is None for NULL, a string if the type is unknown, else as in `literals`."""

    value: Any = None


def merged(arguments: tuple[Typed, ...]) -> Strength | None:
    """The collation of an operation on these arguments; None if none of them is collatable.

    Raises:
        Refused: Two arguments have different COLLATE clauses.
    """
    result: Strength | None = None
    for argument in arguments:
        strength = argument.strength
        if strength is None or result is None:
            result = result or strength
        elif strength.explicit and result.explicit:
            if strength.collation.name != result.collation.name:
                raise Refused("collation mismatch between explicit collations", argument.at)
        elif strength.explicit or result.explicit:
            result = strength if strength.explicit else result
        elif strength.collation.name == result.collation.name:
            result = result if strength.collation is DATABASE_DEFAULT else strength
        elif result.collation.default:
            result = strength
        elif not strength.collation.default:
            result = Strength(result.collation, conflict=True)
    return result


def collation_of(arguments: tuple[Typed, ...], at: int) -> Collation:
    """The collation by which these arguments are compared.

    Raises:
        Refused: The arguments have different collations.
    """
    strength = merged(arguments)
    if strength is None:
        return DATABASE_DEFAULT
    if strength.conflict:
        raise Refused("could not determine which collation to use", at)
    return strength.collation


@dataclass(frozen=True, slots=True)
class FilterColumn:
    """A column that a row filter can name.

    Attributes:
        type: The type that `protocol.values.types.resolve` returns, with the OID of the declared type.
        collation: The collation of a column of text; None for the database's default.
    """

    type: types.ColumnType
    collation: Collation | None = None


def reference(name: str, column: FilterColumn, default: Collation, at: int) -> ColumnReference:
    """The typed expression for a column that a filter names.

    Raises:
        Refused: The column's type or collation is user-defined.
    """
    info = pg_type.BUILTIN.get(column.type.oid)
    if info is None:
        raise Refused(USER_DEFINED_TYPES, at)
    if column.collation is not None and column.collation.user_defined:
        raise Refused(USER_DEFINED_COLLATIONS, at)
    inner = column.type.element if column.type.kind is types.Kind.ARRAY and column.type.element else column.type
    digits = Digits(inner.arrow.precision, inner.arrow.scale) if inner.kind is types.Kind.DECIMAL else None
    strength = None
    if info.name.removeprefix("_") in COLLATABLE:
        strength = Strength(C_COLLATION if info.name == "name" else column.collation or default)
    return ColumnReference(info.name, at, F.col, digits=digits, strength=strength, name=name)


MAX_DIGITS: Final = 38  # the greatest precision of Spark's decimals
SPARK_TYPES: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "int", "int8": "bigint", "float4": "float", "float8": "double",
    "text": "string", "varchar": "string", "bpchar": "string", "uuid": "string", "time": "string", "jsonb": "string",
    "bytea": "binary", "date": "date", "timestamp": "timestamp_ntz", "timestamptz": "timestamp",
    "interval": "string",
}  # fmt: skip
"""PostgreSQL type -> the Spark type of its columns, as decoded by `protocol.values.types`."""


def constant(type_: str, value: Any, at: int, collation: Collation | None = None) -> Constant:
    """A constant of a type.

    Args:
        type_: The name of the PostgreSQL type.
        value: The value, as returned by `literals.value_of`; None for NULL.
        at: The constant's index in the text.
        collation: The collation of a string.
    """
    strength = Strength(collation) if collation and element(type_) in COLLATABLE else None
    digits = None
    if element(type_) == "numeric":
        digits = _digits(value if type_.startswith("_") else [value])
    return Constant(type_, at, lambda: _column(type_, value, digits), digits=digits, strength=strength, value=value)


def element(type_: str) -> str:
    """The element type of an array type; any other type itself."""
    return type_.removeprefix("_")


def spark_type(type_: str, digits: Digits | None, at: int) -> str:
    """The Spark type of a PostgreSQL type.

    Raises:
        Refused: Values of the type are not translated.
    """
    if type_.startswith("_"):
        return f"array<{spark_type(type_[1:], digits, at)}>"
    if type_ == "numeric":
        return f"decimal({digits.precision},{digits.scale})" if digits else "string"
    if type_ not in SPARK_TYPES:
        raise Refused(f"values of type {shown(type_)} are not translated", at)
    return SPARK_TYPES[type_]


def digits_of(value: Decimal) -> Digits | None:
    """The least precision and scale that hold a finite value; None if Spark does not have them."""
    if not value.is_finite():
        return None
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - it is finite
    while len(digits) > 1 and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    if digits == (0,):
        return Digits(1, 0)
    scale = max(-exponent, 0)
    precision = max(len(digits) + exponent, 0) + scale
    return Digits(precision, scale) if precision <= MAX_DIGITS else None


def common_digits(*all_: Digits | None) -> Digits | None:
    """The precision and scale that hold values of all of these; None if Spark does not have them."""
    known = [digits for digits in all_ if digits]
    if len(known) < len(all_) or not known:
        return None
    scale = max(digits.scale for digits in known)
    precision = max(digits.precision - digits.scale for digits in known) + scale
    return Digits(max(precision, 1), scale) if precision <= MAX_DIGITS else None


def _digits(values: list[Decimal | None] | None) -> Digits | None:
    needed = [digits_of(value) for value in values or () if value is not None]
    return common_digits(*needed) if needed else Digits(1, 0)


def _column(type_: str, value: Any, digits: Digits | None) -> Column:  # noqa: PLR0911 - a line for each kind
    if value is None:
        return F.lit(None).cast(spark_type(type_, digits, 0))
    if type_.startswith("_"):
        items = F.array(*(_column(type_[1:], item, digits) for item in value))
        return items.cast(spark_type(type_, digits, 0))
    if type_ == "numeric":
        text = format(value, "f") if value.is_finite() else str(value)
        return F.lit(text).cast(spark_type(type_, digits, 0))
    if type_ == "date":
        return F.date_from_unix_date(F.lit(value))
    if type_ in {"timestamp", "timestamptz"}:
        # as text, the least 64-bit integer reaches the JVM unchanged
        return F.timestamp_micros(F.lit(str(value)).cast("bigint")).cast(SPARK_TYPES[type_])
    if type_ == "interval":
        return F.lit(value.text)
    if type_ == "int8":
        return F.lit(str(value)).cast("bigint")
    return F.lit(value).cast(SPARK_TYPES[type_])


def failure(message: str) -> Column:
    """A column that raises an error for each row that it is computed for."""
    return F.raise_error(F.lit(f"row filter: {message}"))

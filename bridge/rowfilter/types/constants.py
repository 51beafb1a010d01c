"""Constants as Spark columns, the Spark type of each PostgreSQL type, and the column of a row without a verdict.

The walsender of a server-side publication stops at a row that PostgreSQL has no verdict on, so computing the filter
fails here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, functions as F

from bridge.rowfilter.types.pg_catalog import shown
from bridge.rowfilter.types.typed import COLLATABLE, Collation, Constant, Digits, Strength
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from decimal import Decimal

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

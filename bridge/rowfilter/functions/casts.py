"""Casts by functions, and the modifiers of types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.functions import dates, numbers
from pgbridge.bridge.rowfilter.types import encodings, pg_catalog, typed
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

_INTEGER_DIGITS: Final = {"int2": 5, "int4": 10, "int8": 19}
_LARGEST_FLOAT4: Final = 3.4028235677973366e38  # halfway between the largest float4 and the next power of two
_DAY_USECS: Final = 86_400_000_000
_SMALLEST_FLOAT4: Final = 7.006492321624085e-46


def convert(node: typed.Typed, target: str, at: int) -> typed.Typed:
    """Cast a value by the function of pg_cast.

    Raises:
        Refused: The cast is not translated.
    """
    source = node.type
    if target == "numeric" and source in _INTEGER_DIGITS:
        digits = typed.Digits(_INTEGER_DIGITS[source], 0)
        type_ = typed.spark_type("numeric", digits, at)
        return typed.Typed("numeric", at, lambda column: column.cast(type_), (node,), digits)
    if source == "numeric":
        apply = _from_numeric(node, target)
    elif source in _INTEGER_DIGITS and target in typed.SPARK_TYPES and target in _PLAIN:
        apply = _plain(target)  # in ANSI mode, a value out of range raises an error
    else:
        apply = _CASTS.get((source, target))
    if apply is None:
        raise Refused(f"the cast from {pg_catalog.shown(source)} to {pg_catalog.shown(target)} is not translated", at)
    strength = (node.strength or typed.Strength(typed.DATABASE_DEFAULT)) if target in typed.COLLATABLE else None
    return typed.Typed(target, at, apply, (node,), strength=strength)


def with_modifiers(
    node: typed.Typed, modifiers: tuple[int, ...], at: int, encoding: encodings.Encoding = encodings.UTF8
) -> typed.Typed:
    """Apply the modifiers of a value's type: `varchar(3)`, `numeric(5,2)`.

    Raises:
        Refused: PostgreSQL does not accept them, or they are not translated.
    """
    if not modifiers:
        return node
    if node.type == "numeric":
        return _with_precision(node, modifiers, at)
    if node.type in {"varchar", "bpchar"} and len(modifiers) == 1:
        encodings.check_modifiers(encoding, node, at)
        size = modifiers[0]
        if not 1 <= size <= 10_485_760:
            raise Refused(f"length for type {pg_catalog.shown(node.type)} must be at least 1", at)
        pad = node.type == "bpchar"

        def apply(column: Column) -> Column:
            return F.rpad(column, size, " ") if pad else F.substring(column, 1, size)

        return typed.Typed(node.type, at, apply, (node,), strength=node.strength)
    raise Refused(f"modifiers of type {pg_catalog.shown(node.type)} are not translated", at)


def _with_precision(node: typed.Typed, modifiers: tuple[int, ...], at: int) -> typed.Typed:
    precision, scale = (*modifiers, 0)[:2]
    if not 1 <= precision <= typed.MAX_DIGITS or not 0 <= scale <= precision or len(modifiers) > 2:
        raise Refused(
            "numeric(precision, scale) is translated up to a precision of 38, with a scale from 0 to the precision", at
        )
    if not node.digits:
        raise Refused("a cast of numeric values without a precision to one with a precision is not translated", at)
    return numbers.as_decimal(node, typed.Digits(precision, scale))


_PLAIN: Final = frozenset({"int2", "int4", "int8", "float4", "float8"})


def _plain(target: str) -> typed.Apply:
    return lambda column: column.cast(typed.SPARK_TYPES[target])


def _by_text(type_: str) -> typed.Apply:
    """Cast the text of a numeric, as the server does, so that the value is rounded only once."""
    return lambda column: column.cast("string").cast(type_)


def _from_numeric(node: typed.Typed, target: str) -> typed.Apply | None:
    decimal = node.digits is not None
    if target == "float8":
        return _by_text("double") if decimal else _text_to_float8
    if target == "float4" and decimal:
        return _by_text("float")
    if target in _INTEGER_DIGITS and decimal:
        return lambda column: F.round(column, 0).cast(typed.SPARK_TYPES[target])
    return None


def _text_to_float8(text: Column) -> Column:
    value = text.cast("double")
    beyond = value.isin(float("inf"), float("-inf")) & ~text.isin("Infinity", "-Infinity")
    lost = (value == 0) & (numbers.canonical(text) != "0")
    return F.when(beyond | lost, typed.failure("numeric value is out of range for double precision")).otherwise(value)


def _float8_to_float4(value: Column) -> Column:
    size = F.abs(value)
    beyond = (size >= _LARGEST_FLOAT4) & ~F.isnan(value) & (size != float("inf"))
    lost = (size != 0) & (size <= _SMALLEST_FLOAT4)
    return (
        F.when(beyond, typed.failure("value out of range: overflow"))
        .when(lost, typed.failure("value out of range: underflow"))
        .otherwise(value.cast("float"))
    )


def _day_of(timestamp: Column) -> Column:
    """The date of a timestamp, computed in microseconds.

    Spark rewrites a comparison of a cast with the infinity of dates, and fails in doing so.
    """
    usecs = F.unix_micros(dates.finite("timestamp", timestamp).cast("timestamp"))
    day = F.call_function("div", usecs - F.pmod(usecs, F.lit(_DAY_USECS)), F.lit(_DAY_USECS))
    return F.date_from_unix_date(day.cast("int"))


def _float_to_integer(target: str) -> typed.Apply:
    def apply(value: Column) -> Column:
        # rint rounds half to even; a value out of range and NaN raise an error, but for 2^63: its bound is a double
        rounded = F.rint(value.cast("double"))
        too_large = F.when(rounded == F.lit(2.0**63), typed.failure("bigint out of range"))
        return (too_large.otherwise(rounded) if target == "int8" else rounded).cast(typed.SPARK_TYPES[target])

    return apply


_CASTS: Final[dict[tuple[str, str], Callable[[Column], Column]]] = {
    ("float4", "float8"): _plain("float8"),
    ("float8", "float4"): _float8_to_float4,
    **{(f"float{size}", target): _float_to_integer(target) for size in (4, 8) for target in _INTEGER_DIGITS},
    ("bool", "int4"): _plain("int4"),
    ("int4", "bool"): lambda value: value != 0,
    ("bpchar", "text"): F.rtrim,
    ("bpchar", "varchar"): F.rtrim,
    ("date", "timestamp"): lambda value: dates.finite("date", value).cast("timestamp_ntz"),
    ("timestamp", "date"): _day_of,
}

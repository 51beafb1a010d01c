"""Numerics: decimals where the column has a precision that Spark has, else strings of PostgreSQL's text output.

A value's scale shows nowhere in a row filter (a numeric's text cannot be had in one): 1.0 and 1.00 are one value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.constants import MAX_DIGITS, common_digits, spark_type
from bridge.rowfilter.typed import Digits, Typed
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column

_COMPLEMENTS: Final = ("0123456789", "9876543210")


def together(*nodes: Typed) -> tuple[Typed, ...]:
    """The same values, all as decimals of the same digits if there are such, else all as text."""
    digits = common_digits(*(node.digits for node in nodes))
    return tuple(_as(node, digits) for node in nodes)


def _as(node: Typed, digits: Digits | None) -> Typed:
    if node.digits == digits:
        return node
    type_ = spark_type("numeric", digits, node.at)
    return Typed("numeric", node.at, lambda column: column.cast(type_), (node,), digits)


def with_array(node: Typed, array: Typed) -> tuple[Typed, Typed]:
    """A numeric and an array of numerics, in the form that `together` would give to the elements."""
    digits = common_digits(node.digits, array.digits)
    type_ = spark_type("_numeric", digits, array.at)
    elements = Typed(array.type, array.at, lambda column: column.cast(type_), (array,), digits)
    return _as(node, digits), elements


def as_decimal(node: Typed, digits: Digits) -> Typed:
    """A decimal, rounded half away from zero; more digits before the point than it has are an error."""
    type_ = spark_type("numeric", digits, node.at)
    return Typed("numeric", node.at, lambda column: column.cast(type_), (node,), digits)


def canonical(text: Column) -> Column:
    """A numeric's text without the zeros that do not change its value."""
    return F.when(text.contains("."), F.rtrim(F.rtrim(text, F.lit("0")), F.lit("."))).otherwise(text)


def ordered(text: Column) -> Column:
    """A key by which numerics' texts are ordered: -Infinity, numbers, Infinity, NaN, as PostgreSQL has it."""
    value = canonical(text)
    negative = value.startswith("-")
    body = F.when(negative, F.substring(value, 2, 1 << 30)).otherwise(value)
    special = value.isin("NaN", "Infinity", "-Infinity")
    rank = (
        F.when(value == "NaN", 4).when(value == "Infinity", 3).when(value == "-Infinity", 0)
        .when(negative, 1).otherwise(2)
    )  # fmt: skip
    size = F.length(F.substring_index(body, ".", 1))
    # Of negative numbers the longer is the smaller; ~ comes after all digits and the point.
    reverse = F.concat(F.translate(body, *_COMPLEMENTS), F.lit("~"))
    return F.struct(
        rank.alias("rank"),
        F.when(special, 0).when(negative, -size).otherwise(size).alias("size"),
        F.when(special, "").when(negative, reverse).otherwise(body).alias("digits"),
    )


def arithmetic(name: str, sides: tuple[Typed, ...], at: int) -> Typed:
    """+, -, * and % of two numerics.

    Raises:
        Refused: The result might not fit a decimal, or the operands do not.
    """
    left, right = sides
    one, other = left.digits, right.digits
    if not one or not other:
        raise Refused("arithmetic on numeric values without a precision (of at most 38 digits) is not translated", at)
    if name == "*":
        digits = Digits(one.precision + other.precision, one.scale + other.scale)
    else:
        scale = max(one.scale, other.scale)
        whole = max(one.precision - one.scale, other.precision - other.scale)
        digits = Digits(whole + scale + (0 if name == "%" else 1), scale)
    # Spark reckons with one digit more than a product can have, and rounds what is beyond 38
    if digits.precision + (name == "*") > MAX_DIGITS:
        raise Refused("the result may have more than 38 digits", at)
    type_ = spark_type("numeric", digits, at)

    def apply(a: Column, b: Column) -> Column:
        result = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "%": lambda: a % b}[name]()
        return result.cast(type_)

    if name != "*":
        left, right = (as_decimal(node, digits) if node.digits != digits else node for node in (left, right))
    return Typed("numeric", at, apply, (left, right), digits)


def negated(node: Typed, at: int) -> Typed:
    """The number with the other sign."""
    if not node.digits:
        raise Refused("arithmetic on numeric values without a precision (of at most 38 digits) is not translated", at)
    return Typed("numeric", at, lambda column: -column, (node,), node.digits)


def rounded(name: str, node: Typed, places: int, at: int) -> Typed:
    """round, trunc, ceil and floor, to so many places after the point."""
    if not node.digits:
        raise Refused(f"{name} of numeric values without a precision (of at most 38 digits) is not translated", at)
    if places >= node.digits.scale:
        return replace(node, at=at)
    if places < 0:
        raise Refused(f"{name} to places before the point is not translated", at)
    digits = Digits(min(node.digits.precision - node.digits.scale + places + 1, MAX_DIGITS), places)
    type_ = spark_type("numeric", digits, at)
    if places and name != "round":
        raise Refused(f"{name} to places after the point is not translated", at)

    def apply(column: Column) -> Column:
        if name == "trunc":
            return F.when(column < 0, F.ceil(column)).otherwise(F.floor(column)).cast(type_)
        if name == "round":
            return F.round(column, places).cast(type_)
        return (F.ceil if name == "ceil" else F.floor)(column).cast(type_)

    return Typed("numeric", at, apply, (node,), digits)

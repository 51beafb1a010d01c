"""Values of type numeric: decimals of a precision that Spark supports, or else strings of PostgreSQL's text output.

The scale of a value makes no difference in a row filter, which cannot cast a numeric to text: 1.0 and 1.00 are equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyspark.sql import Column, functions as F

from bridge.rowfilter.types.typed import MAX_DIGITS, Digits, Typed, common_digits, spark_type
from bridge.sqltext.refusal import Refused

_COMPLEMENTS: Final = ("0123456789", "9876543210")


def together(*nodes: Typed) -> tuple[Typed, ...]:
    """The values as decimals of one precision and scale if Spark has one that holds all, else as text."""
    digits = common_digits(*(node.digits for node in nodes))
    return tuple(_as(node, digits) for node in nodes)


def _as(node: Typed, digits: Digits | None) -> Typed:
    if node.digits == digits:
        return node
    type_ = spark_type("numeric", digits, node.at)
    return Typed("numeric", node.at, lambda column: column.cast(type_), (node,), digits)


def with_array(node: Typed, array: Typed) -> tuple[Typed, Typed]:
    """A value and an array, brought to the form that `together` would give to the value and the elements."""
    digits = common_digits(node.digits, array.digits)
    type_ = spark_type("_numeric", digits, array.at)
    elements = Typed(array.type, array.at, lambda column: column.cast(type_), (array,), digits)
    return _as(node, digits), elements


def as_decimal(node: Typed, digits: Digits) -> Typed:
    """The value as decimal(precision, scale), rounded half away from zero; an error if it does not fit."""
    type_ = spark_type("numeric", digits, node.at)
    return Typed("numeric", node.at, lambda column: column.cast(type_), (node,), digits)


def canonical(text: Column) -> Column:
    """The text without trailing zeros after the decimal point: equal values have equal texts."""
    return F.when(text.contains("."), F.rtrim(F.rtrim(text, F.lit("0")), F.lit("."))).otherwise(text)


def ordered(text: Column) -> Column:
    """A key that orders texts as PostgreSQL orders the values: -Infinity, numbers, Infinity, NaN."""
    value = canonical(text)
    negative = value.startswith("-")
    body = F.when(negative, F.substring(value, 2, 1 << 30)).otherwise(value)
    special = value.isin("NaN", "Infinity", "-Infinity")
    rank = (
        F.when(value == "NaN", 4).when(value == "Infinity", 3).when(value == "-Infinity", 0)
        .when(negative, 1).otherwise(2)
    )  # fmt: skip
    size = F.length(F.substring_index(body, ".", 1))
    # the longer of two negative numbers is the smaller one; ~ sorts after all digits and the point
    reverse = F.concat(F.translate(body, *_COMPLEMENTS), F.lit("~"))
    return F.struct(
        rank.alias("rank"),
        F.when(special, 0).when(negative, -size).otherwise(size).alias("size"),
        F.when(special, "").when(negative, reverse).otherwise(body).alias("digits"),
    )


def arithmetic(name: str, sides: tuple[Typed, ...], at: int) -> Typed:
    """Translate +, -, * or % of two numerics.

    Raises:
        Refused: The result may not fit Spark's decimals, or an operand is not a decimal.
    """
    left, right = sides
    left_digits, right_digits = left.digits, right.digits
    if not left_digits or not right_digits:
        raise Refused("arithmetic on numeric values without a precision (of at most 38 digits) is not translated", at)
    if name == "*":
        digits = Digits(left_digits.precision + right_digits.precision, left_digits.scale + right_digits.scale)
    else:
        scale = max(left_digits.scale, right_digits.scale)
        whole = max(left_digits.precision - left_digits.scale, right_digits.precision - right_digits.scale)
        digits = Digits(whole + scale + (0 if name == "%" else 1), scale)
    # Spark gives a product one digit more than it can have, and rounds it beyond 38
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
    """Translate the prefix operator -.

    Raises:
        Refused: The operand is not a decimal.
    """
    if not node.digits:
        raise Refused("arithmetic on numeric values without a precision (of at most 38 digits) is not translated", at)
    return Typed("numeric", at, lambda column: -column, (node,), node.digits)


def rounded(name: str, node: Typed, places: int, at: int) -> Typed:
    """Translate round, trunc, ceil or floor to this many places after the decimal point.

    Raises:
        Refused: The operand is not a decimal, or the function is not translated for such places.
    """
    if not node.digits:
        raise Refused(f"{name} of numeric values without a precision (of at most 38 digits) is not translated", at)
    if places >= node.digits.scale:
        return replace(node, at=at)
    if places < 0:
        raise Refused(f"{name} to places before the decimal point is not translated", at)
    digits = Digits(min(node.digits.precision - node.digits.scale + places + 1, MAX_DIGITS), places)
    type_ = spark_type("numeric", digits, at)
    if places and name != "round":
        raise Refused(f"{name} to places after the decimal point is not translated", at)

    def apply(column: Column) -> Column:
        if name == "trunc":
            return F.when(column < 0, F.ceil(column)).otherwise(F.floor(column)).cast(type_)
        if name == "round":
            return F.round(column, places).cast(type_)
        return (F.ceil if name == "ceil" else F.floor)(column).cast(type_)

    return Typed("numeric", at, apply, (node,), digits)

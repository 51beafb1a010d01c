"""Operators and functions on numbers: arithmetic, bitwise operators, rounding.

Overflow and division by zero raise an error, as in PostgreSQL. Values of type numeric are decimals of a precision that
Spark supports, or else strings of PostgreSQL's text output. Their scale makes no difference in a row filter, which
cannot cast a numeric to text: 1.0 and 1.00 are equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.types import pg_catalog, typed
from pgbridge.bridge.rowfilter.types.typed import SPARK_TYPES, Apply, Constant, Digits, Typed, failure
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable


_COMPLEMENTS: Final = ("0123456789", "9876543210")


def together(*nodes: Typed) -> tuple[Typed, ...]:
    """The values as decimals of one precision and scale if Spark has one that holds all, else as text."""
    digits = typed.common_digits(*(node.digits for node in nodes))
    return tuple(_as(node, digits) for node in nodes)


def _as(node: Typed, digits: Digits | None) -> Typed:
    if node.digits == digits:
        return node
    type_ = typed.spark_type("numeric", digits, node.at)
    return Typed("numeric", node.at, lambda column: column.cast(type_), (node,), digits)


def with_array(node: Typed, array: Typed) -> tuple[Typed, Typed]:
    """A value and an array, brought to the form that `together` would give to the value and the elements."""
    digits = typed.common_digits(node.digits, array.digits)
    type_ = typed.spark_type("_numeric", digits, array.at)
    elements = Typed(array.type, array.at, lambda column: column.cast(type_), (array,), digits)
    return _as(node, digits), elements


def as_decimal(node: Typed, digits: Digits) -> Typed:
    """The value as decimal(precision, scale), rounded half away from zero; an error if it does not fit."""
    type_ = typed.spark_type("numeric", digits, node.at)
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
        # Spark gives a sum one digit more than its operands have; beyond 38 it would round away the last decimal
        alike = Digits(whole + scale, scale)
        digits = alike if name == "%" else Digits(whole + scale + 1, scale)
        left, right = (as_decimal(node, alike) if node.digits != alike else node for node in sides)
    # Spark gives a product one digit more than it can have, and rounds it beyond 38
    if digits.precision + (name == "*") > typed.MAX_DIGITS:
        raise Refused("the result may have more than 38 digits", at)
    type_ = typed.spark_type("numeric", digits, at)

    def apply(a: Column, b: Column) -> Column:
        result = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "%": lambda: a % b}[name]()
        return result.cast(type_)

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
    digits = Digits(min(node.digits.precision - node.digits.scale + places + 1, typed.MAX_DIGITS), places)
    type_ = typed.spark_type("numeric", digits, at)
    if places and name != "round":
        raise Refused(f"{name} to places after the decimal point is not translated", at)

    def apply(column: Column) -> Column:
        if name == "trunc":
            return F.when(column < 0, F.ceil(column)).otherwise(F.floor(column)).cast(type_)
        if name == "round":
            return F.round(column, places).cast(type_)
        return (F.ceil if name == "ceil" else F.floor)(column).cast(type_)

    return Typed("numeric", at, apply, (node,), digits)


INTEGERS: Final = frozenset({"int2", "int4", "int8"})
FLOATS: Final = frozenset({"float4", "float8"})


def operator(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate an operator on two numbers; None for any other.

    Raises:
        Refused: The operator on values of type numeric is not translated.
    """
    result = signature.result
    if result == "numeric":
        if name in {"/", "^"}:
            raise Refused(
                f"the operator {name} on numeric values is not translated: the scale of its result depends on them", at
            )
        return arithmetic(name, arguments, at)
    if result in INTEGERS and set(signature.arguments) <= INTEGERS and name in _INTEGERS:
        return Typed(result, at, _typed(_INTEGERS[name], SPARK_TYPES[result]), arguments)
    if result in FLOATS and name in _FLOATS:
        return Typed(result, at, _checked_float(name, SPARK_TYPES[result]), arguments)
    return None


def prefix_operator(name: str, argument: Typed, at: int) -> Typed:
    """Translate the prefix operator +, - or ~.

    Raises:
        Refused: The operator on values of this type is not translated.
    """
    if name == "+":
        return argument
    if name == "-" and argument.type == "numeric":
        return negated(argument, at)
    if argument.type not in (INTEGERS if name == "~" else INTEGERS | FLOATS):
        raise Refused(f"the prefix operator {name} on values of type {argument.type} is not translated", at)
    return Typed(argument.type, at, F.bitwise_not if name == "~" else (lambda column: -column), (argument,))


# In ANSI mode, overflow and division by zero raise an error.
_INTEGERS: Final[dict[str, Apply]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: F.call_function("div", a, b),
    "%": lambda a, b: a % b,
    "&": lambda a, b: a.bitwiseAND(b),
    "|": lambda a, b: a.bitwiseOR(b),
    "#": lambda a, b: a.bitwiseXOR(b),
}


def _typed(apply: Apply, type_: str) -> Apply:
    return lambda a, b: apply(a.cast(type_), b.cast(type_)).cast(type_)


_FLOATS: Final = frozenset("+-*/")


def _checked_float(name: str, type_: str) -> Apply:
    """IEEE arithmetic that raises an error where PostgreSQL's float.h does: overflow, underflow, division by zero."""

    def apply(a: Column, b: Column) -> Column:
        a, b = a.cast(type_), b.cast(type_)
        if name == "/":
            # NaN / 0 is NaN; Spark would raise an error
            divided = F.when(b != 0, (a / b).cast(type_)).when(F.isnan(a), a)
            # NULL / 0 is NULL, but for Spark NULL is no NaN
            result = F.when((b == 0) & a.isNotNull() & ~F.isnan(a), failure("division by zero")).otherwise(divided)
            lost = (result == 0) & (a != 0) & ~_infinite(b)
        else:
            result = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b}[name]()
            lost = (result == 0) & (a != 0) & (b != 0) if name == "*" else F.lit(False)
        return (
            F.when(_infinite(result) & ~_infinite(a) & ~_infinite(b), failure("value out of range: overflow"))
            .when(lost, failure("value out of range: underflow"))
            .otherwise(result)
        )

    return apply


def _infinite(value: Column) -> Column:
    return value.isin(float("inf"), float("-inf"))


_WHOLE: Final = 2.0**52  # every greater float8 is a whole number


def function(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate a function whose first argument is a number; None for any other function.

    Raises:
        Refused: The function is not translated for these arguments.
    """
    first = signature.arguments[0] if signature.arguments else ""
    if first == "numeric":
        return _of_numeric(name, arguments, at)
    apply: Callable[..., Column] | None = None
    if name == "to_hex":
        apply = _HEXADECIMAL[first]
    elif first in INTEGERS:
        apply = _INTEGER.get(name)
    elif first in FLOATS:
        apply = F.abs if name == "abs" else _FLOAT.get(name)
    return Typed(signature.result, at, apply, arguments) if apply else None


def _of_numeric(name: str, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    number = arguments[0]
    if name == "mod":
        return arithmetic("%", arguments, at)
    if name in {"abs", "sign"}:
        if not number.digits:
            raise Refused(f"{name} of numeric values without a precision is not translated", at)
        if name == "abs":
            return Typed("numeric", at, F.abs, arguments, number.digits)
        return Typed("numeric", at, lambda a: _sign(a).cast("decimal(1,0)"), arguments, Digits(1, 0))
    if name not in {"round", "trunc", "ceil", "ceiling", "floor"}:
        return None
    places = 0
    if len(arguments) > 1:
        if not isinstance(arguments[1], Constant) or arguments[1].value is None:
            raise Refused(f"{name} to a number of places that is not a literal is not translated", at)
        places = arguments[1].value
    return rounded(name.removesuffix("ing"), number, places, at)


def _sign(value: Column) -> Column:
    return F.when(value > 0, 1).when(value < 0, -1).when(value == 0, 0)


def _whole(function: Callable[[Column], Column]) -> Callable[[Column], Column]:
    """Spark's ceil or floor with PostgreSQL's result: a float8, not a bigint, which large values do not fit."""
    return lambda value: F.when(F.abs(value) < _WHOLE, function(value).cast("double")).otherwise(value)


def _trunc(value: Column) -> Column:
    return F.when(value < 0, _whole(F.ceil)(value)).otherwise(_whole(F.floor)(value))


def _square_root(value: Column) -> Column:
    # NaN is greater than 0
    return F.when(value < 0, failure("cannot take square root of a negative number")).otherwise(F.sqrt(value))


_HEXADECIMAL: Final[dict[str, Callable[[Column], Column]]] = {
    # a negative integer has 32 bits, too
    "int4": lambda value: F.lower(F.hex(value.cast("bigint").bitwiseAND(F.lit("4294967295").cast("bigint")))),
    "int8": lambda value: F.lower(F.hex(value)),
}
_INTEGER: Final[dict[str, Callable[..., Column]]] = {"abs": F.abs, "mod": lambda a, b: a % b}
_FLOAT: Final[dict[str, Callable[[Column], Column]]] = {
    "ceil": _whole(F.ceil),
    "ceiling": _whole(F.ceil),
    "floor": _whole(F.floor),
    "round": F.rint,
    "sqrt": _square_root,
    "trunc": _trunc,
    # the sign of NaN is 0 (dsign)
    "sign": lambda value: F.when(F.isnan(value), F.lit(0.0)).otherwise(_sign(value).cast("double")),
}

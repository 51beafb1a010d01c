"""Operators and functions on numbers: arithmetic, bitwise operators, rounding.

Overflow and division by zero raise an error, as in PostgreSQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, functions as F

from bridge.rowfilter.functions import numeric
from bridge.rowfilter.types.typed import SPARK_TYPES, Apply, Constant, Digits, Typed, failure
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.rowfilter.types.pg_catalog import Signature

INTEGERS: Final = frozenset({"int2", "int4", "int8"})
FLOATS: Final = frozenset({"float4", "float8"})


def operator(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
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
        return numeric.arithmetic(name, arguments, at)
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
        return numeric.negated(argument, at)
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
            result = F.when((b == 0) & ~F.isnan(a), failure("division by zero")).otherwise(divided)
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


def function(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
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
        return numeric.arithmetic("%", arguments, at)
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
    return numeric.rounded(name.removesuffix("ing"), number, places, at)


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

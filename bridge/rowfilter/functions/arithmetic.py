"""Arithmetic and bitwise operators on numbers.

Overflow and division by zero raise an error, as in PostgreSQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.functions import numeric
from bridge.rowfilter.functions.failure import failure
from bridge.rowfilter.types.constants import SPARK_TYPES
from bridge.rowfilter.types.typed import Typed
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from bridge.rowfilter.types.pg_catalog import Signature
    from bridge.rowfilter.types.typed import Apply

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

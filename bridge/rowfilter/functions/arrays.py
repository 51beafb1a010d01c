"""Operators and functions on one-dimensional arrays, and ANY and ALL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.functions import comparisons
from pgbridge.bridge.rowfilter.types.typed import Apply, Constant, Typed
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from pgbridge.bridge.rowfilter.types.pg_catalog import Signature

_FUNCTIONS: Final = frozenset({"array_length", "array_lower", "array_ndims", "array_upper", "cardinality"})


def operator(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate @>, <@ or && of two arrays of a type; None for any other operator.

    Raises:
        Refused: Spark does not compare the elements as PostgreSQL does.
    """
    if name not in {"@>", "<@", "&&"} or "anyarray" not in signature.arguments:
        return None
    left, right = arguments
    comparisons.check_elements(left, right, at)
    if name == "&&":
        return Typed("bool", at, _overlap, (left, right))
    return Typed("bool", at, _contains, (left, right) if name == "@>" else (right, left))


def _has(array: Column, item: Column) -> Column:
    """Whether an element equals the item; NULL equals nothing."""
    return F.coalesce(F.exists(array, lambda element: element == item), F.lit(False))


def _contains(whole: Column, part: Column) -> Column:
    every = F.forall(part, lambda item: _has(whole, item))
    return F.when(whole.isNotNull() & part.isNotNull(), every)


def _overlap(left: Column, right: Column) -> Column:
    shared = F.exists(left, lambda item: _has(right, item))
    return F.when(left.isNotNull() & right.isNotNull(), shared)


def quantified(left: Typed, array: Typed, compare: Apply, *, every: bool, at: int) -> Typed:
    """Translate `left operator ANY (array)`, or ALL.

    The result is NULL if no element decides and a comparison is NULL. An empty array decides whatever `left` is.
    """

    def apply(value: Column, items: Column) -> Column:
        return (F.forall if every else F.exists)(items, lambda item: compare(value, item))

    return Typed("bool", at, apply, (left, array))


def function(name: str, _signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate a function on an array, whose one dimension begins at 1; None for any other function.

    Raises:
        Refused: The dimension is not a literal.
    """
    if name not in _FUNCTIONS:
        return None
    if name == "cardinality":
        return Typed("int4", at, F.size, arguments)
    if name == "array_ndims":
        return Typed("int4", at, lambda array: F.when(F.size(array) > 0, F.lit(1)), arguments)
    dimension = arguments[1]
    if not isinstance(dimension, Constant):
        raise Refused("a dimension that is not a literal is not translated", dimension.at)
    if dimension.value != 1:
        return Typed("int4", at, lambda _: F.lit(None).cast("int"), (arguments[0],))
    if name == "array_lower":
        return Typed("int4", at, lambda array: F.when(F.size(array) > 0, F.lit(1)), (arguments[0],))
    return Typed("int4", at, lambda array: F.when(F.size(array) > 0, F.size(array)), (arguments[0],))

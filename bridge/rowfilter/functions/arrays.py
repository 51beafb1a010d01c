"""One-dimensional arrays: containment, overlap, ANY and ALL, lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.functions import comparisons
from bridge.rowfilter.typed import Constant, Typed
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column

    from bridge.rowfilter.typed import Apply


def implement(name: str, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """@>, <@ and && of two arrays of a type; None for other operators.

    Raises:
        Refused: Their elements are not compared in Spark as they are in PostgreSQL.
    """
    if name not in {"@>", "<@", "&&"}:
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
    some = F.exists(left, lambda item: _has(right, item))
    return F.when(left.isNotNull() & right.isNotNull(), some)


def quantified(left: Typed, array: Typed, compare: Apply, *, every: bool, at: int) -> Typed:
    """`left operator ANY (array)`, or ALL, by a comparison of columns.

    NULL where no element decides and one cannot be compared; an empty array decides for every left side.
    """

    def apply(one: Column, items: Column) -> Column:
        return (F.forall if every else F.exists)(items, lambda item: compare(one, item))

    return Typed("bool", at, apply, (left, array))


def function(name: str, arguments: tuple[Typed, ...], at: int) -> Typed:
    """Lengths and bounds: arrays have one dimension here, which begins at 1.

    Raises:
        Refused: The dimension is not a literal.
    """
    if name == "cardinality":
        return Typed("int4", at, F.size, arguments)
    if name == "array_ndims":
        return Typed("int4", at, lambda array: F.when(F.size(array) > 0, F.lit(1)), arguments)
    dimension = arguments[1]
    if not isinstance(dimension, Constant):
        raise Refused("a dimension that is not a literal is not translated", dimension.at)
    if dimension.value != 1:
        # arrays have one dimension here
        return Typed("int4", at, lambda _: F.lit(None).cast("int"), (arguments[0],))
    if name == "array_lower":
        return Typed("int4", at, lambda array: F.when(F.size(array) > 0, F.lit(1)), (arguments[0],))
    return Typed("int4", at, lambda array: F.when(F.size(array) > 0, F.size(array)), (arguments[0],))

"""Comparisons of rows of values, column by column, as in `make_row_comparison_op` (parse_expr.c)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.functions import comparisons
from bridge.rowfilter.types.typed import Typed
from bridge.sqltext import syntax
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Operate = Callable[[str, syntax.Node, syntax.Node], Typed]
    """Translates an operator, given its name and its operands."""


def compared(name: str, left: syntax.Node, right: syntax.Node, operate: Operate, at: int) -> Typed:
    """Translate a comparison of two rows.

    Two rows are equal if all their columns are. The first columns that differ decide which row is the smaller one. The
    result is NULL if it depends on a NULL.

    Raises:
        Refused: The rows differ in length, or PostgreSQL does not compare rows by this operator.
    """
    pairs = _pairs(left, right, at)
    if name in {"=", "<>"}:
        parts = [operate(name, *pair) for pair in pairs]
        return Typed("bool", at, _all if name == "=" else _any, tuple(parts))
    if name not in comparisons.COMPARISONS:
        raise Refused(f"rows are not compared by the operator {name}", at)
    decided = [operate(name, *pair) for pair in pairs]
    equal = [operate("=", *pair) for pair in pairs[:-1]]
    return Typed("bool", at, _in_order, (*equal, *decided))


def distinct(node: syntax.Distinct, operate: Operate) -> Typed:
    """Translate IS [NOT] DISTINCT FROM of two rows, which are distinct if two of their columns are."""
    comparisons = []
    for pair in _pairs(node.left, node.right, node.at):
        equal = operate("=", *pair)
        comparisons.append(Typed("bool", node.at, functools.partial(_distinct, equal), equal.arguments))
    negated = node.negated
    return Typed("bool", node.at, lambda *columns: ~_any(*columns) if negated else _any(*columns), tuple(comparisons))


def within(node: syntax.In, operate: Operate) -> Typed:
    """Translate [NOT] IN with rows: equal to one of them, or different from all."""
    parts = [compared("<>" if node.negated else "=", node.argument, item, operate, node.at) for item in node.items]
    return Typed("bool", node.at, _all if node.negated else _any, tuple(parts))


def null(columns: Sequence[Typed], *, negated: bool, at: int) -> Typed:
    """Translate IS [NOT] NULL of a row: IS NULL if all columns are NULL, IS NOT NULL if none is."""
    test = comparisons.test("null", negated=negated)
    return Typed("bool", at, lambda *verdicts: _all(*map(test, verdicts)), tuple(columns))


def _pairs(left: syntax.Node, right: syntax.Node, at: int) -> list[tuple[syntax.Node, syntax.Node]]:
    if not (isinstance(left, syntax.Row) and isinstance(right, syntax.Row)) or len(left.items) != len(right.items):
        raise Refused("unequal number of entries in row expressions", at)
    return list(zip(left.items, right.items, strict=True))


def _all(*columns: Column) -> Column:
    return functools.reduce(lambda a, b: a & b, columns)


def _any(*columns: Column) -> Column:
    return functools.reduce(lambda a, b: a | b, columns)


def _distinct(equal: Typed, left: Column, right: Column) -> Column:
    return comparisons.distinct(left, right, equal.apply)


def _in_order(*columns: Column) -> Column:
    """Whether a row comes before another.

    Args:
        columns: First whether each column but the last is equal, then the comparison of each column.
    """
    count = len(columns) // 2
    result = columns[-1]
    for equal, decides in reversed(list(zip(columns[:count], columns[count:-1], strict=True))):
        # where `equal` is NULL, so is `decides`, and with it the result
        result = F.when(equal, result).otherwise(decides)
    return result

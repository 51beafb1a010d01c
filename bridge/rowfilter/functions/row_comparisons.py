"""Rows of values against rows: compared column by column, as `make_row_comparison_op` of parse_expr.c has it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.functions import comparisons
from bridge.rowfilter.typed import Typed
from bridge.sqltext import syntax
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column

    Operate = Callable[[str, syntax.Node, syntax.Node], Typed]
    """Makes an operator's expression of its name and its sides."""


def compared(name: str, left: syntax.Node, right: syntax.Node, operate: Operate, at: int) -> Typed:
    """A row against a row.

    Rows are equal if all columns are, and different if one is. In their order the first columns that are not equal
    decide; where it depends on a NULL, it is NULL.

    Raises:
        Refused: Rows are not compared so.
    """
    pairs = _pairs(left, right, at)
    if name in {"=", "<>"}:
        found = [operate(name, *pair) for pair in pairs]
        return Typed("bool", at, _all if name == "=" else _any, tuple(found))
    if name not in comparisons.COMPARISONS:
        raise Refused(f"rows are not compared by the operator {name}", at)
    decided = [operate(name, *pair) for pair in pairs]
    equal = [operate("=", *pair) for pair in pairs[:-1]]
    return Typed("bool", at, _in_order, (*equal, *decided))


def distinct(node: syntax.Distinct, operate: Operate) -> Typed:
    """IS [NOT] DISTINCT FROM of two rows: whether columns are that are so."""
    found = []
    for pair in _pairs(node.left, node.right, node.at):
        equal = operate("=", *pair)
        found.append(Typed("bool", node.at, functools.partial(_distinct, equal), equal.arguments))
    negated = node.negated
    return Typed("bool", node.at, lambda *columns: ~_any(*columns) if negated else _any(*columns), tuple(found))


def within(node: syntax.In, operate: Operate) -> Typed:
    """[NOT] IN: equal to one row, or different from all."""
    found = [compared("<>" if node.negated else "=", node.argument, item, operate, node.at) for item in node.items]
    return Typed("bool", node.at, _all if node.negated else _any, tuple(found))


def null(columns: Sequence[Typed], *, negated: bool, at: int) -> Typed:
    """IS NULL: all columns are; IS NOT NULL: none is."""
    test = comparisons.test("null", negated=negated)
    return Typed("bool", at, lambda *found: _all(*map(test, found)), tuple(columns))


def _pairs(left: syntax.Node, right: syntax.Node, at: int) -> list[tuple[syntax.Node, syntax.Node]]:
    if not (isinstance(left, syntax.Row) and isinstance(right, syntax.Row)) or len(left.items) != len(right.items):
        raise Refused("unequal number of entries in row expressions", at)
    return list(zip(left.items, right.items, strict=True))


def _all(*columns: Column) -> Column:
    return functools.reduce(lambda a, b: a & b, columns)


def _any(*columns: Column) -> Column:
    return functools.reduce(lambda a, b: a | b, columns)


def _distinct(equal: Typed, one: Column, other: Column) -> Column:
    return comparisons.distinct(one, other, equal.apply)


def _in_order(*columns: Column) -> Column:
    """Of whether all columns but the last are equal, and what each would decide."""
    count = len(columns) // 2
    result = columns[-1]
    for equal, decides in reversed(list(zip(columns[:count], columns[count:-1], strict=True))):
        # decides is NULL where equal is: then it is for all of the row
        result = F.when(equal, result).otherwise(decides)
    return result

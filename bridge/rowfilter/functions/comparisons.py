"""Comparison operators, and the tests of IS.

Rows of values are compared column by column, as in `make_row_comparison_op` (parse_expr.c).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.functions import numbers
from pgbridge.bridge.rowfilter.types import encodings, literals, pg_catalog
from pgbridge.bridge.rowfilter.types.typed import STRINGS, Apply, Typed, collation_of, failure
from pgbridge.bridge.sqltext import syntax
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Operate = Callable[[str, syntax.Node, syntax.Node], Typed]
    """Translates an operator, given its name and its operands."""

COMPARISONS: Final[dict[str, Callable[[Column, Column], Column]]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_EQUALITIES: Final = frozenset({"=", "<>"})
DIRECT: Final = frozenset(
    # Spark orders these values as PostgreSQL does: NaN equals itself and is the greatest, -0 equals 0, bytes are
    # unsigned. A uuid and a time are ordered as their texts are.
    {"bool", "int2", "int4", "int8", "float4", "float8", "date", "timestamp", "timestamptz", "bytea", "uuid", "time"}
)
_MIXED: Final = frozenset({"date", "timestamp"})
_DAY_USECS: Final = 86_400_000_000
_LAST_DAY: Final = literals.END_OF_TIME // _DAY_USECS
_END_OF_TIMESTAMPS: Final = literals.days(294_277, 1, 1)


def operator(name: str, _signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate a comparison; None for any other operator.

    Raises:
        Refused: Spark cannot compare these values exactly as PostgreSQL does.
    """
    return compare(name, arguments[0], arguments[1], at) if name in COMPARISONS else None


def compare(name: str, left: Typed, right: Typed, at: int) -> Typed:
    """Compare two values of one type, or of two types that PostgreSQL has an operator for.

    Raises:
        Refused: Spark cannot compare these values exactly as PostgreSQL does.
    """
    types = {left.type, right.type}
    if types == _MIXED:
        return Typed("bool", at, _mixed(name, left), (left, right))
    if types == {"interval"}:
        return Typed("bool", at, _of(name, literals.span), (left, right))
    if types == {"numeric"}:
        return _compare_numerics(name, numbers.together(left, right), at)
    if types <= STRINGS:
        return _compare_strings(name, left, right, at)
    if left.type.startswith("_") and len(types) == 1 and name in _EQUALITIES:
        check_elements(left, right, at)
        return Typed("bool", at, COMPARISONS[name], (left, right))
    if not types <= DIRECT:
        raise Refused(f"comparing values of type {pg_catalog.shown(left.type)} is not translated", at)
    return Typed("bool", at, COMPARISONS[name], (left, right))


def check_elements(left: Typed, right: Typed, at: int) -> None:
    """Check that Spark compares the elements of two arrays as PostgreSQL does.

    Raises:
        Refused: It does not.
    """
    element = left.type.removeprefix("_")
    if element == "numeric":
        if left.digits != right.digits or not left.digits:
            raise Refused("comparing arrays of numeric values of different precision or scale is not translated", at)
    elif element in {"text", "varchar"}:
        _check_equality((left, right), at)
    elif element not in DIRECT:
        raise Refused(f"comparing values of type {pg_catalog.shown(left.type)} is not translated", at)


def distinct(left: Column, right: Column, equal: Apply) -> Column:
    """`left IS DISTINCT FROM right`, for values that `equal` compares."""
    return ~F.coalesce(equal(left, right), left.isNull() & right.isNull())


def test(what: str, *, negated: bool) -> Callable[[Column], Column]:
    """The test IS [NOT] NULL, TRUE, FALSE or UNKNOWN, whose result is never NULL."""
    tests: dict[str, Callable[[Column], Column]] = {
        "null": lambda value: value.isNull(),
        "unknown": lambda value: value.isNull(),
        "true": lambda value: F.coalesce(value, F.lit(False)),
        "false": lambda value: F.coalesce(~value, F.lit(False)),
    }
    return (lambda value: ~tests[what](value)) if negated else tests[what]


def _of(name: str, key: Callable[[Column], Column]) -> Apply:
    return lambda a, b: COMPARISONS[name](key(a), key(b))


def _compare_numerics(name: str, sides: tuple[Typed, ...], at: int) -> Typed:
    left, right = sides
    if left.digits:
        return Typed("bool", at, COMPARISONS[name], (left, right))
    if name in _EQUALITIES:
        return Typed("bool", at, _of(name, numbers.canonical), (left, right))

    def apply(a: Column, b: Column) -> Column:
        known = a.isNotNull() & b.isNotNull()
        return F.when(known, COMPARISONS[name](numbers.ordered(a), numbers.ordered(b)))

    return Typed("bool", at, apply, (left, right))


def _compare_strings(name: str, left: Typed, right: Typed, at: int) -> Typed:
    if name in _EQUALITIES:
        _check_equality((left, right), at)
    else:
        check_order((left, right), at)
    if left.type == "bpchar":
        return Typed("bool", at, _of(name, F.rtrim), (left, right))
    return Typed("bool", at, COMPARISONS[name], (left, right))


def _check_equality(nodes: tuple[Typed, ...], at: int) -> None:
    collation = collation_of(nodes, at)
    if not collation.deterministic:
        raise Refused(f'equality by the nondeterministic collation "{collation.name}" is not translated', at)


def check_order(nodes: tuple[Typed, ...], at: int, encoding: encodings.Encoding = encodings.UTF8) -> None:
    """Check that strings are ordered by their bytes in UTF-8.

    Raises:
        Refused: The collation, or the database's encoding, orders them in another way.
    """
    encodings.check_operator(encoding, "<", nodes, at)
    collation = collation_of(nodes, at)
    if not collation.bytewise:
        raise Refused(
            f'the order of text depends on collation "{collation.name}", which only the server knows; '
            'COLLATE "C" is translated',
            at,
        )


def _mixed(name: str, left: Typed) -> Apply:
    """Compare a date with a timestamp, or a timestamp with a date."""
    keys = (_day, _instant) if left.type == "date" else (_instant, _day)
    return lambda a, b: COMPARISONS[name](keys[0](a), keys[1](b))


def _instant(value: Column) -> Column:
    """A timestamp in microseconds since 1970."""
    return F.unix_micros(value.cast("timestamp"))


def _day(value: Column) -> Column:
    """The first microsecond of a date; one between the last timestamp and infinity if no timestamp is as late."""
    day = F.unix_date(value).cast("bigint")
    forever, last, ever = (
        F.lit(str(end)).cast("bigint")
        for end in (literals.END_OF_TIME, literals.END_OF_TIME - 1, -literals.END_OF_TIME - 1)
    )
    ends = F.when(day == literals.FOREVER, forever).when(day < -_LAST_DAY, ever).when(day >= _END_OF_TIMESTAMPS, last)
    # PostgreSQL's timestamps end some years later than Spark's
    unknown = failure("dates of the years 294247 to 294276 are not compared with timestamps")
    return ends.when(day > _LAST_DAY, unknown).otherwise(day * _DAY_USECS)


def compare_rows(name: str, left: syntax.Node, right: syntax.Node, operate: Operate, at: int) -> Typed:
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
    if name not in COMPARISONS:
        raise Refused(f"rows are not compared by the operator {name}", at)
    decided = [operate(name, *pair) for pair in pairs]
    equal = [operate("=", *pair) for pair in pairs[:-1]]
    return Typed("bool", at, _in_order, (*equal, *decided))


def distinct_rows(node: syntax.Distinct, operate: Operate) -> Typed:
    """Translate IS [NOT] DISTINCT FROM of two rows, which are distinct if two of their columns are."""
    parts = []
    for pair in _pairs(node.left, node.right, node.at):
        equal = operate("=", *pair)
        parts.append(Typed("bool", node.at, functools.partial(_distinct, equal), equal.arguments))
    negated = node.negated
    return Typed("bool", node.at, lambda *columns: ~_any(*columns) if negated else _any(*columns), tuple(parts))


def within_rows(node: syntax.In, operate: Operate) -> Typed:
    """Translate [NOT] IN with rows: equal to one of them, or different from all."""
    parts = [compare_rows("<>" if node.negated else "=", node.argument, item, operate, node.at) for item in node.items]
    return Typed("bool", node.at, _all if node.negated else _any, tuple(parts))


def null_row(columns: Sequence[Typed], *, negated: bool, at: int) -> Typed:
    """Translate IS [NOT] NULL of a row: IS NULL if all columns are NULL, IS NOT NULL if none is."""
    verdict = test("null", negated=negated)
    return Typed("bool", at, lambda *verdicts: _all(*map(verdict, verdicts)), tuple(columns))


def _pairs(left: syntax.Node, right: syntax.Node, at: int) -> list[tuple[syntax.Node, syntax.Node]]:
    if not (isinstance(left, syntax.Row) and isinstance(right, syntax.Row)) or len(left.items) != len(right.items):
        raise Refused("unequal number of entries in row expressions", at)
    return list(zip(left.items, right.items, strict=True))


def _all(*columns: Column) -> Column:
    return functools.reduce(lambda a, b: a & b, columns)


def _any(*columns: Column) -> Column:
    return functools.reduce(lambda a, b: a | b, columns)


def _distinct(equal: Typed, left: Column, right: Column) -> Column:
    return distinct(left, right, equal.apply)


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

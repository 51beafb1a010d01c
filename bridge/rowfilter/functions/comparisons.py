"""=, <>, <, <=, >, >= and IS DISTINCT FROM of two values of types that PostgreSQL compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter import intervals
from bridge.rowfilter.encodings import UTF8, Encoding, check_operator
from bridge.rowfilter.functions import numeric
from bridge.rowfilter.functions.arithmetic import failure
from bridge.rowfilter.literals import END_OF_TIME, FOREVER, days
from bridge.rowfilter.type_names import shown
from bridge.rowfilter.typed import STRINGS, Typed, collation_of
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    from bridge.rowfilter.typed import Apply

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
    # Spark's order is PostgreSQL's: NaN equals itself and is the greatest, -0 equals 0, bytes are unsigned.
    # A uuid's and a time's text is ordered as the value is.
    {"bool", "int2", "int4", "int8", "float4", "float8", "date", "timestamp", "timestamptz", "bytea", "uuid", "time"}
)
_MIXED: Final = frozenset({"date", "timestamp"})
_DAY_USECS: Final = 86_400_000_000
_LAST_DAY: Final = END_OF_TIME // _DAY_USECS
_END_OF_TIMESTAMPS: Final = days(294_277, 1, 1)


def compare(name: str, left: Typed, right: Typed, at: int) -> Typed:
    """A comparison of two values of a type, or of two that PostgreSQL has an operator for.

    Raises:
        Refused: The order or the equality is not to be had exactly.
    """
    types = {left.type, right.type}
    if types == _MIXED:
        return Typed("bool", at, _mixed(name, left), (left, right))
    if types == {"interval"}:
        return Typed("bool", at, _of(name, intervals.span), (left, right))
    if types == {"numeric"}:
        return _compare_numerics(name, numeric.together(left, right), at)
    if types <= STRINGS:
        return _compare_strings(name, left, right, at)
    if left.type.startswith("_") and len(types) == 1 and name in _EQUALITIES:
        check_elements(left, right, at)
        return Typed("bool", at, COMPARISONS[name], (left, right))
    if not types <= DIRECT:
        raise Refused(f"comparing values of type {shown(left.type)} is not translated", at)
    return Typed("bool", at, COMPARISONS[name], (left, right))


def check_elements(left: Typed, right: Typed, at: int) -> None:
    """Refuse arrays whose elements Spark does not compare as PostgreSQL does.

    Raises:
        Refused: They are such.
    """
    element = left.type.removeprefix("_")
    if element == "numeric":
        if left.digits != right.digits or not left.digits:
            raise Refused("comparing arrays of numeric values of different digits is not translated", at)
    elif element in {"text", "varchar"}:
        _check_equality((left, right), at)
    elif element not in DIRECT:
        raise Refused(f"comparing values of type {shown(left.type)} is not translated", at)


def distinct(left: Column, right: Column, equal: Apply) -> Column:
    """IS DISTINCT FROM, of what `equal` compares."""
    return ~F.coalesce(equal(left, right), left.isNull() & right.isNull())


def test(what: str, *, negated: bool) -> Callable[[Column], Column]:
    """IS [NOT] NULL, TRUE, FALSE or UNKNOWN, which are never NULL."""
    tests: dict[str, Callable[[Column], Column]] = {
        "null": lambda one: one.isNull(),
        "unknown": lambda one: one.isNull(),
        "true": lambda one: F.coalesce(one, F.lit(False)),
        "false": lambda one: F.coalesce(~one, F.lit(False)),
    }
    return (lambda one: ~tests[what](one)) if negated else tests[what]


def _of(name: str, key: Callable[[Column], Column]) -> Apply:
    return lambda a, b: COMPARISONS[name](key(a), key(b))


def _compare_numerics(name: str, sides: tuple[Typed, ...], at: int) -> Typed:
    left, right = sides
    if left.digits:
        return Typed("bool", at, COMPARISONS[name], (left, right))
    if name in _EQUALITIES:
        return Typed("bool", at, _of(name, numeric.canonical), (left, right))

    def apply(a: Column, b: Column) -> Column:
        known = a.isNotNull() & b.isNotNull()
        return F.when(known, COMPARISONS[name](numeric.ordered(a), numeric.ordered(b)))

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


def check_order(nodes: tuple[Typed, ...], at: int, encoding: Encoding = UTF8) -> None:
    """Refuse strings whose order is not that of their bytes in UTF-8.

    Raises:
        Refused: It is another collation's, or that of bytes in the database's encoding.
    """
    check_operator(encoding, "<", nodes, at)
    collation = collation_of(nodes, at)
    if not collation.bytewise:
        raise Refused(
            f'the order of text by collation "{collation.name}" is the server\'s alone; COLLATE "C" can be had', at
        )


def _mixed(name: str, left: Typed) -> Apply:
    """A date with a timestamp, or the other way round."""
    keys = (_day, _instant) if left.type == "date" else (_instant, _day)
    return lambda a, b: COMPARISONS[name](keys[0](a), keys[1](b))


def _instant(value: Column) -> Column:
    """A timestamp in microseconds since 1970."""
    return F.unix_micros(value.cast("timestamp"))


def _day(value: Column) -> Column:
    """A date's first microsecond; of one that no timestamp can reach one between the last of them and infinity."""
    day = F.unix_date(value).cast("bigint")
    forever, last, ever = (F.lit(str(end)).cast("bigint") for end in (END_OF_TIME, END_OF_TIME - 1, -END_OF_TIME - 1))
    ends = F.when(day == FOREVER, forever).when(day < -_LAST_DAY, ever).when(day >= _END_OF_TIMESTAMPS, last)
    # PostgreSQL's timestamps reach some years further than Spark's
    unknown = failure("dates of the years 294247 to 294276 are not compared with timestamps")
    return ends.when(day > _LAST_DAY, unknown).otherwise(day * _DAY_USECS)

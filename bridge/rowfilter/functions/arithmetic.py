"""+, -, *, / and % of integers and floats, and of dates and timestamps.

Where PostgreSQL raises an error (overflow, division by zero) the column does, too: the walsender of a server-side
publication would have stopped at the row, and a verdict would be made up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.constants import SPARK_TYPES
from bridge.rowfilter.functions import numeric
from bridge.rowfilter.literals import END_OF_TIME, FOREVER
from bridge.rowfilter.typed import Constant, Typed
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column

    from bridge.rowfilter.pg_catalog import Signature
    from bridge.rowfilter.typed import Apply

INTEGERS: Final = frozenset({"int2", "int4", "int8"})
FLOATS: Final = frozenset({"float4", "float8"})
_FIRST_DATE: Final = -2_440_588  # 4714-11-24 BC, Julian day 0
_END_DATE: Final = 2_145_031_949 - 0  # 5874898-06-03, DATE_END_JULIAN
_FIRST_TIMESTAMP: Final = _FIRST_DATE * 86_400_000_000


def implement(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """The operator on arguments of its signature's types; None if it is none of these.

    Raises:
        Refused: It is not translated.
    """
    result = signature.result
    if result == "numeric":
        if name in {"/", "^"}:
            raise Refused(f"the operator {name} on numeric values is not translated: its scale depends on them", at)
        return numeric.arithmetic(name, arguments, at)
    if "interval" in signature.arguments and set(signature.arguments) & {"date", "timestamp"}:
        return _with_interval(name, signature, arguments, at)
    apply: Apply | None = None
    if result in INTEGERS and set(signature.arguments) <= INTEGERS:
        apply = _INTEGERS.get(name) and _typed(_INTEGERS[name], SPARK_TYPES[result])
    elif result in FLOATS and name in _FLOATS:
        apply = _checked_float(name, SPARK_TYPES[result])
    else:
        apply = _DATES.get((name, *signature.arguments))
    return Typed(result, at, apply, arguments) if apply else None


def _with_interval(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed:
    """A date or a timestamp without time zone, plus or minus a literal: every day of it has 24 hours."""
    moment, interval = arguments if signature.arguments[1] == "interval" else arguments[::-1]
    if not isinstance(interval, Constant) or (interval.value is not None and interval.value.months):
        raise Refused("adding intervals is translated for literals of days, hours, minutes and seconds", interval.at)
    usecs = None
    if interval.value is not None:
        usecs = str((interval.value.days * 86_400_000_000 + interval.value.usecs) * (1 if name == "+" else -1))
    start = _midnight if moment.type == "date" else _usecs
    return Typed("timestamp", at, lambda a: timestamp_of(start(a) + F.lit(usecs).cast("bigint")), (moment,))


def negate(node: Typed, at: int) -> Typed:
    """The prefix operator -."""
    if node.type == "numeric":
        return numeric.negated(node, at)
    if node.type not in INTEGERS | FLOATS:
        raise Refused(f"the prefix operator - on values of type {node.type} is not translated", at)
    return Typed(node.type, at, lambda column: -column, (node,))


def complement(node: Typed, at: int) -> Typed:
    """The prefix operator ~."""
    if node.type not in INTEGERS:
        raise Refused(f"the prefix operator ~ on values of type {node.type} is not translated", at)
    return Typed(node.type, at, F.bitwise_not, (node,))


def failure(message: str) -> Column:
    """A column that raises as soon as it is computed."""
    return F.raise_error(F.lit(f"row filter: {message}"))


_INTEGERS: Final[dict[str, Apply]] = {
    # in ANSI mode these raise on overflow, and on division by zero
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
    """IEEE arithmetic that raises where float.h's does: overflow, underflow, division by zero."""

    def apply(a: Column, b: Column) -> Column:
        a, b = a.cast(type_), b.cast(type_)
        if name == "/":
            # not a number divided by zero is none; Spark would raise
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


def date_of(days: Column) -> Column:
    """The date so many (bigint) days after 1970, an error if PostgreSQL has no such date."""
    out = (days < _FIRST_DATE) | (days >= _END_DATE)
    return F.when(out, failure("date out of range")).otherwise(F.date_from_unix_date(days.cast("int")))


def timestamp_of(usecs: Column) -> Column:
    """The timestamp without time zone so many microseconds after 1970."""
    early = F.when(usecs < _FIRST_TIMESTAMP, failure("timestamp out of range"))
    return early.otherwise(F.timestamp_micros(usecs).cast("timestamp_ntz"))


def infinite(type_: str, value: Column) -> Column:
    """Whether a date or timestamp is an infinity, as `literals` has them."""
    if type_ == "date":
        return F.unix_date(value).isin(FOREVER, -FOREVER - 1)
    ends = (F.lit(str(end)).cast("bigint") for end in (END_OF_TIME, -END_OF_TIME - 1))
    return F.unix_micros(value.cast("timestamp")).isin(*ends)


def finite(type_: str, value: Column) -> Column:
    """A date or timestamp with which there is reckoned; with an infinity it is an error."""
    reason = f"reckoning with the {type_} infinity is not translated"
    return F.when(infinite(type_, value), failure(reason)).otherwise(value)


def _days(date: Column) -> Column:
    return F.unix_date(finite("date", date)).cast("bigint")


def _usecs(timestamp: Column) -> Column:
    return F.unix_micros(finite("timestamp", timestamp).cast("timestamp"))


def _midnight(date: Column) -> Column:
    return F.unix_micros(finite("date", date).cast("timestamp_ntz").cast("timestamp"))


_DATES: Final[dict[tuple[str, ...], Apply]] = {
    ("+", "date", "int4"): lambda a, b: date_of(_days(a) + b),
    ("+", "int4", "date"): lambda a, b: date_of(_days(b) + a),
    ("-", "date", "int4"): lambda a, b: date_of(_days(a) - b),
    ("-", "date", "date"): lambda a, b: (_days(a) - _days(b)).cast("int"),
}

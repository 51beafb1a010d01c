"""Operators and functions on dates and timestamps whose results do not depend on TimeZone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.types import literals, pg_catalog
from pgbridge.bridge.rowfilter.types.typed import Apply, Constant, Digits, Typed, failure
from pgbridge.bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_DATE: Final = -2_440_588  # 4714-11-24 BC, Julian day 0
_END_DATE: Final = 2_145_031_949  # 5874898-06-03, DATE_END_JULIAN
_FIRST_TIMESTAMP: Final = _FIRST_DATE * 86_400_000_000


def operator(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate + or - with a date or a timestamp; None for any other operator.

    Raises:
        Refused: The interval is not a literal, or has months.
    """
    if "interval" in signature.arguments and set(signature.arguments) & {"date", "timestamp"}:
        return _with_interval(name, signature, arguments, at)
    apply = _OPERATORS.get((name, *signature.arguments))
    return Typed(signature.result, at, apply, arguments) if apply else None


def _with_interval(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed:
    """A date or a timestamp plus or minus a literal interval; without a time zone, each day has 24 hours."""
    moment, interval = arguments if signature.arguments[1] == "interval" else arguments[::-1]
    if not isinstance(interval, Constant) or (interval.value is not None and interval.value.months):
        raise Refused(
            "adding intervals is translated only for literals of days, hours, minutes and seconds", interval.at
        )
    usecs = None
    if interval.value is not None:
        usecs = str((interval.value.days * 86_400_000_000 + interval.value.usecs) * (1 if name == "+" else -1))
    start = _midnight if moment.type == "date" else _usecs
    return Typed("timestamp", at, lambda a: _timestamp_of(start(a) + F.lit(usecs).cast("bigint")), (moment,))


def infinite(type_: str, value: Column) -> Column:
    """Whether a date or timestamp is one of the infinities of `literals`."""
    if type_ == "date":
        return F.unix_date(value).isin(literals.FOREVER, -literals.FOREVER - 1)
    ends = (F.lit(str(end)).cast("bigint") for end in (literals.END_OF_TIME, -literals.END_OF_TIME - 1))
    return F.unix_micros(value.cast("timestamp")).isin(*ends)


def finite(type_: str, value: Column) -> Column:
    """The date or timestamp; an error if it is an infinity, whose arithmetic is not translated."""
    reason = f"arithmetic with the {type_} infinity is not translated"
    return F.when(infinite(type_, value), failure(reason)).otherwise(value)


def _date_of(days: Column) -> Column:
    """The date at this many (bigint) days since 1970; an error if PostgreSQL does not have it."""
    out = (days < _FIRST_DATE) | (days >= _END_DATE)
    return F.when(out, failure("date out of range")).otherwise(F.date_from_unix_date(days.cast("int")))


def _timestamp_of(usecs: Column) -> Column:
    """The timestamp without time zone at this many microseconds since 1970; an error if it is too early."""
    early = F.when(usecs < _FIRST_TIMESTAMP, failure("timestamp out of range"))
    return early.otherwise(F.timestamp_micros(usecs).cast("timestamp_ntz"))


def _days(date: Column) -> Column:
    return F.unix_date(finite("date", date)).cast("bigint")


def _usecs(timestamp: Column) -> Column:
    return F.unix_micros(finite("timestamp", timestamp).cast("timestamp"))


def _midnight(date: Column) -> Column:
    return F.unix_micros(finite("date", date).cast("timestamp_ntz").cast("timestamp"))


_OPERATORS: Final[dict[tuple[str, ...], Apply]] = {
    ("+", "date", "int4"): lambda a, b: _date_of(_days(a) + b),
    ("+", "int4", "date"): lambda a, b: _date_of(_days(b) + a),
    ("-", "date", "int4"): lambda a, b: _date_of(_days(a) - b),
    ("-", "date", "date"): lambda a, b: (_days(a) - _days(b)).cast("int"),
}


def _usecs_of_minute(value: Column) -> Column:
    return F.pmod(F.unix_micros(value.cast("timestamp")), F.lit(60_000_000))


_FIELDS: Final[dict[str, Callable[[Column], Column]]] = {
    "year": lambda value: _year(F.year(value)),
    "quarter": F.quarter,
    "month": F.month,
    "day": F.dayofmonth,
    "dow": lambda value: F.dayofweek(value) - 1,
    "isodow": lambda value: F.weekday(value) + 1,
    "doy": F.dayofyear,
    "week": F.weekofyear,
    "isoyear": lambda value: _year(F.year(F.date_add(value.cast("date"), F.lit(3) - F.weekday(value)))),
    "decade": lambda value: _years(value, 10, 0, 8),
    "century": lambda value: _years(value, 100, 99, 99),
    "millennium": lambda value: _years(value, 1000, 999, 999),
}
_DATE_FIELDS: Final[dict[str, Callable[[Column], Column]]] = {
    "epoch": lambda value: F.unix_date(value).cast("bigint") * 86_400,
}
_CLOCK_FIELDS: Final[dict[str, Callable[[Column], Column]]] = {
    "hour": F.hour,
    "minute": F.minute,
    "second": _usecs_of_minute,
    "milliseconds": _usecs_of_minute,
    "microseconds": _usecs_of_minute,
    "epoch": lambda value: F.unix_micros(value.cast("timestamp")),
}
_SCALES: Final = {"second": 6, "milliseconds": 3, "epoch": 6}
"""Fields of a timestamp that are computed in microseconds -> the digits that they have after the decimal point."""
_SPELLINGS: Final = {
    **{f"{name}s": name for name in ("year", "month", "day", "hour", "minute", "second")},
    "y": "year", "yr": "year", "yrs": "year", "mon": "month", "mons": "month", "d": "day", "h": "hour", "hr": "hour",
    "hrs": "hour", "min": "minute", "mins": "minute", "sec": "second", "secs": "second", "qtr": "quarter",
    "weeks": "week",
}  # fmt: skip
_TRUNCATED: Final = frozenset({"year", "quarter", "month", "week", "day", "hour", "minute", "second"})


def function(name: str, signature: pg_catalog.Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """Translate extract, date_part, date_trunc, make_date or isfinite; None for any other function.

    Raises:
        Refused: The function is not translated for these arguments.
    """
    if name in {"extract", "date_part"}:
        return _extract(signature.result, _field(arguments[0]), arguments[1], at)
    if name == "date_trunc" and signature.arguments == ("text", "timestamp"):
        field = _field(arguments[0])
        if field not in _TRUNCATED:
            raise Refused(f'date_trunc to "{field}" is not translated', at)

        def truncated(value: Column) -> Column:
            return F.date_trunc(field, finite("timestamp", value)).cast("timestamp_ntz")

        return Typed("timestamp", at, truncated, (arguments[1],))
    if name == "make_date":
        return Typed("date", at, _make_date, arguments)
    if name == "isfinite" and signature.arguments[0] != "interval":
        return Typed("bool", at, lambda value: ~infinite(arguments[0].type, value), arguments)
    return None


def _field(node: Typed) -> str:
    if not isinstance(node, Constant) or node.value is None:
        raise Refused("a field that is not a literal is not translated", node.at)
    field: str = node.value.lower()
    return _SPELLINGS.get(field, field)


def _extract(result: str, field: str, value: Typed, at: int) -> Typed:
    """A field of a date or timestamp: a float8 from date_part, a numeric from extract."""
    fields = {"date": _FIELDS | _DATE_FIELDS, "timestamp": _FIELDS | _CLOCK_FIELDS}.get(value.type, {})
    extract = fields.get(field)
    if extract is None:
        raise Refused(f'the field "{field}" of type {pg_catalog.shown(value.type)} is not translated', at)

    def part(column: Column) -> Column:
        return extract(finite(value.type, column))

    scale = _SCALES.get(field, 0) if value.type == "timestamp" else 0
    if result == "float8":
        as_float = _FLOATS[field] if scale else lambda number: number.cast("double")
        return Typed(result, at, lambda column: as_float(part(column)), (value,))
    if scale:
        unit = F.lit(f"{10**-scale:.{scale}f}").cast(f"decimal({scale},{scale})")
        digits = Digits(20, scale)
        exact = lambda column: (part(column).cast("decimal(20,0)") * unit).cast(f"decimal(20,{scale})")  # noqa: E731
        return Typed(result, at, exact, (value,), digits)
    digits = Digits(20 if field == "epoch" else 10, 0)
    type_ = f"decimal({digits.precision},0)"
    return Typed(result, at, lambda column: part(column).cast(type_), (value,), digits)


def _seconds(usecs: Column) -> Column:
    """Seconds, added up as in `timestamp_part_common`: the sum may differ from the nearest float8."""
    whole = F.floor(usecs / F.lit(1e6)).cast("double")
    return whole + (usecs % F.lit(1_000_000)).cast("double") / F.lit(1e6)


def _milliseconds(usecs: Column) -> Column:
    whole = F.floor(usecs / F.lit(1e6)).cast("double")
    return whole * 1000.0 + (usecs % F.lit(1_000_000)).cast("double") / F.lit(1000.0)


_FLOATS: Final[dict[str, Callable[[Column], Column]]] = {
    "second": _seconds,
    "milliseconds": _milliseconds,
    "epoch": lambda usecs: usecs.cast("double") / F.lit(1e6),
}


def _years(value: Column, size: int, after: int, before: int) -> Column:
    """The number of the decade, century or millennium, each of `size` years.

    Args:
        value: A date or timestamp.
        size: Years in a period.
        after: What `timestamp_part_common` adds to a year from the first period on; 0 if that begins with year 0.
        before: What it adds to a year before the first period.
    """
    year = F.year(value)
    behind = year > 0 if after else year >= 0
    later = F.call_function("div", year + after, F.lit(size))
    return F.when(behind, later).otherwise(-F.call_function("div", F.lit(before + 1) - year, F.lit(size)))


def _year(astronomical: Column) -> Column:
    """PostgreSQL's year of a year in Spark, where 1 BC is 0: in PostgreSQL it is -1."""
    return F.when(astronomical > 0, astronomical).otherwise(astronomical - 1)


def _make_date(year: Column, month: Column, day: Column) -> Column:
    known = year.isNotNull() & month.isNotNull() & day.isNotNull()
    # 1 BC is year -1; PostgreSQL's dates end with the year 5874897
    usable = (year != 0) & (F.abs(year.cast("bigint")) <= 5_874_897)
    made = F.make_date(F.when(year < 0, year + 1).otherwise(year), month, day)
    checked = _date_of(F.unix_date(made).cast("bigint"))
    return F.when(known, F.when(usable, checked).otherwise(failure("date field value out of range")))

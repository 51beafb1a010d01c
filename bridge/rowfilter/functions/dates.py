"""extract, date_part, date_trunc and make_date, of what does not depend on TimeZone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.functions.arithmetic import date_of, failure, finite, infinite
from bridge.rowfilter.type_names import shown
from bridge.rowfilter.typed import Constant, Digits, Typed
from bridge.sqltext.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    from bridge.rowfilter.pg_catalog import Signature


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
"""Fields of a timestamp that are computed in microseconds, and are not whole: their digits behind the point."""
_SPELLINGS: Final = {
    **{f"{name}s": name for name in ("year", "month", "day", "hour", "minute", "second")},
    "y": "year", "yr": "year", "yrs": "year", "mon": "month", "mons": "month", "d": "day", "h": "hour", "hr": "hour",
    "hrs": "hour", "min": "minute", "mins": "minute", "sec": "second", "secs": "second", "qtr": "quarter",
    "weeks": "week",
}  # fmt: skip
_TRUNCATED: Final = frozenset({"year", "quarter", "month", "week", "day", "hour", "minute", "second"})


def implement(name: str, signature: Signature, arguments: tuple[Typed, ...], at: int) -> Typed | None:
    """The function on dates and timestamps; None if it is none of these.

    Raises:
        Refused: It is not translated for these arguments.
    """
    if name in {"extract", "date_part"}:
        return _extract(signature.result, _field(arguments[0]), arguments[1], at)
    if name == "date_trunc" and signature.arguments == ("text", "timestamp"):
        field = _field(arguments[0])
        if field not in _TRUNCATED:
            raise Refused(f'date_trunc to "{field}" is not translated', at)
        return Typed(
            "timestamp", at, lambda value: F.date_trunc(field, finite("timestamp", value)).cast("timestamp_ntz"),
            (arguments[1],),
        )  # fmt: skip
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
    """A field; `date_part` answers a float8, `extract` a numeric."""
    fields = {"date": _FIELDS | _DATE_FIELDS, "timestamp": _FIELDS | _CLOCK_FIELDS}.get(value.type, {})
    found = fields.get(field)
    if found is None:
        raise Refused(f'the field "{field}" of type {shown(value.type)} is not translated', at)

    def part(column: Column) -> Column:
        return found(finite(value.type, column))

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
    """As `timestamp_part_common` adds them up, which may differ from the nearest float8."""
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
    """Which period of so many years: the first one after our era begins with year 1, or 0 with `after` 0."""
    year = F.year(value)
    behind = year > 0 if after else year >= 0
    later = F.call_function("div", year + after, F.lit(size))
    return F.when(behind, later).otherwise(-F.call_function("div", F.lit(before + 1) - year, F.lit(size)))


def _year(astronomical: Column) -> Column:
    """1 BC is year -1, not 0."""
    return F.when(astronomical > 0, astronomical).otherwise(astronomical - 1)


def _make_date(year: Column, month: Column, day: Column) -> Column:
    known = year.isNotNull() & month.isNotNull() & day.isNotNull()
    # 1 BC is year -1; years beyond have no date, as in PostgreSQL
    usable = (year != 0) & (F.abs(year.cast("bigint")) <= 5_874_897)
    made = F.make_date(F.when(year < 0, year + 1).otherwise(year), month, day)
    checked = date_of(F.unix_date(made).cast("bigint"))
    return F.when(known, F.when(usable, checked).otherwise(failure("date field value out of range")))

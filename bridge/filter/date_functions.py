"""extract, date_part, date_trunc and make_date, of what does not depend on TimeZone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.filter.arithmetic import date_of, failure, finite, infinite
from bridge.filter.refusal import Refused
from bridge.filter.type_names import shown
from bridge.filter.typed import Constant, Digits, Typed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    from bridge.filter.pg_catalog import Signature

_FIELDS: Final[dict[str, Callable[[Column], Column]]] = {
    "year": lambda value: _year(F.year(value)),
    "quarter": F.quarter,
    "month": F.month,
    "day": F.dayofmonth,
    "dow": lambda value: F.dayofweek(value) - 1,
    "isodow": lambda value: F.weekday(value) + 1,
    "doy": F.dayofyear,
    "week": F.weekofyear,
}
_CLOCK_FIELDS: Final[dict[str, Callable[[Column], Column]]] = {
    "hour": F.hour,
    "minute": F.minute,
    "second": lambda value: F.pmod(F.unix_micros(value.cast("timestamp")), F.lit(60_000_000)),
}
_SPELLINGS: Final = {
    **{f"{name}s": name for name in ("year", "month", "day", "hour", "minute", "second")},
    "y": "year", "yr": "year", "yrs": "year", "mon": "month", "mons": "month", "d": "day", "h": "hour", "hr": "hour",
    "hrs": "hour", "min": "minute", "mins": "minute", "sec": "second", "secs": "second", "qtr": "quarter",
    "weeks": "week",
}  # fmt: skip
_TRUNCATED: Final = frozenset({"year", "quarter", "month", "week", "day", "hour", "minute", "second"})
_WHOLE_DIGITS: Final = Digits(10, 0)
_SECOND_DIGITS: Final = Digits(8, 6)


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
    fields = {"date": _FIELDS, "timestamp": _FIELDS | _CLOCK_FIELDS}.get(value.type, {})
    found = fields.get(field)
    if found is None:
        raise Refused(f'the field "{field}" of type {shown(value.type)} is not translated', at)

    def part(column: Column) -> Column:
        return found(finite(value.type, column))

    if result == "float8":
        apply = (lambda column: _seconds(part(column))) if field == "second" else (lambda c: part(c).cast("double"))
        return Typed(result, at, apply, (value,))
    if field == "second":
        micros = Typed("int8", at, part, (value,))
        return Typed(
            result, at, lambda column: (column.cast("decimal(8,0)") / F.lit(1_000_000)).cast("decimal(8,6)"),
            (micros,), _SECOND_DIGITS,
        )  # fmt: skip
    return Typed(result, at, lambda column: part(column).cast("decimal(10,0)"), (value,), _WHOLE_DIGITS)


def _seconds(usecs: Column) -> Column:
    """As `timestamp_part_common` adds them up, which may differ from the nearest float8."""
    whole = F.floor(usecs / F.lit(1e6)).cast("double")
    return whole + (usecs % F.lit(1_000_000)).cast("double") / F.lit(1e6)


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

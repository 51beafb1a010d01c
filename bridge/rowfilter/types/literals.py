"""Reads the text of a literal as PostgreSQL's input functions do; and intervals, also of columns.

A value is a bool, an int (a date in days, a timestamp in microseconds since 1970), a float, a Decimal (also NaN and the
infinities of numeric), a str, bytes or an `Interval`; an array is a list. Literals that PostgreSQL refuses are refused,
and so are those whose value depends on DateStyle, IntervalStyle or TimeZone.

PostgreSQL compares intervals as if months had 30 days and days 24 hours. Columns and constants have its text output in
the IntervalStyle `postgres`.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import Column, functions as F

from pgbridge.bridge.rowfilter.types.pg_catalog import shown
from pgbridge.bridge.sqltext.refusal import Refused
from pgbridge.protocol.values.output import interval_text

if TYPE_CHECKING:
    from collections.abc import Callable

_PART: Final = re.compile(
    r"\s*([+-]?\d+)\s*(year|years|yr|yrs|month|months|mon|mons|week|weeks|day|days|hour|hours|minute|minutes|min|mins"
    r"|second|seconds|sec|secs)(?![a-z])",
    re.ASCII | re.IGNORECASE,
)
_CLOCK: Final = re.compile(r"\s*([+-]?)(\d+):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?\s*", re.ASCII)
_MONTHS: Final = {"ye": 12, "yr": 12, "mo": 1}
_DAYS: Final = {"we": 7, "da": 1}
_USECS: Final = {"ho": 3_600_000_000, "mi": 60_000_000, "se": 1_000_000}
_DAY_USECS: Final = 86_400_000_000
_INFINITE: Final = 10**36


class Interval(NamedTuple):
    """A value of type interval."""

    months: int
    days: int
    usecs: int

    @property
    def text(self) -> str:
        """PostgreSQL's text output."""
        return interval_text(struct.pack(">qii", self.usecs, self.days, self.months))


def read(text: str) -> Interval:
    """Read a literal.

    Raises:
        ValueError: The literal has other units or fields than those that are translated, or is out of range.
    """
    at, months, days, usecs = 0, 0, 0, 0
    while part := _PART.match(text, at):
        count, unit = int(part[1]), part[2][:2].lower()
        months += count * _MONTHS.get(unit, 0)
        days += count * _DAYS.get(unit, 0)
        usecs += count * _USECS.get(unit, 0)
        at = part.end()
    clock = _CLOCK.match(text, at)
    if clock:
        sign = -1 if clock[1] == "-" else 1
        seconds = (int(clock[2]) * 60 + int(clock[3])) * 60 + int(clock[4] or 0)
        usecs += sign * (seconds * 1_000_000 + int((clock[5] or "0").ljust(6, "0")))
        at = clock.end()
    if not text.strip() or text[at:].strip():
        raise ValueError(
            f'"{text}" is not translated as type interval; write it in years, months, days, hours, minutes and seconds'
        )
    if max(abs(months), abs(days)) >= 1 << 31 or abs(usecs) >= 1 << 63:
        raise ValueError(f'interval field value out of range: "{text}"')
    return Interval(months, days, usecs)


def span(text: Column) -> Column:
    """The decimal by which intervals are compared (`interval_cmp_value`)."""
    days = (_number(text, "year") * 12 + _number(text, "mon")) * 30 + _number(text, "day")
    clock = r"([+-]?)(\d+):(\d+):(\d+)(?:\.(\d+))?$"
    hours, minutes, seconds = (_bigint(F.regexp_extract(text, clock, i)) for i in (2, 3, 4))
    fraction = _bigint(F.rpad(F.regexp_extract(text, clock, 5), 6, "0"))
    whole = ((hours * 60 + minutes) * 60 + seconds).cast("decimal(14,0)")
    usecs = whole * F.lit(1_000_000).cast("decimal(7,0)") + fraction.cast("decimal(6,0)")
    usecs = F.when(F.regexp_extract(text, clock, 1) == "-", -usecs).otherwise(usecs)
    finite = days.cast("decimal(14,0)") * F.lit(str(_DAY_USECS)).cast("decimal(11,0)") + usecs
    infinite = F.lit(str(_INFINITE)).cast("decimal(38,0)")
    return (
        F.when(text == "infinity", infinite)
        .when(text == "-infinity", -infinite)
        .when(text.isNotNull(), finite.cast("decimal(38,0)"))
    )


def _number(text: Column, unit: str) -> Column:
    return _bigint(F.regexp_extract(text, rf"([+-]?\d+) {unit}", 1))


def _bigint(digits: Column) -> Column:
    """The number; 0 if there are no digits."""
    return F.coalesce(digits.try_cast("bigint"), F.lit(0).cast("bigint"))


_SPACE: Final = " \t\n\r\f\v"
_BITS: Final = {"int2": 16, "int4": 32, "int8": 64}
_BOOLEANS: Final = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SPECIAL: Final = re.compile(r"(?:nan|[+-]?(?:inf|infinity))", re.IGNORECASE)
_DATE: Final = re.compile(r"(\d{4,6})-(\d\d?)-(\d\d?)( BC)?", re.ASCII | re.IGNORECASE)
_TIME: Final = re.compile(r"(\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"(\d{4,6}-\d\d?-\d\d?)(?:[ T]((?:\d\d?):\d\d(?::\d\d(?:\.\d+)?)?))?\s*(Z|UTC|[+-]\d\d?(?::?\d\d)?)?( BC)?",
    re.ASCII | re.IGNORECASE,
)
_UNIT_USECS: Final = {
    "w": 7 * 86_400_000_000, "d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000,
}  # fmt: skip
_UUID: Final = re.compile(r"\{?((?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})\}?")

FOREVER: Final = 2**31 - 1  # the date infinity (DATEVAL_NOEND); -FOREVER - 1 is -infinity
END_OF_TIME: Final = 2**63 - 1  # the timestamp infinity (DT_NOEND); -END_OF_TIME - 1 is -infinity
LAST_TIMESTAMP: Final = END_OF_TIME - 2  # stands for all later timestamps, up to the year 294276
_FIRST_DAY: Final = -2_440_588  # 4714-11-24 BC
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()
_DAYS_OF_400_YEARS: Final = 146_097
_MAX_YEAR: Final = 294_276


def value_of(type_: str, text: str, at: int) -> Any:
    """Read a literal of a type.

    Raises:
        Refused: The literal is invalid or depends on the session, or literals of the type are not translated.
    """
    if type_.startswith("_"):
        return _array(type_, text, at)
    read = _READERS.get(type_)
    if read is None:
        raise Refused(f"literals of type {shown(type_)} are not translated", at)
    try:
        return read(text, type_)
    except ValueError as error:
        reason = str(error) or f'invalid input syntax for type {shown(type_)}: "{text}"'
        raise Refused(reason, at) from None


def _string(text: str, _type: str) -> str:
    return text


def _boolean(text: str, _type: str) -> bool:
    value = _BOOLEANS.get(text.strip(_SPACE).lower())
    if value is None:
        raise ValueError
    return value


def _integer(text: str, type_: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text.strip(_SPACE), re.ASCII):
        raise ValueError
    value = int(text.strip(_SPACE))
    if not -(2 ** (_BITS[type_] - 1)) <= value < 2 ** (_BITS[type_] - 1):
        raise ValueError(f'value "{text}" is out of range for type {shown(type_)}')
    return value


def _numeric(text: str, _type: str) -> Decimal:
    stripped = text.strip(_SPACE)
    if _SPECIAL.fullmatch(stripped):
        return Decimal(stripped)
    if not _NUMBER.fullmatch(stripped):
        raise ValueError
    try:
        value = Context(prec=2000, Emax=10**6, Emin=-(10**6), traps=[InvalidOperation]).create_decimal(stripped)
    except InvalidOperation:
        raise ValueError from None
    if len(stripped) > 1000 or (value and abs(value.adjusted()) > 1000):
        raise ValueError("a numeric literal of more than 1000 digits is not translated")
    return value


def _float(text: str, type_: str) -> float:
    stripped = text.strip(_SPACE)
    if _SPECIAL.fullmatch(stripped):
        return float(stripped)
    if not _NUMBER.fullmatch(stripped):
        raise ValueError
    value = float(stripped)
    if type_ == "float4":
        # strtof rounds once; rounding to a double first could round twice
        value = nearest_float4(Decimal(stripped))
    if math.isinf(value) or (value == 0 and Decimal(stripped) != 0):
        raise ValueError(f'"{text}" is out of range for type {shown(type_)}')
    return value


def nearest_float4(value: Decimal) -> float:
    """The nearest float4, the even one of two equally near; an infinity if the value is out of range."""
    try:
        (near,) = struct.unpack("f", struct.pack("f", float(value)))
    except OverflowError:
        return math.copysign(math.inf, value)
    bits = struct.unpack("i", struct.pack("f", near))[0]
    around = []
    for other in (bits - 1, bits, bits + 1):
        single = struct.unpack("f", struct.pack("i", other))[0] if -(2**31) <= other < 2**31 else near
        if math.isfinite(single):
            around.append((abs(Decimal(single) - value), other & 1, single))
    best: float = min(around)[2]
    return best


def _bytea(text: str, _type: str) -> bytes:
    if text.startswith("\\x"):
        return bytes.fromhex(re.sub(f"[{_SPACE}]", "", text[2:]))
    if not re.fullmatch(r"(?:[^\\]|\\\\|\\[0-3][0-7]{2})*", text, re.DOTALL):
        raise ValueError
    raw = text.encode()
    return re.sub(rb"\\(\\|[0-7]{3})", lambda f: b"\\" if f[1] == b"\\" else bytes([int(f[1], 8)]), raw)


def _uuid(text: str, _type: str) -> str:
    if not _UUID.fullmatch(text) or text.startswith("{") != text.endswith("}"):
        raise ValueError
    digits = re.sub("[{}-]", "", text).lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date, where the year 0 is 1 BC."""
    cycles, within = divmod(year - 1, 400)
    return dt.date(within + 1, month, day).toordinal() + cycles * _DAYS_OF_400_YEARS - _EPOCH


def _date(text: str, type_: str) -> int:
    stripped = text.strip(_SPACE).lower()
    if stripped in {"infinity", "+infinity", "-infinity"}:
        return -FOREVER - 1 if stripped.startswith("-") else FOREVER
    if stripped == "epoch":
        return 0
    match = _DATE.fullmatch(stripped)
    if not match:
        raise ValueError(f'"{text}" is not translated as type {shown(type_)}; write it as YYYY-MM-DD')
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    if not year or year > _MAX_YEAR:
        raise ValueError(f'date/time field value out of range: "{text}"')
    try:
        value = days(1 - year if match[4] else year, month, day)
    except ValueError:
        raise ValueError(f'date/time field value out of range: "{text}"') from None
    if value < _FIRST_DAY:
        raise ValueError(f'date out of range: "{text}"')
    return value


def _clock(text: str) -> int:
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f'"{text}" is not translated as a time; write it as HH:MM:SS, with at most six more digits')
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f'date/time field value out of range: "{text}"')
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((match[4] or "0").ljust(6, "0"))


def _timestamp(text: str, type_: str) -> int:
    stripped = text.strip(_SPACE)
    if stripped.lower() in {"infinity", "+infinity", "-infinity"}:
        return -END_OF_TIME - 1 if stripped.startswith("-") else END_OF_TIME
    if stripped.lower() == "epoch":
        return 0
    match = _TIMESTAMP.fullmatch(stripped)
    if not match:
        raise ValueError(f'"{text}" is not translated as type {shown(type_)}; write it as YYYY-MM-DD HH:MM:SS')
    zone = match[3]
    if zone and type_ == "timestamp":
        raise ValueError(f'"{text}" has a time zone, which type {shown(type_)} ignores')
    if not zone and type_ == "timestamptz":
        raise ValueError(f'"{text}" has no time zone: its meaning depends on TimeZone; add +00 or another offset')
    usecs = _date(match[1] + (match[4] or ""), type_) * _UNIT_USECS["d"] + (_clock(match[2]) if match[2] else 0)
    usecs -= _zone_usecs(zone) if zone else 0
    # no column has a timestamp that is later, except infinity: 64 bits since 1970 do not hold it
    return min(usecs, LAST_TIMESTAMP)


def _zone_usecs(zone: str) -> int:
    if zone.upper() in {"Z", "UTC"}:
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = (int(digits[:-2]), int(digits[-2:])) if len(digits) > 2 else (int(digits), 0)
    if hours > 15 or minutes > 59:
        raise ValueError(f"time zone displacement out of range: {zone}")
    return (1 if zone[0] == "+" else -1) * (hours * 60 + minutes) * _UNIT_USECS["m"]


def _time(text: str, _type: str) -> str:
    if text.strip(_SPACE) in {"24:00", "24:00:00"}:
        return "24:00:00"
    usecs = _clock(text.strip(_SPACE))
    seconds, fraction = divmod(usecs, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{clock}.{fraction:06}".rstrip("0") if fraction else clock


def _interval(text: str, _type: str) -> Interval:
    return read(text)


def _array(type_: str, text: str, at: int) -> list[Any]:
    """Read a one-dimensional array in braces, whose elements may be quoted."""
    body = text.strip(_SPACE)
    if body.startswith("["):
        raise Refused(f'an array literal with bounds is not translated: "{text}"', at)
    if not (body.startswith("{") and body.endswith("}")):
        raise Refused(f'malformed array literal: "{text}"', at)
    body = body[1:-1]
    if not body.strip(_SPACE):
        return []
    item = re.compile(rf'[{_SPACE}]*(?:"((?:[^"\\]|\\.)*)"|([^",{{}}\\]+?))[{_SPACE}]*(,|$)', re.DOTALL)
    elements: list[Any] = []
    position = 0
    while True:
        match = item.match(body, position)
        if not match:
            raise Refused(f'this array literal is not translated: "{text}"', at)
        if match[1] is None and match[2].lower() == "null":
            elements.append(None)
        else:
            element = re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL) if match[1] is not None else match[2]
            elements.append(value_of(type_[1:], element, at))
        position = match.end()
        if not match[3]:
            return elements


_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "bool": _boolean, "int2": _integer, "int4": _integer, "int8": _integer, "numeric": _numeric, "float4": _float,
    "float8": _float, "text": _string, "varchar": _string, "bpchar": _string, "bytea": _bytea, "uuid": _uuid,
    "date": _date, "timestamp": _timestamp, "timestamptz": _timestamp, "time": _time, "interval": _interval,
    "jsonb": _string,
}  # fmt: skip

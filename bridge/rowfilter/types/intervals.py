"""Intervals, which PostgreSQL compares as if months had 30 days and days 24 hours.

Columns and constants have PostgreSQL's text output in the IntervalStyle `postgres`.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from protocol.values.output import interval_text

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

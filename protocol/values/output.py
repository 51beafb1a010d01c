"""PostgreSQL's output functions, for one value in binary form.

Each takes the value's bytes and returns the text that the server would send with pgbridge's session settings:
DateStyle ISO, IntervalStyle postgres and TimeZone UTC. They read types that are too rare for a bulk reader and the
bounds of ranges, and show values that no column can hold. They raise ValueError for bytes of another form.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, Final

from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

USECS_PER_SECOND: Final = 1_000_000
USECS_PER_DAY: Final = 86_400 * USECS_PER_SECOND
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

# numeric.c: the field of the sign also marks the values that are not numbers
NUMERIC_NEG: Final = 0x4000
NUMERIC_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}

_JULIAN_OF_2000: Final = 2_451_545


def _unpack(layout: str, raw: bytes) -> tuple[Any, ...]:
    try:
        return struct.unpack(layout, raw)
    except struct.error as error:
        raise ValueError(str(error)) from None


def date_text(raw: bytes) -> str:
    """`date_out`: days since 2000-01-01."""
    (days,) = _unpack(">i", raw)
    if days in {INT32_MIN, INT32_MAX}:
        return "infinity" if days > 0 else "-infinity"
    date, era = _date_and_era(days)
    return date + era


def timestamp_text(raw: bytes) -> str:
    """`timestamp_out`: microseconds since 2000-01-01 00:00."""
    return _timestamp(raw, "")


def timestamptz_text(raw: bytes) -> str:
    """`timestamptz_out` with TimeZone UTC: microseconds since 2000-01-01 00:00 UTC."""
    return _timestamp(raw, "+00")


def _timestamp(raw: bytes, zone: str) -> str:
    (usecs,) = _unpack(">q", raw)
    if usecs in {INT64_MIN, INT64_MAX}:
        return "infinity" if usecs > 0 else "-infinity"
    days, of_day = divmod(usecs, USECS_PER_DAY)
    date, era = _date_and_era(days)
    return f"{date} {clock(of_day)}{zone}{era}"


def _date_and_era(days: int) -> tuple[str, str]:
    """`j2date`: from a Julian day to a date, by Fliegel and Van Flandern's algorithm; the year 0 is 1 BC."""
    julian = days + _JULIAN_OF_2000 + 32_044
    quad, rest = divmod(4 * julian + 3, 146_097)
    year, rest = divmod(4 * (rest // 4) + 3, 1_461)
    month, rest = divmod(5 * (rest // 4) + 2, 153)
    year += 100 * quad - 4800 + month // 10
    month = month + 3 - 12 * (month // 10)
    shown, era = (year, "") if year > 0 else (1 - year, " BC")
    return f"{shown:04}-{month:02}-{rest // 5 + 1:02}", era


def clock(usecs: int) -> str:
    """Hours, minutes, seconds, and the fraction's digits up to the last that is not zero."""
    seconds, fraction = divmod(usecs, USECS_PER_SECOND)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}".rstrip("0") if fraction else text


def interval_text(raw: bytes) -> str:
    """`interval_out`, style postgres: microseconds, days, months, each with its own sign."""
    usecs, days, months = _unpack(">qii", raw)
    if (usecs, days, months) == (INT64_MAX, INT32_MAX, INT32_MAX):
        return "infinity"
    if (usecs, days, months) == (INT64_MIN, INT32_MIN, INT32_MIN):
        return "-infinity"
    years = abs(months) // 12 * (1 if months >= 0 else -1)
    parts = []
    behind_negative = False
    for count, unit in ((years, "year"), (months - 12 * years, "mon"), (days, "day")):
        if count:
            plus = "+" if behind_negative and count > 0 else ""
            parts.append(f"{plus}{count} {unit}{'' if count == 1 else 's'}")
            behind_negative = count < 0
    if usecs or not parts:
        sign = "-" if usecs < 0 else "+" if behind_negative else ""
        parts.append(sign + clock(abs(usecs)))
    return " ".join(parts)


def zone_text(seconds_west: int) -> str:
    """A timetz's zone, which is sent as seconds west of UTC."""
    seconds = abs(seconds_west)
    text = f"{'-' if seconds_west > 0 else '+'}{seconds // 3600:02}"
    if seconds % 3600:
        text += f":{seconds // 60 % 60:02}"
    return f"{text}:{seconds % 60:02}" if seconds % 60 else text


def inet_text(raw: bytes) -> str:
    """`inet_out` and `cidr_out`: family, prefix length, whether cidr, the address's size, the address."""
    if len(raw) < 4:
        raise ValueError(f"{len(raw)} bytes, expected at least 4")
    family, bits, is_cidr, size = raw[:4]
    address = raw[4:]
    if (family, size) not in {(2, 4), (3, 16)} or len(address) != size or bits > 8 * size or is_cidr > 1:
        raise ValueError(f"family {family}, {bits} bits, {len(address)} of {size} bytes")
    text = str(IPv4Address(address)) if size == 4 else _ipv6_text(address)
    return text if bits == 8 * size and not is_cidr else f"{text}/{bits}"


def _ipv6_text(address: bytes) -> str:
    """`pg_inet_net_ntop`: writes the last 32 bits as IPv4 after ::ffff: and, unlike Python, after :: alone."""
    words = struct.unpack(">8H", address)
    compatible = not any(words[:6]) and words[6] != 0
    if compatible or (not any(words[:5]) and words[5] == 0xFFFF):
        return ("::" if compatible else "::ffff:") + str(IPv4Address(address[12:]))
    return str(IPv6Address(address))


def tid_text(raw: bytes) -> str:
    """`tidout`: block and offset."""
    return "({},{})".format(*_unpack(">IH", raw))


def pg_lsn_text(raw: bytes) -> str:
    """`pg_lsn_out`."""
    return str(Lsn(*_unpack(">Q", raw)))


def numeric_text(raw: bytes) -> str:
    """`numeric_out`: number of digits, weight of the first, sign, display scale, digits to base 10000."""
    if len(raw) < 8:
        raise ValueError(f"{len(raw)} bytes, expected at least 8")
    count, weight, sign, dscale = struct.unpack(">HhHH", raw[:8])
    if sign in NUMERIC_SPECIAL:
        return NUMERIC_SPECIAL[sign]
    if sign not in {0, NUMERIC_NEG}:
        raise ValueError(f"sign {sign:#06x}")
    digits = _unpack(f">{count}h", raw[8:])
    whole = "".join(f"{digits[i] if i < count else 0:04}" for i in range(weight + 1)).lstrip("0") or "0"
    after = range(weight + 1, weight + 1 + (dscale + 3) // 4)
    fraction = "".join(f"{digits[i] if 0 <= i < count else 0:04}" for i in after)[:dscale]
    return ("-" if sign else "") + whole + ("." + fraction if dscale else "")


def _integer_text(layout: str) -> Callable[[bytes], str]:
    return lambda raw: str(_unpack(layout, raw)[0])


SUBTYPE_OUTPUT: Final[Mapping[Kind, Callable[[bytes], str]]] = {
    Kind.INT4: _integer_text(">i"),
    Kind.INT8: _integer_text(">q"),
    Kind.DECIMAL: numeric_text,
    Kind.NUMERIC: numeric_text,
    Kind.DATE: date_text,
    Kind.TIMESTAMP: timestamp_text,
    Kind.TIMESTAMPTZ: timestamptz_text,
}
"""The output functions of `types.RANGE_SUBTYPES`."""

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16
_FLAGS: Final = 0x1F


def range_text(raw: bytes, subtype: ColumnType) -> str:
    """`range_out`: flags, then each finite bound with its length."""
    flags = raw[0] if raw else 0xFF
    if flags & ~_FLAGS:
        raise ValueError(f"flags {flags:#04x}")
    bounds = []
    rest = raw[1:]
    for infinite in (_LOWER_INFINITE, _UPPER_INFINITE):
        text = ""
        if not flags & (_EMPTY | infinite):
            bound, rest = _counted(rest)
            text = _quoted(SUBTYPE_OUTPUT[subtype.kind](bound))
        bounds.append(text)
    if rest:
        raise ValueError(f"{len(rest)} bytes after the range")
    if flags & _EMPTY:
        return "empty"
    opening, closing = "[" if flags & _LOWER_INCLUSIVE else "(", "]" if flags & _UPPER_INCLUSIVE else ")"
    return f"{opening}{bounds[0]},{bounds[1]}{closing}"


def multirange_text(raw: bytes, subtype: ColumnType) -> str:
    """`multirange_out`: a count, then each range with its length."""
    (count,) = _unpack(">i", raw[:4])
    rest = raw[4:]
    ranges = []
    for _ in range(count):
        counted, rest = _counted(rest)
        ranges.append(range_text(counted, subtype))
    if count < 0 or rest:
        raise ValueError(f"{count} ranges and {len(rest)} bytes after them")
    return "{" + ",".join(ranges) + "}"


def _counted(raw: bytes) -> tuple[bytes, bytes]:
    (length,) = _unpack(">i", raw[:4])
    if not 0 <= length <= len(raw) - 4:
        raise ValueError(f"length {length} with {len(raw) - 4} bytes left")
    return raw[4 : 4 + length], raw[4 + length :]


def _quoted(bound: str) -> str:
    """`range_bound_escape`; the subtypes above never have a quote or a backslash to be doubled."""
    return f'"{bound}"' if " " in bound else bound

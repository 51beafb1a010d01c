"""Values in binary form, as the types' send functions write them -> Arrow arrays, by kind.

A string column gets exactly the text of the type's output function. Source: `src/backend/utils/adt`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.protocol.values import numeric, output, value_array
from pgbridge.protocol.values.text_values import MAX_DAYS, MAX_USECS, MIN_DAYS, MIN_USECS, OUTSIDE_YEARS, read_string
from pgbridge.protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WIRE: Final[Mapping[Kind, str]] = {
    Kind.INT2: "i2",
    Kind.INT4: "i4",
    Kind.INT8: "i8",
    Kind.OID: "u4",
    Kind.FLOAT4: "f4",
    Kind.FLOAT8: "f8",
    Kind.DATE: "i4",
    Kind.TIMESTAMP: "i8",
    Kind.TIMESTAMPTZ: "i8",
    Kind.TIME: "i8",
    Kind.XID: "u4",
    Kind.XID8: "u8",
}

_DAYS_1970_TO_2000: Final = 10_957
_USECS_1970_TO_2000: Final = _DAYS_1970_TO_2000 * output.USECS_PER_DAY

_HEX_PAIRS: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
# charout: the byte itself, nothing for 0, an octal escape above ASCII (since version 16)
_CHARS: Final = pa.array(["", *(chr(c) for c in range(1, 128)), *(f"\\{c:03o}" for c in range(128, 256))])

_PATTERN: Final[Mapping[Kind, str]] = {
    Kind.UUID: "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh",
    Kind.MACADDR: ":".join(["hh"] * 6),
    Kind.MACADDR8: ":".join(["hh"] * 8),
}


def _numbers(values: value_array.ValueArray, type_: ColumnType) -> npt.NDArray[Any]:
    wire = _WIRE[type_.kind]
    values.expect_length(np.dtype(wire).itemsize, type_.label)
    return values.numbers(wire)


def read_bool(values: value_array.ValueArray, _type: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read one byte, 0 or 1."""
    values.expect_length(1, "bool")
    bytes_read = values.data[values.starts]
    if (bytes_read > 1).any():
        index = int((bytes_read > 1).argmax())
        raise value_array.MalformedValue(index, f"bool of value {bytes_read[index]}, expected 0 or 1")
    return pa.array(bytes_read == 1)


def read_number(values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read numbers that have the Arrow type's layout; an oid, which is unsigned, becomes wider."""
    numbers = _numbers(values, type_)
    return value_array.primitive(type_.arrow, numbers.astype(np.int64) if type_.kind is Kind.OID else numbers)


def read_float(values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read floats; every NaN becomes the one that the text form gives."""
    numbers = _numbers(values, type_)
    if (nan := np.isnan(numbers)).any():
        numbers[nan] = np.nan
    return value_array.primitive(type_.arrow, numbers)


def read_bytea(values: value_array.ValueArray, _type: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read the bytes as they are."""
    return values.gather()


def read_date(values: value_array.ValueArray, type_: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read days since 2000-01-01; the least and the greatest number are the infinities."""
    days = _numbers(values, type_)
    outside = (days < MIN_DAYS - _DAYS_1970_TO_2000) | (days > MAX_DAYS - _DAYS_1970_TO_2000)
    nulls = value_array.refuse(outside, policy, lambda i: output.date_text(values.raw(i)), OUTSIDE_YEARS)
    days += _DAYS_1970_TO_2000  # values that wrap around were refused
    return value_array.primitive(type_.arrow, days, nulls)


def read_timestamp(values: value_array.ValueArray, type_: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read microseconds since 2000-01-01 00:00 (UTC); the least and the greatest number are the infinities."""
    text = output.timestamp_text if type_.kind is Kind.TIMESTAMP else output.timestamptz_text
    usecs = _numbers(values, type_)
    outside = (usecs < MIN_USECS - _USECS_1970_TO_2000) | (usecs > MAX_USECS - _USECS_1970_TO_2000)
    nulls = value_array.refuse(outside, policy, lambda i: text(values.raw(i)), OUTSIDE_YEARS)
    usecs += _USECS_1970_TO_2000
    return value_array.primitive(type_.arrow, usecs, nulls)


def read_versioned(values: value_array.ValueArray, _type: ColumnType, policy: value_array.Unrepresentable) -> pa.Array:
    """Read the byte 1, then the text (jsonb, jsonpath)."""
    wrong = (values.lengths < 1) | (values.data[values.starts] != 1)
    if wrong.any():
        raise value_array.MalformedValue(int(wrong.argmax()), "it does not start with the version, a byte of value 1")
    return values.without_prefix(1).text(policy)


def read_char(values: value_array.ValueArray, _type: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read a `"char"`: one byte."""
    values.expect_length(1, '"char"')
    return _CHARS.take(pa.array(values.data[values.starts]))


def read_hexadecimal(
    values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable
) -> pa.Array:
    """Read a uuid, macaddr or macaddr8: its bytes in hexadecimal, with separators."""
    pattern = np.frombuffer(_PATTERN[type_.kind].encode(), np.uint8)
    digits = np.flatnonzero(pattern == ord("h"))
    width = len(digits) // 2
    values.expect_length(width, type_.label)
    text = np.tile(pattern, (len(values), 1))
    text[:, digits] = _HEX_PAIRS[values.blocks(width)].reshape(len(values), len(digits))
    return value_array.strings_of(np.arange(len(values) + 1) * len(pattern), text.reshape(-1), pa.string())


def read_bit(values: value_array.ValueArray, _type: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read the number of bits, then the bits, the first in the highest place of the first byte."""
    bits = values.numbers("i4").astype(np.int64)
    wrong = (values.lengths < 4) | (bits < 0) | ((bits + 7) // 8 != values.lengths - 4)
    if wrong.any():
        raise value_array.MalformedValue(int(wrong.argmax()), "its size does not agree with its number of bits")
    offsets, packed = value_array.flat(values.without_prefix(4).gather())
    digits = np.unpackbits(packed) + np.uint8(ord("0"))
    return value_array.ValueArray(digits, offsets[:-1] * 8, bits).gather(pa.string())


def read_unsigned(values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read an xid, cid or xid8, an unsigned number, as its digits."""
    return pa.array(_numbers(values, type_)).cast(pa.string())


def read_time(values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read microseconds since midnight."""
    return _clock(_numbers(values, type_))


def read_timetz(values: value_array.ValueArray, _type: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
    """Read microseconds since midnight, and the zone in seconds west of UTC."""
    values.expect_length(12, "timetz")
    zones, zone_of = np.unique(values.numbers("i4", 8), return_inverse=True)
    texts = pa.array([output.zone_text(int(zone)) for zone in zones], pa.string())
    clock = _clock(values.numbers("i8"))
    return pc.binary_join_element_wise(clock, texts.take(pa.array(zone_of)), "")


def _clock(usecs: npt.NDArray[np.int64]) -> pa.Array:
    outside = (usecs < 0) | (usecs > output.USECS_PER_DAY)
    if outside.any():
        index = int(outside.argmax())
        raise value_array.MalformedValue(index, f"{usecs[index]} microseconds is not a time of day")
    midnight = usecs == output.USECS_PER_DAY  # 24:00:00, which Arrow does not have
    written = value_array.primitive(pa.time64("us"), np.where(midnight, 0, usecs)).cast(pa.string())
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(written, "0"), ".")  # all have six digits after the point
    return pc.if_else(pa.array(midnight), output.clock(output.USECS_PER_DAY), trimmed)


def _by_output(function: Callable[[bytes], str]) -> value_array.Reader:
    def read(values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
        return value_array.per_distinct(values, function, type_.label)

    return read


def _by_output_of_subtype(function: Callable[[bytes, ColumnType], str]) -> value_array.Reader:
    def read(values: value_array.ValueArray, type_: ColumnType, _policy: value_array.Unrepresentable) -> pa.Array:
        subtype = type_.element
        assert subtype is not None  # noqa: S101 - resolve gives every (multi)range its subtype
        return value_array.per_distinct(values, lambda raw: function(raw, subtype), type_.label)

    return read


READERS: Final[Mapping[Kind, value_array.Reader]] = {
    Kind.BOOL: read_bool,
    Kind.INT2: read_number,
    Kind.INT4: read_number,
    Kind.INT8: read_number,
    Kind.OID: read_number,
    Kind.FLOAT4: read_float,
    Kind.FLOAT8: read_float,
    Kind.DECIMAL: numeric.read_decimal,
    Kind.BYTEA: read_bytea,
    Kind.DATE: read_date,
    Kind.TIMESTAMP: read_timestamp,
    Kind.TIMESTAMPTZ: read_timestamp,
    Kind.TEXT: read_string,
    Kind.JSONB: read_versioned,
    Kind.NUMERIC: numeric.read_numeric,
    Kind.CHAR: read_char,
    Kind.UUID: read_hexadecimal,
    Kind.INET: _by_output(output.inet_text),
    Kind.MACADDR: read_hexadecimal,
    Kind.MACADDR8: read_hexadecimal,
    Kind.INTERVAL: _by_output(output.interval_text),
    Kind.TIME: read_time,
    Kind.TIMETZ: read_timetz,
    Kind.BIT: read_bit,
    Kind.PG_LSN: _by_output(output.pg_lsn_text),
    Kind.XID: read_unsigned,
    Kind.XID8: read_unsigned,
    Kind.TID: _by_output(output.tid_text),
    Kind.RANGE: _by_output_of_subtype(output.range_text),
    Kind.MULTIRANGE: _by_output_of_subtype(output.multirange_text),
}
"""All kinds but arrays and those that are read from text only."""

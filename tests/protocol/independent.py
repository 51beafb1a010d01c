"""The slow, obvious reader of PostgreSQL's text output, one value at a time: what both bulk readers must match.

It shares nothing with `protocol` but the type to be read.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pgbridge.protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

UNREPRESENTABLE = "unrepresentable"
"""Stands for a value that the Arrow type cannot hold."""

_INTEGERS = {Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID}


def read(text: str | None, type_: ColumnType) -> Any:  # noqa: PLR0911 - a case a line
    """A value as Python's, as Arrow's `to_pylist` would give it."""
    if text is None:
        return None
    if type_.kind is Kind.BOOL:
        return {"t": True, "f": False}[text]
    if type_.kind in _INTEGERS:
        return int(text)
    if type_.kind is Kind.FLOAT8:
        return float(text)
    if type_.kind is Kind.FLOAT4:
        return struct.unpack("f", struct.pack("f", float(text)))[0]
    if type_.kind is Kind.DECIMAL:
        return Decimal(text) if Decimal(text).is_finite() else UNREPRESENTABLE
    if type_.kind is Kind.BYTEA:
        return bytes.fromhex(text.removeprefix("\\x"))
    if type_.kind is Kind.ARRAY:
        assert type_.element is not None
        elements = split(text, type_.delimiter)
        return elements if elements == UNREPRESENTABLE else [read(e, type_.element) for e in elements]
    if type_.kind in {Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}:
        if "infinity" in text or text.endswith("BC") or re.match(r"\d{5}", text):
            return UNREPRESENTABLE
        return (dt.date if type_.kind is Kind.DATE else dt.datetime).fromisoformat(text)
    return text


def split(text: str, delimiter: str) -> Any:
    """The elements' texts, None for NULL; by a state machine, a character at a time."""
    lower = "1"
    if text.startswith("["):
        bounds, text = text.split("=", maxsplit=1)
        lower = bounds[1:].partition(":")[0]
    if text.startswith("{{") or (lower != "1" and text != "{}"):
        return UNREPRESENTABLE
    assert text[0] == "{"
    assert text[-1] == "}"
    elements: list[str | None] = []
    element, quoted, inside = "", False, False
    characters = iter(text[1:-1])
    for c in characters:
        if c == "\\":
            element += next(characters)
        elif c == '"':
            inside, quoted = not inside, True
        elif c == delimiter and not inside:
            elements.append(element if quoted or element != "NULL" else None)
            element, quoted = "", False
        else:
            element += c
    assert not inside
    if len(text) > 2:
        elements.append(element if quoted or element != "NULL" else None)
    return elements


def nulled(value: Any) -> Any:
    """The value under the policy "null"."""
    if isinstance(value, list):
        return [nulled(element) for element in value]
    return None if isinstance(value, str) and value == UNREPRESENTABLE else value


def has_unrepresentable(value: Any) -> bool:
    """Whether the value, or an element of it, is one that the policy "error" refuses."""
    if isinstance(value, list):
        return any(map(has_unrepresentable, value))
    return isinstance(value, str) and value == UNREPRESENTABLE


def comparable(values: Iterable[Any]) -> list[Any]:
    """Make values comparable: NaN equals NaN, and 0.0 differs from -0.0."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(element) for element in value]
        if isinstance(value, float):
            return ("float", "NaN" if math.isnan(value) else value.hex())
        return value

    return [one(value) for value in values]


def read_binary(data: bytes, type_: ColumnType) -> Any:  # noqa: PLR0911 - a case a line
    """A value in binary form as Python's, for the kinds that the generators of `rows` make."""
    if type_.kind in _LAYOUTS:
        return struct.unpack(_LAYOUTS[type_.kind], data)[0]
    if type_.kind is Kind.TEXT:
        return data.decode()
    if type_.kind is Kind.JSONB:
        assert data[0] == 1
        return data[1:].decode()
    if type_.kind is Kind.BYTEA:
        return data
    if type_.kind is Kind.UUID:
        return str(uuid.UUID(bytes=data))
    if type_.kind in {Kind.DECIMAL, Kind.NUMERIC}:
        text = _numeric_text(data)
        return read(text, type_)
    if type_.kind is Kind.DATE:
        (days,) = struct.unpack(">i", data)
        return _shifted(dt.date(2000, 1, 1), days=days)
    if type_.kind is Kind.TIMESTAMP:
        (us,) = struct.unpack(">q", data)
        return _shifted(dt.datetime(2000, 1, 1), microseconds=us)  # noqa: DTZ001 - it has no zone
    if type_.kind is Kind.TIMESTAMPTZ:
        (us,) = struct.unpack(">q", data)
        return _shifted(dt.datetime(2000, 1, 1, tzinfo=dt.UTC), microseconds=us)
    assert type_.kind is Kind.ARRAY
    assert type_.element is not None
    return _read_array(data, type_.element)


_LAYOUTS = {
    Kind.BOOL: ">?",
    Kind.INT2: ">h",
    Kind.INT4: ">i",
    Kind.INT8: ">q",
    Kind.OID: ">I",
    Kind.FLOAT4: ">f",
    Kind.FLOAT8: ">d",
}


def _shifted(epoch: Any, **distance: int) -> Any:
    try:
        return epoch + dt.timedelta(**distance)
    except OverflowError:
        return UNREPRESENTABLE


def _numeric_text(data: bytes) -> str:
    count, weight, sign, dscale = struct.unpack_from(">HhHH", data)
    if sign in {0xC000, 0xD000, 0xF000}:
        return {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}[sign]
    digits = struct.unpack_from(f">{count}h", data, 8)
    total = sum(Fraction(digit) * Fraction(10000) ** (weight - i) for i, digit in enumerate(digits))
    scaled = total * 10**dscale
    assert scaled.denominator == 1
    text = str(scaled.numerator).zfill(dscale + 1)
    return ("-" if sign else "") + (f"{text[:-dscale]}.{text[-dscale:]}" if dscale else text)


def _read_array(data: bytes, element: ColumnType) -> Any:
    dimensions, _, _ = struct.unpack_from(">iiI", data)
    if dimensions > 1:
        return UNREPRESENTABLE
    if dimensions == 0:
        return []
    count, lower = struct.unpack_from(">ii", data, 12)
    if count and lower != 1:
        return UNREPRESENTABLE
    position = 20
    elements = []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        elements.append(None if length < 0 else read_binary(data[position : position + length], element))
        position += max(length, 0)
    assert position == len(data)
    return elements

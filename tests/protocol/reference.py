"""The slow, obvious reader of PostgreSQL's text output, one value at a time: what both bulk readers must match.

It shares nothing with `protocol` but the type to be read.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from protocol.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

UNREPRESENTABLE = "unrepresentable"
"""Stands for a value that the Arrow type cannot hold."""

_INTEGERS = {Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID}


def read(text: str | None, type_: ColumnType) -> Any:
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
    if text.startswith("["):
        text = text[text.index("=") + 1 :]
    if text.startswith("{{"):
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
    """Values of which equal ones are alike: NaN too, and 0.0 is not -0.0."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(element) for element in value]
        if isinstance(value, float):
            return ("float", "NaN" if math.isnan(value) else value.hex())
        return value

    return [one(value) for value in values]

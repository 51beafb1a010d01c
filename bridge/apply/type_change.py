"""What ALTER COLUMN … TYPE makes of values that exist: whether they stay what they are, and in which Delta type.

The server rewrites a table without a word in the stream, so a change of type can be followed only if what the rows
hold is the same under the old type and the new one.
"""

from __future__ import annotations

import enum
from typing import Final

import pyarrow as pa

from protocol.types import ColumnType, Kind

_CHAR: Final = 1042  # char(n): values are padded to the length
_VARBIT: Final = 1562
_INTEGERS: Final = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID})
_CLOCKS: Final = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.TIME, Kind.TIMETZ})
_AS_TEXT: Final = frozenset({Kind.UUID, Kind.JSONB, Kind.NUMERIC})
"""What a cast to text writes as the output function does, and the target has as a string already."""
_BY_OID: Final = frozenset({Kind.INET, Kind.OPAQUE})
"""Of these kinds, two types may write the same value differently: inet leaves out /32, cidr does not."""

_MAX_PRECISION = 38
_DIGITS: Final = {pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""What Delta asks of a decimal that an integer is widened to (for a smallint as for an integer)."""
_RANKS: Final = (pa.int16(), pa.int32(), pa.int64())
_MICROSECONDS = 6


class Values(enum.Enum):
    """What becomes of the values that exist."""

    SAME = "same"
    PADDED = "padded"  # with blanks, as char(n)
    OTHER = "other"


def values_after(old: ColumnType, new: ColumnType) -> Values:
    """What the values of a column are after its type became another one."""
    if (old.oid, old.typmod) == (new.oid, new.typmod):
        return Values.SAME
    if old.kind is Kind.TEXT and new.kind is Kind.TEXT:
        return Values.PADDED if _CHAR in {old.oid, new.oid} else Values.SAME
    if old.kind is new.kind is Kind.ARRAY and old.element is not None and new.element is not None:
        return values_after(old.element, new.element)
    return Values.SAME if _same(old, new) else Values.OTHER


def _same(old: ColumnType, new: ColumnType) -> bool:  # noqa: PLR0911 - a rule for each kind of type
    if old.kind in _INTEGERS:
        exact = {*_INTEGERS, Kind.DECIMAL} if old.arrow == pa.int64() else {*_INTEGERS, Kind.DECIMAL, Kind.FLOAT8}
        return new.kind in exact
    if old.kind is not new.kind:
        return (old.kind, new.kind) in {(Kind.FLOAT4, Kind.FLOAT8), (Kind.DATE, Kind.TIMESTAMP)} or (
            old.kind in _AS_TEXT and new.kind is Kind.TEXT and new.oid != _CHAR
        )
    if old.kind is Kind.DECIMAL:
        return bool(new.arrow.scale >= old.arrow.scale)
    if old.kind is Kind.NUMERIC:
        return new.typmod == -1 or (old.typmod != -1 and _scale(old.typmod) == _scale(new.typmod))
    if old.kind in _CLOCKS:
        return _precision(new.typmod) >= _precision(old.typmod)
    if old.kind is Kind.INTERVAL:
        return new.typmod in {-1, old.typmod}
    if old.kind is Kind.BIT:
        return old.oid == new.oid == _VARBIT and (new.typmod == -1 or -1 < old.typmod <= new.typmod)
    if old.kind in {Kind.RANGE, Kind.MULTIRANGE}:
        return old.element is not None and new.element is not None and old.element.kind is new.element.kind
    return old.oid == new.oid or old.kind not in _BY_OID


def _scale(typmod: int) -> int:
    """As numeric_typmod_scale."""
    return (typmod - 4) & 0x7FF


def _precision(typmod: int) -> int:
    """Digits after the second."""
    return _MICROSECONDS if typmod < 0 else typmod


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both exactly, and that Delta can widen both to; None where there is none."""
    if one.equals(other):
        return one
    for narrow, wide in ((one, other), (other, one)):
        if narrow in _RANKS and wide in _RANKS:
            return max(narrow, wide, key=_RANKS.index)
        if (narrow, wide) == (pa.float32(), pa.float64()) or (
            wide == pa.float64() and narrow in {pa.int16(), pa.int32()}
        ):
            return wide
        if (narrow, wide) == (pa.date32(), pa.timestamp("us")):
            return wide
        if pa.types.is_decimal(wide) and (narrow in _DIGITS or pa.types.is_decimal(narrow)):
            digits, scale = (
                (narrow.precision - narrow.scale, narrow.scale) if pa.types.is_decimal(narrow) else (_DIGITS[narrow], 0)
            )
            scale = max(scale, wide.scale)
            precision = max(digits, wide.precision - wide.scale) + scale
            return pa.decimal128(precision, scale) if precision <= _MAX_PRECISION else None
    return None

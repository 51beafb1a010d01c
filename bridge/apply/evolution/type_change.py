"""What ALTER COLUMN … TYPE makes of values that exist: whether they stay what they are, and in which Delta type.

The server rewrites a table without a word in the stream, so a change of type can be followed only if what the rows
hold is the same under the old type and the new one, for any value: by the cast that the server uses on its own
(`COERCION_ASSIGNMENT`). A type that needs a USING is another type. A USING where none is needed cannot be told.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from protocol.values.types import BUILTIN, ColumnType, Kind

_TEXT: Final = 25
_VARCHAR: Final = 1043  # varchar(n): blanks beyond the length are cut off without an error
_CHAR: Final = 1042  # char(n): padded to the length, and a cast to text takes all blanks at the end away
_XML: Final = 142  # its output leaves out of the declaration what a cast to text keeps
_VARBIT: Final = 1562

_NUMBERS: Final = {
    Kind.INT2: frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.DECIMAL, Kind.FLOAT8}),
    Kind.INT4: frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.DECIMAL, Kind.FLOAT8}),
    Kind.INT8: frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.DECIMAL, Kind.OID}),
    Kind.OID: frozenset({Kind.INT8}),
    Kind.FLOAT4: frozenset({Kind.FLOAT8}),
    Kind.DATE: frozenset({Kind.TIMESTAMP}),
}
"""Casts that are exact, or fail. oid and integer are cast by their bits: -1 becomes 4294967295."""
_CLOCKS: Final = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.TIME, Kind.TIMETZ})
_AS_TEXT: Final = frozenset({Kind.TEXT, Kind.UUID, Kind.JSONB, Kind.NUMERIC})
"""What a cast to text writes as the output function does, and the target has as a string already."""

_MAX_PRECISION = 38
_DIGITS: Final = {pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""What Delta asks of a decimal that an integer is widened to (for a smallint as for an integer)."""
_RANKS: Final = (pa.int16(), pa.int32(), pa.int64())
_MICROSECONDS = 6


def keeps_values(old: ColumnType, new: ColumnType) -> bool:
    """Whether the values of a column are the same, whatever they are, after its type became another one."""
    if old.kind is new.kind and old.base_oid == new.base_oid and new.typmod in {-1, old.typmod}:
        return True
    if old.kind is new.kind is Kind.ARRAY and old.element is not None and new.element is not None:
        return keeps_values(old.element, new.element)
    if old.kind in _AS_TEXT and new.kind is Kind.TEXT:
        return _keeps_text(old, new)
    if old.kind is new.kind:
        return _keeps_with_modifier(old, new)
    return new.kind in _NUMBERS.get(old.kind, frozenset())


def _keeps_text(old: ColumnType, new: ColumnType) -> bool:
    if old.base_oid in {_CHAR, _XML}:
        return False
    if new.base_oid == _VARCHAR and new.typmod != -1:
        return old.base_oid == _VARCHAR and -1 < old.typmod <= new.typmod
    return new.base_oid in {_TEXT, _VARCHAR}  # name has room for 63 bytes


def _keeps_with_modifier(old: ColumnType, new: ColumnType) -> bool:
    """Of two types of one kind, of which the new one may have a modifier that the old one has not."""
    if old.kind is Kind.DECIMAL:
        return bool(new.arrow.scale >= old.arrow.scale)
    if old.kind is Kind.NUMERIC:
        return -1 not in {old.typmod, new.typmod} and _scale(old.typmod) == _scale(new.typmod)
    if old.kind in _CLOCKS:
        return _precision(new.typmod) >= _precision(old.typmod)
    if old.kind is Kind.BIT:
        return old.base_oid == new.base_oid == _VARBIT and -1 < old.typmod <= new.typmod
    return False


def declared(type_: ColumnType) -> str:
    """A type for people, where two may be of one kind."""
    builtin = BUILTIN.get(type_.base_oid)
    name = builtin.name if builtin is not None and type_.kind is not Kind.ARRAY else type_.label
    length = type_.typmod - 4  # VARHDRSZ
    return f"{name}({length})" if type_.base_oid in {_VARCHAR, _CHAR} and length >= 0 else name


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

"""The changes that a plan makes to a Delta table's columns, and which changes of a type it can follow.

The server rewrites a table without sending its rows. So ALTER COLUMN … TYPE can be followed only if every value is the
same under both types by the cast that the server applies on its own (`COERCION_ASSIGNMENT`). A change that needs a
USING cannot be followed. A USING where none is needed cannot be detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pgbridge.protocol.values.pg_type import BUILTIN
from pgbridge.protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column.

    Attributes:
        value: The value of existing rows; None for NULL.
        variant: It is of VARIANT, and the value is a text of JSON.
    """

    name: str
    type: pa.DataType
    value: pa.Scalar | None = None
    variant: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Rename a column; no data file is rewritten."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """Widen a column's type; no data file is rewritten."""

    name: str
    type: pa.DataType


Alteration = AddColumn | RenameColumn | WidenColumn


def fills(alterations: Sequence[Alteration]) -> dict[str, pa.Scalar]:
    """Return the constants of existing rows in added columns, by the columns' last names and in their last types."""
    values: dict[str, pa.Scalar] = {}
    for alteration in alterations:
        if isinstance(alteration, AddColumn) and alteration.value is not None:
            values[alteration.name] = alteration.value
        elif isinstance(alteration, RenameColumn) and alteration.name in values:
            values[alteration.new_name] = values.pop(alteration.name)
        elif isinstance(alteration, WidenColumn) and alteration.name in values:
            values[alteration.name] = values[alteration.name].cast(alteration.type)
    return values


def variants(alterations: Sequence[Alteration]) -> set[str]:
    """Return the last names of added columns of VARIANT."""
    names: set[str] = set()
    for alteration in alterations:
        if isinstance(alteration, AddColumn) and alteration.variant:
            names.add(alteration.name)
        elif isinstance(alteration, RenameColumn) and alteration.name in names:
            names.remove(alteration.name)
            names.add(alteration.new_name)
    return names


def renamings(alterations: Sequence[Alteration]) -> dict[str, str]:
    """Return the last names of columns that are renamed, by their first ones."""
    new_names: dict[str, str] = {}
    for alteration in alterations:
        if isinstance(alteration, RenameColumn):
            first = next((old for old, new in new_names.items() if new == alteration.name), alteration.name)
            new_names[first] = alteration.new_name
    return {old: new for old, new in new_names.items() if old != new}


_TEXT: Final = 25
_VARCHAR: Final = 1043  # varchar(n): a cast cuts off blanks beyond the length without an error
_CHAR: Final = 1042  # char(n): padded to the length; a cast to text removes trailing blanks
_XML: Final = 142  # its output function omits parts of the XML declaration that a cast to text keeps
_BIT: Final = 1560
_VARBIT: Final = 1562

_NUMBERS: Final = {
    Kind.INT2: frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.DECIMAL, Kind.FLOAT8}),
    Kind.INT4: frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.DECIMAL, Kind.FLOAT8}),
    Kind.INT8: frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.DECIMAL, Kind.OID}),
    Kind.OID: frozenset({Kind.INT8}),
    Kind.FLOAT4: frozenset({Kind.FLOAT8}),
    Kind.DATE: frozenset({Kind.TIMESTAMP}),
}
"""Casts that are exact or fail. Between oid and integer they are neither: the bits stay, so -1 becomes 4294967295."""
_CLOCKS: Final = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.TIME, Kind.TIMETZ})
_AS_TEXT: Final = frozenset({Kind.TEXT, Kind.UUID, Kind.JSONB, Kind.NUMERIC})
"""Types whose cast to text equals their output function, and whose values are strings in the target already."""

_MAX_PRECISION = 38
_DIGITS: Final = {pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""Digits before the point that Delta requires of a decimal to which an integer is widened."""
_RANKS: Final = (pa.int16(), pa.int32(), pa.int64())
_MICROSECONDS = 6


def keeps_values(old: ColumnType, new: ColumnType) -> bool:
    """Whether every value of a column stays the same when the column's type changes."""
    if old.kind is new.kind and old.base_oid == new.base_oid and new.typmod in {-1, old.typmod}:
        return True
    if old.kind is new.kind is Kind.ARRAY and old.element is not None and new.element is not None:
        return keeps_values(old.element, new.element)
    if old.kind in _AS_TEXT and new.kind is Kind.TEXT:
        return _keeps_text(old, new)
    if old.kind is new.kind:
        return _keeps_with_modifier(old, new)
    return new.kind in _NUMBERS.get(old.kind, frozenset())


def keeps_texts(old: ColumnType, new: ColumnType) -> bool:
    """As `keeps_values`, of the texts that PostgreSQL has for the values: masked values are made of them."""
    same = old.kind is new.kind and old.arrow == new.arrow
    integers = {old.kind, new.kind} <= {Kind.INT2, Kind.INT4, Kind.INT8}
    return keeps_values(old, new) and (same or integers or new.kind is Kind.TEXT)


def _keeps_text(old: ColumnType, new: ColumnType) -> bool:
    if old.base_oid in {_CHAR, _XML}:
        return False
    if new.base_oid == _VARCHAR and new.typmod != -1:
        return old.base_oid == _VARCHAR and -1 < old.typmod <= new.typmod
    return new.base_oid in {_TEXT, _VARCHAR}  # not name, which holds 63 bytes only


def _keeps_with_modifier(old: ColumnType, new: ColumnType) -> bool:
    """As `keeps_values`, for two types of one kind with different modifiers."""
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
    """Return a type's name for messages, with its modifier: `numeric(10,2)`, `varchar(5)[]`."""
    if type_.kind is Kind.ARRAY and type_.element is not None:
        return f"{declared(type_.element)}[]"
    builtin = BUILTIN.get(type_.base_oid)
    return f"{builtin.name}{_modifier(type_)}" if builtin is not None else type_.label


def _modifier(type_: ColumnType) -> str:
    typmod = type_.typmod
    if typmod < 0:
        return ""
    if type_.kind in {Kind.DECIMAL, Kind.NUMERIC}:
        scale = (_scale(typmod) ^ 1024) - 1024  # it has a sign
        return f"({(typmod - 4) >> 16 & 0xFFFF},{scale})"
    if type_.base_oid in {_VARCHAR, _CHAR}:
        return f"({typmod - 4})"  # VARHDRSZ
    return f"({typmod})" if type_.kind in _CLOCKS or type_.base_oid in {_BIT, _VARBIT} else ""


def _scale(typmod: int) -> int:
    """As numeric_typmod_scale."""
    return (typmod - 4) & 0x7FF


def _precision(typmod: int) -> int:
    """Digits of the fraction of a second."""
    return _MICROSECONDS if typmod < 0 else typmod


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type that holds both types' values exactly and to which Delta can widen both; None if no type does."""
    if left.equals(right):
        return left
    for narrow, wide in ((left, right), (right, left)):
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

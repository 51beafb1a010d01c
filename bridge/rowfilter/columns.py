"""The columns of a table that a row filter can name."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.rowfilter.types.typed import C_COLLATION, COLLATABLE, Collation, ColumnReference, Digits, Strength
from bridge.sqltext.refusal import USER_DEFINED_COLLATIONS, USER_DEFINED_TYPES, Refused
from protocol.values.pg_type import BUILTIN
from protocol.values.types import ColumnType, Kind


@dataclass(frozen=True, slots=True)
class FilterColumn:
    """A column that a row filter can name.

    Attributes:
        type: The type that `protocol.values.types.resolve` returns, with the OID of the declared type.
        collation: The collation of a column of text; None for the database's default.
    """

    type: ColumnType
    collation: Collation | None = None


def reference(name: str, column: FilterColumn, default: Collation, at: int) -> ColumnReference:
    """The typed expression for a column that a filter names.

    Raises:
        Refused: The column's type or collation is user-defined.
    """
    info = BUILTIN.get(column.type.oid)
    if info is None:
        raise Refused(USER_DEFINED_TYPES, at)
    if column.collation is not None and column.collation.user_defined:
        raise Refused(USER_DEFINED_COLLATIONS, at)
    inner = column.type.element if column.type.kind is Kind.ARRAY and column.type.element else column.type
    digits = Digits(inner.arrow.precision, inner.arrow.scale) if inner.kind is Kind.DECIMAL else None
    strength = None
    if info.name.removeprefix("_") in COLLATABLE:
        strength = Strength(C_COLLATION if info.name == "name" else column.collation or default)
    return ColumnReference(info.name, at, F.col, digits=digits, strength=strength, name=name)

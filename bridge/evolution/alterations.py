"""The changes that a plan makes to a Delta table's columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


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

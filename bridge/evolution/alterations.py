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
    found: dict[str, pa.Scalar] = {}
    for alteration in alterations:
        if isinstance(alteration, AddColumn) and alteration.value is not None:
            found[alteration.name] = alteration.value
        elif isinstance(alteration, RenameColumn) and alteration.name in found:
            found[alteration.new_name] = found.pop(alteration.name)
        elif isinstance(alteration, WidenColumn) and alteration.name in found:
            found[alteration.name] = found[alteration.name].cast(alteration.type)
    return found


def variants(alterations: Sequence[Alteration]) -> set[str]:
    """Return the last names of added columns of VARIANT."""
    found: set[str] = set()
    for alteration in alterations:
        if isinstance(alteration, AddColumn) and alteration.variant:
            found.add(alteration.name)
        elif isinstance(alteration, RenameColumn) and alteration.name in found:
            found.remove(alteration.name)
            found.add(alteration.new_name)
    return found


def renamings(alterations: Sequence[Alteration]) -> dict[str, str]:
    """Return the last names of columns that are renamed, by their first ones."""
    found: dict[str, str] = {}
    for alteration in alterations:
        if isinstance(alteration, RenameColumn):
            first = next((old for old, new in found.items() if new == alteration.name), alteration.name)
            found[first] = alteration.new_name
    return {old: new for old, new in found.items() if old != new}

"""Brings changes under an earlier definition of a table to its last one, column by column, by name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bridge.changes.schema import POSITION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.apply.target.target import TargetColumn

_UPDATE = ord("U")


class Renaming(NamedTuple):
    """How a column of changes comes from one under an earlier definition.

    Attributes:
        name: The column under the last definition.
        source: The column under the earlier definition; None where that lacks it.
        type: Its Arrow type.
        value: Its value where there is no source; None for NULL.
        widened: Whether the source has another type and is cast.
    """

    name: str
    source: str | None
    type: pa.DataType
    value: pa.Scalar | None = None
    widened: bool = False

    @property
    def keeps(self) -> bool:
        """Whether it marks values that the target keeps, because the earlier definition lacks the column."""
        return self.source is None and self.name.startswith("unchanged_")


def renaming(
    names: Sequence[str],
    columns: tuple[TargetColumn, ...],
    last: tuple[TargetColumn, ...],
    fills: Mapping[str, pa.Scalar] = MappingProxyType({}),
) -> list[Renaming]:
    """How the columns of changes come from those under an earlier definition.

    Without a source, `new_<i>` is its column's constant in `fills`, or NULL, and `unchanged_<i>` is true in UPDATEs.

    Args:
        names: The columns of the changes.
        columns: The table's columns under the earlier definition.
        last: The table's columns under the last definition.
        fills: Constants of columns that were added since.
    """
    positions = {column.name: i for i, column in enumerate(columns)}
    found = [Renaming(name, name, pa.int64() if name == "seq" else pa.int16()) for name in ("seq", "op", "old")]
    found += [Renaming(name, name, arrow) for name, arrow in POSITION if name in names]
    for i, column in enumerate(last):
        here = positions.get(column.name)
        if here is None:
            value = fills.get(column.name)
            found += [
                Renaming(f"new_{i}", None, column.type.arrow, value),
                Renaming(f"unchanged_{i}", None, pa.bool_()),
            ]
            continue
        widened = not columns[here].type.arrow.equals(column.type.arrow)
        types = {"new": column.type.arrow, "old": column.type.arrow, "unchanged": pa.bool_()}
        types |= {"unheld": pa.string(), "oldunheld": pa.string()}
        found += [
            Renaming(f"{kind}_{i}", f"{kind}_{here}", type_, widened=kind in {"new", "old"} and widened)
            for kind, type_ in types.items()
            if f"{kind}_{here}" in names
        ]
    return found


def renamed(table: pa.Table, names: Sequence[Renaming]) -> pa.Table:
    """The changes with their columns under the last definition."""
    columns: dict[str, Any] = {}
    for name, source, arrow, value, widened in names:
        if source is not None:
            columns[name] = table[source].cast(arrow) if widened else table[source]
        elif name.startswith("unchanged_"):
            columns[name] = pc.equal(table["op"], _UPDATE)
        elif value is not None:
            columns[name] = pa.repeat(value.cast(arrow), len(table))
        else:
            columns[name] = pa.nulls(len(table), arrow)
    return pa.table(columns)

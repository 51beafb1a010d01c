"""Checks which columns of a Delta table can lay out its files, as `cluster_by` and `partition_by` name them.

Delta would refuse some of these, too, but only when the table is created, and in its own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bridge.runtime.errors import TargetError
from bridge.runtime.warehouse import NO_LAYOUT, Layout
from bridge.targets.target import TargetColumn, TargetField, TargetSchema
from protocol.values.types import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_INDEXED_COLUMNS: Final = 32
"""Delta collects statistics of so many columns by default, and clusters by no other."""


def check_layout(relation: str, layout: Layout, schema: TargetSchema) -> None:
    """Check that a new Delta table can have a layout.

    Raises:
        TargetError: A column does not exist, or is of a type that Delta does not allow there.
    """
    if layout == NO_LAYOUT:
        return
    columns = {field.name: field for field in schema}
    message = f'the Delta table of "{relation}" cannot be laid out by {layout.option}: '
    for name in layout.columns:
        field = columns.get(name)
        if field is None:
            near = next((column for column in columns if column.lower() == name.lower()), None)
            advice = f'write "{near}"' if near else f"its columns are {', '.join(columns)}"
            raise TargetError(
                f'{message}it has no column "{name}"',
                hint=f'correct the table "{relation}" of the configuration: {advice}',
            )
        if not _allowed(field, layout):
            raise TargetError(
                f'{message}its column "{name}" is {field.sql_type}',
                hint=f"name a column of numbers, text, dates or timestamps{_BESIDES[layout.option]}",
            )
    if layout.partition_by and len(layout.partition_by) == len(columns):
        raise TargetError(
            f"{message}every column would be a partition column, and the files would have none",
            hint="partition by fewer columns",
        )


def kept_layout(layout: Layout, columns: Sequence[TargetColumn], others: Collection[str] = ()) -> Layout:
    """Return what is left of a table's layout once a copy replaces its columns; `others` keep their types."""
    fields = {column.name: TargetField(column.name, column.type.arrow, "", column.type.place) for column in columns}

    def left(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if name in others or (name in fields and _allowed(fields[name], layout)))

    partitions = left(layout.partition_by)
    return Layout(left(layout.cluster_by), () if set(partitions) == {*fields, *others} else partitions)


_BESIDES: Final = {"cluster_by": "", "partition_by": " (no floating-point numbers), or a boolean one"}


def _allowed(field: TargetField, layout: Layout) -> bool:
    """Whether Delta clusters by the column; or whether it keeps each of its values as that of a partition.

    Clustering needs the least and the greatest value, which Delta collects. A partition's value passes through its
    text, which is no place for a floating-point number.
    """
    type_ = field.arrow
    if type_ is None or field.place is Place.VARIANT:
        return False
    tests = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)
    own = pa.types.is_floating if layout.cluster_by else pa.types.is_boolean
    return own(type_) or any(test(type_) for test in tests)


def layout_properties(layout: Layout, leaves: list[str]) -> dict[str, str]:
    """The properties that a new Delta table needs for a layout. Of a struct, `leaves` has the columns."""
    indexed = max((leaves.index(name) + 1 for name in layout.cluster_by), default=0)
    return {"delta.dataSkippingNumIndexedCols": str(indexed)} if indexed > _INDEXED_COLUMNS else {}

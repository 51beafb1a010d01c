"""Which of a relation's columns the changes to its target keep, and as what types. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.apply.batch.table_changes import key_of
from bridge.apply.evolution.widening import widened

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from bridge.apply.batch.table_changes import Subscribed
    from bridge.apply.target import TargetColumn
    from protocol.messages import Relation
    from protocol.values.types import ColumnType


def cast(table: pa.Table, types: Sequence[ColumnType], columns: Sequence[TargetColumn]) -> pa.Table:
    """Decoded rows in the target's types, which may be wider."""
    for i, (type_, column) in enumerate(zip(types, columns, strict=True)):
        if not type_.arrow.equals(column.type.arrow):
            for name in {f"new_{i}", f"old_{i}"}.intersection(table.column_names):
                at = table.column_names.index(name)
                table = table.set_column(at, name, widened(table[name], column.type.arrow))
    return table


def wanted_columns(columns: Sequence[TargetColumn], subscribed: Subscribed) -> list[int] | None:
    """Positions of the columns that are published or looked at by a filter; None for all."""
    if subscribed.columns is None:
        return None
    names = subscribed.columns | (subscribed.filters.columns if subscribed.filters else frozenset())
    return [i for i, column in enumerate(columns) if column.name in names]


def chosen(
    columns: tuple[TargetColumn, ...], key: tuple[int, ...], wanted: list[int] | None, subscribed: Subscribed
) -> tuple[tuple[TargetColumn, ...], tuple[int, ...]]:
    """The wanted columns, and the key's positions among them; no key where one of its columns is not published."""
    if wanted is None:
        return columns, key
    complete = subscribed.columns is None or all(columns[k].name in subscribed.columns for k in key)
    return tuple(columns[i] for i in wanted), tuple(wanted.index(k) for k in key) if complete else ()


def old_columns(
    columns: Sequence[TargetColumn], relation: Relation, subscribed: Subscribed, key: tuple[int, ...]
) -> set[int]:
    """Positions of the columns whose old values are needed: the key's, and those that a filter looks at; else all."""
    if not key:
        return set(range(len(columns)))
    looked_at = subscribed.filters.columns if subscribed.filters else frozenset()
    return {*key_of(relation, subscribed), *(i for i, column in enumerate(columns) if column.name in looked_at)}

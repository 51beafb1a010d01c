"""From decoded rows to changes: which columns a target's changes keep, and in which types. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.batch.subscribed import key_of
from bridge.apply.target.widening import widened

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.apply.batch.subscribed import Subscribed
    from bridge.apply.target.target import TargetColumn
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


def from_rows(
    table: pa.Table,
    seq: pa.Array,
    olds: Collection[int],
    wanted: Sequence[int] | None = None,
) -> pa.Table:
    """Decoded rows (`RowMessages.decode`) as changes: with `seq`, and of the old tuples the columns `olds`.

    `wanted` are the positions to keep, in order, and are counted from 0 in what is returned; None keeps all. The tags
    are widened to types that Spark has. An unchanged TOAST value is taken from the old tuple where that has it: under
    REPLICA IDENTITY FULL, and those of the key, whose tuple the server sends whenever there is one
    (`ExtractReplicaIdentity` in heapam.c). Where it has NULL the value stays unchanged: it is the key's tuple, also
    where it comes as the whole row, because the partition's root has FULL, and the partition itself does not.
    """
    columns: dict[str, pa.ChunkedArray | pa.Array] = {
        "seq": seq,
        "op": pc.cast(table["op"], pa.int16()),
        "old": pc.cast(table["old"], pa.int16()),
    }
    for name in table.column_names:
        kind, _, index = name.partition("_")
        if kind == "new" and f"unchanged_{index}" in table.column_names and f"old_{index}" in table.column_names:
            there = pc.is_valid(table[f"old_{index}"])
            if f"oldunheld_{index}" in table.column_names:
                there = pc.or_(there, pc.is_valid(table[f"oldunheld_{index}"]))
            from_old = pc.and_(table[f"unchanged_{index}"], there)
            columns[name] = pc.if_else(from_old, table[f"old_{index}"], table[name])
            columns[f"unchanged_{index}"] = pc.and_not(table[f"unchanged_{index}"], there)
            if f"oldunheld_{index}" in table.column_names:
                held = f"unheld_{index}" not in table.column_names
                carried = pa.nulls(len(table), pa.string()) if held else table[f"unheld_{index}"]
                columns[f"unheld_{index}"] = pc.if_else(from_old, table[f"oldunheld_{index}"], carried)
        elif kind == "new" or (kind in {"old", "oldunheld"} and index and int(index) in olds):
            columns[name] = table[name]
        elif kind in {"unchanged", "unheld"}:
            columns.setdefault(name, table[name])
    if wanted is None:
        return pa.table(columns)
    place = {str(position): i for i, position in enumerate(wanted)}
    renumbered = {name: columns[name] for name in ("seq", "op", "old")}
    for name, column in columns.items():
        kind, _, index = name.partition("_")
        if index in place:
            renumbered[f"{kind}_{place[index]}"] = column
    return pa.table(renumbered)

"""From decoded rows to the changes of a target: which columns are kept, in which types, and each change's place. Pure.

Unchanged TOAST values: pgoutput does not send a large value that an UPDATE leaves as it was. The old tuple has it under
REPLICA IDENTITY FULL, and it has those of the key, whose tuple the server sends whenever there is one
(`ExtractReplicaIdentity` in heapam.c). Every other one stays marked: the target's value, or an earlier change's in the
batch, is kept when the change is applied (`effects/net_effect`).

The place of a change in the stream is the columns of `bridge.batch.change_schema.POSITION`. They are made only for
targets that keep every change, and for the data source; no Python runs per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.batch import change_schema, routes
from pgbridge.bridge.targets.target import TargetColumn, widened
from pgbridge.protocol.codec.messages import Column, Relation, Truncate
from pgbridge.protocol.lsn import POSTGRES_EPOCH_US

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pgbridge.bridge.batch.decode_block import DecodeBlock
    from pgbridge.protocol.values.types import ColumnType
    from pgbridge.protocol.values.value_array import Bools, Ints


def from_old_tuples(table: pa.Table) -> pa.Table:
    """Take unchanged values from the old tuples that have them.

    Where the old tuple has NULL, the value stays unchanged: that tuple is a key's. It may come as the whole row, where
    the root has REPLICA IDENTITY FULL and the partition does not.

    Args:
        table: Decoded rows (`RowMessages.decode`): `new_<i>`, `old_<i>`, `unchanged_<i>`, …

    Returns:
        The same table; `unchanged_<i>` marks the values that are still not known.
    """
    names = frozenset(table.column_names)
    for name in table.column_names:
        kind, _, i = name.partition("_")
        if kind != "unchanged" or f"old_{i}" not in names:
            continue
        known = pc.is_valid(table[f"old_{i}"])
        if f"oldunheld_{i}" in names:
            known = pc.or_(known, pc.is_valid(table[f"oldunheld_{i}"]))
        from_old = pc.and_(table[name], known)
        table = _replaced(table, f"new_{i}", pc.if_else(from_old, table[f"old_{i}"], table[f"new_{i}"]))
        table = _replaced(table, name, pc.and_not(table[name], known))
        if f"oldunheld_{i}" in names:
            texts = table[f"unheld_{i}"] if f"unheld_{i}" in names else pa.nulls(len(table), pa.string())
            table = _replaced(table, f"unheld_{i}", pc.if_else(from_old, table[f"oldunheld_{i}"], texts))
    return table


def _replaced(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    if name not in table.column_names:
        return table.append_column(name, values)
    return table.set_column(table.column_names.index(name), name, values)


def in_target_types(table: pa.Table, types: Sequence[ColumnType], columns: Sequence[TargetColumn]) -> pa.Table:
    """Decoded rows in the types of the target's columns, which may be wider."""
    for i, (type_, column) in enumerate(zip(types, columns, strict=True)):
        if not type_.arrow.equals(column.type.arrow):
            for name in {f"new_{i}", f"old_{i}"}.intersection(table.column_names):
                at = table.column_names.index(name)
                table = table.set_column(at, name, widened(table[name], column.type.arrow))
    return table


def kept_positions(columns: Sequence[Column], subscribed: routes.Subscribed) -> list[int] | None:
    """Positions of the columns that are published; None for all."""
    names = subscribed.columns
    return None if names is None else [i for i, column in enumerate(columns) if column.name in names]


def keep(
    columns: tuple[TargetColumn, ...], key: tuple[int, ...], kept: list[int] | None
) -> tuple[tuple[TargetColumn, ...], tuple[int, ...]]:
    """The kept columns, and the key's positions among them; no key where one of its columns is not published."""
    if kept is None:
        return columns, key
    complete = set(key).issubset(kept)
    return tuple(columns[i] for i in kept), tuple(kept.index(k) for k in key) if complete else ()


def old_positions(
    columns: Sequence[TargetColumn], relation: Relation, subscribed: routes.Subscribed, key: tuple[int, ...]
) -> set[int]:
    """Positions of the columns whose old values are needed: the key's; without a key, all."""
    return set(routes.key_of(relation, subscribed)) if key else set(range(len(columns)))


def as_changes(
    table: pa.Table,
    seq: pa.Array,
    old_positions: Collection[int],
    kept: Sequence[int] | None = None,
    positions: Mapping[str, pa.Array] = MappingProxyType({}),
) -> pa.Table:
    """Decoded rows as changes.

    Args:
        table: As `RowMessages.decode` gives it, with its unchanged values resolved (`from_old_tuples`).
        seq: Each row's position in the batch.
        old_positions: Positions of the columns whose old values are kept.
        kept: Positions of the columns that are kept, in order: what is returned counts them from 0. None keeps all.
        positions: Further columns, of the changes' positions in the stream.

    Returns:
        A table in the columns of `TableChanges.changes`; `op` and `old` are int16, which Spark has.
    """
    columns: dict[str, pa.ChunkedArray | pa.Array] = {
        "seq": seq,
        "op": pc.cast(table["op"], pa.int16()),
        "old": pc.cast(table["old"], pa.int16()),
        **positions,
    }
    place = None if kept is None else {position: i for i, position in enumerate(kept)}
    for name in table.column_names:
        kind, _, index = name.partition("_")
        if not index or (kind in {"old", "oldunheld"} and int(index) not in old_positions):
            continue
        if place is None:
            columns[name] = table[name]
        elif int(index) in place:
            columns[f"{kind}_{place[int(index)]}"] = table[name]
    return pa.table(columns)


@dataclass(eq=False)
class Ordinals:
    """Counts the changes of the transaction that goes on in the next block; one for each batch."""

    _commit_lsn: int = -1
    _count: int = 0

    def begin(self, commit_lsn: int) -> int:
        """How many changes of a transaction were in earlier blocks."""
        return self._count if commit_lsn == self._commit_lsn else 0

    def end(self, commit_lsn: int, count: int) -> None:
        """A block has ended with a transaction that has so many changes up to here."""
        self._commit_lsn, self._count = commit_lsn, count


class BlockPositions:
    """The positions of a block's changes.

    Args:
        aborted: Which rows are of rolled back subtransactions, and do not count; None for none.
        ordinals: What earlier blocks have counted; it is moved on.
    """

    def __init__(self, block: DecodeBlock, aborted: Bools | None, ordinals: Ordinals) -> None:
        lengths = np.diff(block.first_rows)
        self._transactions = np.repeat(np.arange(len(lengths)), lengths)
        self._lsns = block.commit_lsns.astype(np.int64)
        self._xids = np.asarray(block.xids, np.int64)
        self._times_us, self._origins = _of_transactions(block)
        counted = np.ones(len(block.rows) + 1, np.int64)
        if aborted is not None:
            counted[:-1] -= aborted
        before = np.cumsum(counted) - counted  # the rows before each, and before the end
        self._first = before[block.first_rows[:-1]]
        self._ordinals = before.copy()
        self._ordinals[:-1] -= self._first[self._transactions]
        self._truncates: dict[int, tuple[int, int]] = {}  # transaction and first ordinal, by the number of the event
        carried = ordinals.begin(int(self._lsns[0])) if len(lengths) else 0
        shifts = np.zeros(len(lengths), np.int64)
        if carried:
            shifts[0] = carried
            self._ordinals[: block.first_rows[1]] += carried
        for event, (position, transaction, message) in enumerate(block.events):
            if isinstance(message, Truncate):
                # a message just before a COMMIT has the LSN of that
                number = int(np.searchsorted(self._lsns, transaction.commit_lsn, side="right")) - 1
                self._truncates[event] = number, int(before[position] - self._first[number] + shifts[number])
                shifts[number] += len(message.relation_ids)
                self._ordinals[position : block.first_rows[number + 1]] += len(message.relation_ids)
        if len(lengths):
            ordinals.end(int(self._lsns[-1]), int(before[-1] - self._first[-1] + shifts[-1]))

    def of_rows(self, rows: Ints) -> dict[str, pa.Array]:
        """The columns of row messages, by name."""
        return self._columns(self._transactions[rows], self._ordinals[rows])

    def of_truncate(self, event: int, number: int) -> dict[str, pa.Array]:
        """The columns, of one row each, of the `number`-th table that a TRUNCATE empties.

        Args:
            event: The number of the TRUNCATE among the block's events.
            number: Which of its tables, from 0.
        """
        transaction, first = self._truncates[event]
        return self._columns(np.array([transaction]), np.array([first + number]))

    def _columns(self, transactions: Ints, ordinals: Ints) -> dict[str, pa.Array]:
        values = (
            pa.array(self._lsns[transactions]),
            pa.array(ordinals),
            pa.array(self._xids[transactions]),
            pa.array(self._times_us[transactions]).cast(pa.timestamp("us", "UTC")),
            pa.nulls(len(transactions), pa.string())
            if self._origins is None
            else self._origins.take(pa.array(transactions)),
        )
        return {name: array for (name, _), array in zip(change_schema.POSITION, values, strict=True)}


def _of_transactions(block: DecodeBlock) -> tuple[Ints, pa.Array | None]:
    """Each transaction's commit time, in microseconds since 1970; and its origin, None if none has one."""
    times: list[np.ndarray] = []
    origins: list[str | None] = []
    for item in block.items:
        times.append(item.commit_times_us)
        origins += [item.origin_name] * len(item)
    named = pa.array(origins, pa.string()) if any(origins) else None
    return np.concatenate(times).astype(np.int64) + POSTGRES_EPOCH_US, named

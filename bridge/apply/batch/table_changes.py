"""The changes of a batch to one target, as one table: what it holds, and how it comes from decoded rows.

No Spark in here. Columns carry positions, not names, so that no column's name can collide with the bridge's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bridge.apply.batch.server_filters import ServerFilters
    from bridge.apply.delta.filtering import RowFilters
    from bridge.apply.evolution.plan import Change
    from bridge.apply.target import Target, TargetColumn
    from protocol.lsn import Lsn
    from protocol.messages import Relation

INSERT, UPDATE, DELETE = b"IUD"
COMMANDS = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}
NO_OLD, KEY_TUPLE, OLD_TUPLE = 0, ord("K"), ord("O")
ACTIONS = frozenset({"insert", "update", "delete", "truncate"})


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A table that follows the stream.

    Attributes:
        target: Its Delta table.
        lsn: Transactions that commit before it are already in the target (`srsublsn`).
        primary_key: Names of the published primary key's columns: the key under REPLICA IDENTITY FULL.
        relid: The published table's oid, where it is known.
        actions: What is published: some of insert, update, delete, truncate.
        columns: Names of the published columns; None for all that the stream has.
        filters: Which rows are published; None for all.
        cut_identity: Names of the replica identity's columns, where not all of them are published.
        server_filters: The same, where a server tells; there are no others then.
    """

    target: Target
    lsn: Lsn
    primary_key: tuple[str, ...]
    actions: frozenset[str] = ACTIONS
    columns: frozenset[str] | None = None
    filters: RowFilters | None = None
    cut_identity: frozenset[str] = frozenset()
    relid: int | None = None
    server_filters: ServerFilters | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes that were handed to Spark ahead of the batch's end, because memory would not hold all of them.

    Attributes:
        frame: The DataFrame, in the columns of `TableChanges.changes`.
        column_names: Its columns.
        inserts_only: There is nothing but new rows.
        moves: A key change carries an unchanged TOAST value.
    """

    frame: Any
    column_names: list[str]
    inserts_only: bool
    moves: bool


@dataclass(slots=True)
class TableChanges:
    """The changes of a batch to one target, in order; or those of them that find rows by the same columns.

    Attributes:
        target: Where they go.
        columns: The replicated columns, and those that only the filters look at; the positions below are indices
            into it.
        key: Positions of the columns that identify a row; empty when there is no identity (inserts only).
        changes: Arrow table: `seq` int64 (position in the batch, ascending), `op` int16 (`INSERT`, `UPDATE`,
            `DELETE`), `old` int16 (`NO_OLD`, `KEY_TUPLE`, `OLD_TUPLE`), `new_<i>` and `old_<i>` in the column's
            type (NULL where the message has no such tuple), `unchanged_<i>` bool for columns of which at least
            one new value is an unchanged TOAST value that the stream does not carry, `unheld_<i>` and `oldunheld_<i>`
            as in `bridge.apply.delta.unheld`. Or all that as `Staged`.
        truncated: The table was emptied; `changes` holds only what came after.
        filters: Which of the changes count, and as what; None for all of them.
        published: Names of the replicated columns; None for all.
        alterations: What has to become of the target's columns first; `target` has them as they are after that.
        lost: How many rows have NULL for a value that the stream does not carry, because an UPDATE became an INSERT.
        fills: Where all columns identify a row: what rows that come have in other columns of the target.
    """

    target: Target
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    changes: pa.Table | Staged
    truncated: bool = False
    filters: RowFilters | None = None
    published: frozenset[str] | None = None
    alterations: tuple[Change, ...] = ()
    lost: int = 0
    fills: Mapping[str, pa.Scalar] = field(default_factory=dict)

    @property
    def inserts_only(self) -> bool:
        """There is nothing but new rows."""
        return self.changes.inserts_only if isinstance(self.changes, Staged) else inserts_only(self.changes)

    @property
    def moves(self) -> bool:
        """A key change carries an unchanged TOAST value."""
        return self.changes.moves if isinstance(self.changes, Staged) else moves(self.changes, self.key)

    @property
    def empty(self) -> bool:
        """There are no changes; what is staged is never empty."""
        return not isinstance(self.changes, Staged) and not len(self.changes)


def inserts_only(changes: pa.Table) -> bool:
    """There is nothing but new rows."""
    return bool((changes["op"].to_numpy() == INSERT).all())


def moves(changes: pa.Table, key: Sequence[int] = ()) -> bool:
    """Whether a key change carries an unchanged TOAST value, or one of a column that the stream has not."""
    marks = [changes[name] for name in changes.column_names if name.startswith("unchanged_")]
    if not marks or not _has_old_rows(changes):
        return False
    keyed = _keyed(changes, key)
    return any(pc.any(pc.and_(keyed, mark)).as_py() for mark in marks)


def key_changes(changes: pa.Table, key: Sequence[int]) -> bool:
    """Whether there are UPDATEs of the key, at these positions."""
    return _has_old_rows(changes) and bool(pc.any(_keyed(changes, key), min_count=0).as_py())


def _has_old_rows(changes: pa.Table) -> bool:
    """Whether there are old tuples at all: mostly not, and that is soon known."""
    return bool(changes["old"].to_numpy().any())


def _keyed(changes: pa.Table, key: Sequence[int]) -> pa.ChunkedArray:
    """UPDATEs with the old key, and those with all of the old row (REPLICA IDENTITY FULL) in which it is another."""
    updates = pc.equal(changes["op"], UPDATE)
    keyed = pc.equal(changes["old"], KEY_TUPLE)
    whole = pc.equal(changes["old"], OLD_TUPLE)
    for k in key if {f"old_{k}" for k in key} <= set(changes.column_names) else ():
        old, new = changes[f"old_{k}"], changes[f"new_{k}"]
        nested = pa.types.is_nested(old.type)  # Arrow does not compare them
        keyed = pc.or_(keyed, whole if nested else pc.and_(whole, pc.fill_null(pc.not_equal(old, new), False)))
    return pc.and_(updates, keyed)


def key_of(relation: Relation, subscribed: Subscribed) -> tuple[int, ...]:
    """Positions of the identity's columns: the replica identity's, or under FULL the primary key's.

    None where a column list leaves one out: what the message has is a part of a key, and identifies no row. Such a
    table has INSERTs only (`CheckCmdReplicaIdentity`). A message from before the list, or before a column of the key
    was renamed, has the whole key.
    """
    if relation.replica_identity == "f":
        names = {column.name for column in relation.columns}
        if not subscribed.primary_key or not names.issuperset(subscribed.primary_key):
            return ()
        return tuple(i for i, column in enumerate(relation.columns) if column.name in subscribed.primary_key)
    key = tuple(i for i, column in enumerate(relation.columns) if column.is_key)
    cut = subscribed.cut_identity.difference(column.name for column in relation.columns)
    return () if cut and len(key) < len(subscribed.cut_identity) else key


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

"""The changes of a batch to one target: decoded pieces, and how they come together under one definition.

No Spark in here. Columns carry positions, not names, so that no column's name can collide with the bridge's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.evolution import AddColumn, RenameColumn, WidenColumn
from bridge.apply.renaming import renamed, renaming
from bridge.apply.target import TargetColumn, arrow_type
from protocol.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.apply.evolution import Change
    from bridge.apply.filtering import RowFilters
    from bridge.apply.renaming import Renaming
    from bridge.apply.target import Target
    from bridge.apply.verdicts import ServerFilters
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
    """The changes of a batch to one target, in order.

    Attributes:
        target: Where they go.
        columns: The replicated columns, and those that only the filters look at; the positions below are indices
            into it.
        key: Positions of the columns that identify a row; empty when there is no identity (inserts only).
        changes: Arrow table: `seq` int64 (position in the batch, ascending), `op` int16 (`INSERT`, `UPDATE`,
            `DELETE`), `old` int16 (`NO_OLD`, `KEY_TUPLE`, `OLD_TUPLE`), `new_<i>` and `old_<i>` in the column's
            type (NULL where the message has no such tuple), `unchanged_<i>` bool for columns of which at least
            one new value is an unchanged TOAST value that the stream does not carry, `unheld_<i>` and `oldunheld_<i>`
            as in `bridge.apply.unheld`. Or all that as `Staged`.
        truncated: The table was emptied; `changes` holds only what came after.
        filters: Which of the changes count, and as what; None for all of them.
        published: Names of the replicated columns; None for all.
        alterations: What has to become of the target's columns first; `target` has them as they are after that.
        lost: How many rows have NULL for a value that the stream does not carry, because an UPDATE became an INSERT.
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


class Stage(Protocol):
    """Takes changes out of Python's memory."""

    def put(self, table: pa.Table) -> Any:
        """A DataFrame of the table's rows that does not need the table any more."""

    def union(self, pieces: Sequence[tuple[Any, list[Renaming]]]) -> Any:
        """One DataFrame of pieces of changes, each with its columns renamed."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Changes under one definition of the relation; `staged` instead of `table` once they are out of memory.

    Attributes:
        published: Names of the columns that are for the target.
        key_changes: There are UPDATEs of the key.
        fills: Constants of columns that were added later: the rows had them from then on.
    """

    columns: tuple[TargetColumn, ...]
    column_names: list[str]
    inserts_only: bool
    moves: bool
    table: pa.Table | None
    staged: Any = None
    published: frozenset[str] | None = None
    key_changes: bool = False
    fills: tuple[tuple[str, pa.Scalar], ...] = ()

    def altered(self, change: Change) -> _Piece:
        """The same after a change of the target's columns."""
        if isinstance(change, AddColumn):
            return self if change.value is None else replace(self, fills=(*self.fills, (change.name, change.value)))
        if isinstance(change, WidenColumn):
            widened = tuple((n, v.cast(change.type) if n == change.name else v) for n, v in self.fills)
            return replace(self, fills=widened)

        def named(name: str) -> str:
            return change.new_name if name == change.name else name

        return replace(
            self,
            columns=tuple(replace(column, name=named(column.name)) for column in self.columns),
            published=None if self.published is None else frozenset(map(named, self.published)),
            fills=tuple((named(name), value) for name, value in self.fills),
        )


@dataclass(slots=True)
class Pieces:
    """What has been decoded for one target so far.

    Attributes:
        columns: The replicated columns by the last definition.
        key: Positions of the columns that identify a row, by the last definition.
        truncated: The target was emptied before these changes.
        alterations: What became of the target's columns.
        lost: As in `TableChanges`.
        identity: Names of the key's columns by which there are changes other than INSERT; None while there are none.
    """

    subscribed: Subscribed
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[int, ...] = ()
    truncated: bool = False
    alterations: tuple[Change, ...] = ()
    identity: frozenset[str] | None = None
    lost: int = 0
    _pieces: list[_Piece] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Take changes that come after all others, under the definition in `columns`."""
        piece = _Piece(
            self.columns,
            table.column_names,
            inserts_only(table),
            moves(table, self.key),
            table,
            published=self.subscribed.columns,
            key_changes=key_changes(table, self.key),
        )
        if not piece.inserts_only:
            self.identity = self.key_names
        self._pieces.append(piece)

    def alter(self, changes: Sequence[Change]) -> None:
        """The target's columns become others: what came before is brought along."""
        self.alterations += tuple(changes)
        for change in changes:
            self._pieces = [piece.altered(change) for piece in self._pieces]
            if self.identity is not None and isinstance(change, RenameColumn):
                self.identity = frozenset(change.new_name if n == change.name else n for n in self.identity)

    @property
    def key_names(self) -> frozenset[str]:
        """Names of the columns that identify a row, by the last definition."""
        return frozenset(self.columns[k].name for k in self.key)

    def differently_identified(self, *, changed: bool) -> bool:
        """Whether rows are found by other columns now than in what is here.

        Args:
            changed: What comes now has changes other than INSERT.
        """
        if self.key:
            return self.identity not in {None, self.key_names}
        if self.identity:
            return True
        # without a key all columns identify a row, also one that came in between
        others = any({c.name for c in p.columns} != {c.name for c in self.columns} for p in self._pieces)
        return others and (changed or self.identity is not None)

    def truncate(self) -> None:
        """What came before is void."""
        self._pieces.clear()
        self.truncated = True
        self.identity = None
        self.lost = 0

    @property
    def memory_bytes(self) -> int:
        """What they hold in memory."""
        return sum(piece.table.nbytes for piece in self._pieces if piece.table is not None)

    def stage(self, stage: Stage) -> None:
        """Take what is in memory out of it; changes under one definition go together."""
        kept: list[_Piece] = []
        for (columns, _, staged), group in groupby(
            self._pieces, lambda piece: (piece.columns, piece.fills, piece.table is None)
        ):
            pieces = list(group)
            if staged:
                kept += pieces
                continue
            table = _together([piece.table for piece in pieces])
            only, moved = all(piece.inserts_only for piece in pieces), any(piece.moves for piece in pieces)
            kept.append(
                replace(
                    pieces[-1],
                    columns=columns,
                    column_names=table.column_names,
                    inserts_only=only,
                    moves=moved,
                    table=None,
                    staged=stage.put(table),
                    key_changes=any(piece.key_changes for piece in pieces),
                )
            )
        self._pieces = kept

    def changes(self, stage: Stage | None = None) -> TableChanges | None:
        """All of it, brought together by column name; None when there is nothing.

        A column that a piece has not, because it came later or was dropped, is like an unchanged value in its updates;
        in its inserts it is NULL, or the constant that rows from before the column have. Where a key changes, so is a
        column that only the target has: the row is moved with it.
        """
        if not self._pieces and not self.truncated and not self.alterations:
            return None
        others = tuple(self._others())
        self.columns += others
        changes: pa.Table | Staged
        if stage is not None and any(piece.table is None for piece in self._pieces):
            self.stage(stage)
            changes = self._staged(stage)
        else:
            changes = self._in_memory()
        return TableChanges(
            self.subscribed.target,
            self.columns,
            self.key,
            changes,
            self.truncated,
            self.subscribed.filters,
            self._published(others),
            self.alterations,
            self.lost,
        )

    def _others(self) -> list[TargetColumn]:
        """Columns of the target that are not in the last definition, and that have values here, or must keep them."""
        found = {column.name: column for column in self.columns}
        mine = len(found)
        for piece in reversed(self._pieces):  # the last one has the widest types
            for column in piece.columns:
                if piece.published is None or column.name in piece.published:
                    found.setdefault(column.name, column)
        if any(piece.key_changes for piece in self._pieces):
            for target_field in self.subscribed.target.schema.fields:
                arrow = arrow_type(target_field.dataType)
                if arrow is not None:
                    column = TargetColumn(target_field.name, ColumnType(0, -1, arrow, binary=False, kind=Kind.OPAQUE))
                    found.setdefault(target_field.name, column)
        return list(found.values())[mine:]

    def _published(self, others: Sequence[TargetColumn]) -> frozenset[str] | None:
        """Names of the columns that are for the target; no column of `others` is there for the filters only."""
        if self.subscribed.columns is None:
            return None
        return self.subscribed.columns.union(column.name for column in others)

    def _staged(self, stage: Stage) -> Staged:
        renamings = [self._renaming(piece) for piece in self._pieces]
        pieces = [(piece.staged, names) for piece, names in zip(self._pieces, renamings, strict=True)]
        return Staged(
            stage.union(pieces),
            list(dict.fromkeys(name.name for names in renamings for name in names)),
            all(piece.inserts_only for piece in self._pieces),
            any(
                piece.moves or (piece.key_changes and any(name.keeps for name in names))
                for piece, names in zip(self._pieces, renamings, strict=True)
            ),
        )

    def _in_memory(self) -> pa.Table:
        tables = [renamed(piece.table, self._renaming(piece)) for piece in self._pieces]
        return _together(tables) if tables else _no_changes(self.columns)

    def _renaming(self, piece: _Piece) -> list[Renaming]:
        return renaming(piece.column_names, piece.columns, self.columns, dict(piece.fills))


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
    *,
    key: Collection[int] = (),
) -> pa.Table:
    """Decoded rows (`RowMessages.decode`) as changes: with `seq`, and of the old tuples the columns `olds`.

    `wanted` are the positions to keep, in order, and are counted from 0 in what is returned; None keeps all. The tags
    are widened to types that Spark has. Under REPLICA IDENTITY FULL an unchanged TOAST value stands in the old tuple,
    and is taken from there; so are those of the columns `key` where there is only the key's tuple, which the server
    sends whenever the key has such a value (`ExtractReplicaIdentity` in heapam.c).
    """
    columns: dict[str, pa.ChunkedArray | pa.Array] = {
        "seq": seq,
        "op": pc.cast(table["op"], pa.int16()),
        "old": pc.cast(table["old"], pa.int16()),
    }
    full = pc.equal(table["old"], OLD_TUPLE)
    any_old = pc.not_equal(table["old"], NO_OLD)
    for name in table.column_names:
        kind, _, index = name.partition("_")
        if kind == "new" and f"unchanged_{index}" in table.column_names and f"old_{index}" in table.column_names:
            there = any_old if int(index) in key else full
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


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    changes = pa.concat_tables(tables, promote_options="default").combine_chunks()
    for index, name in enumerate(changes.column_names):
        if name.startswith("unchanged_"):
            changes = changes.set_column(index, name, pc.fill_null(changes[name], fill_value=False))
    return changes


def _no_changes(columns: Sequence[TargetColumn]) -> pa.Table:
    fields = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()}
    fields |= {f"new_{i}": column.type.arrow for i, column in enumerate(columns)}
    return pa.schema(fields).empty_table()

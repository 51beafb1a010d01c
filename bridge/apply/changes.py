"""The changes of a batch to one target: decoded pieces, and how they come together under one definition.

No Spark in here. Columns carry positions, not names, so that no column's name can collide with the bridge's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.apply.filtering import RowFilters
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
        actions: What is published: some of insert, update, delete, truncate.
        columns: Names of the published columns; None for all that the stream has.
        filters: Which rows are published; None for all.
    """

    target: Target
    lsn: Lsn
    primary_key: tuple[str, ...]
    actions: frozenset[str] = ACTIONS
    columns: frozenset[str] | None = None
    filters: RowFilters | None = None


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
            one new value is an unchanged TOAST value that the stream does not carry. Or all that as `Staged`.
        truncated: The table was emptied; `changes` holds only what came after.
        filters: Which of the changes count, and as what; None for all of them.
        published: Names of the replicated columns; None for all.
    """

    target: Target
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    changes: pa.Table | Staged
    truncated: bool = False
    filters: RowFilters | None = None
    published: frozenset[str] | None = None

    @property
    def inserts_only(self) -> bool:
        """There is nothing but new rows."""
        return self.changes.inserts_only if isinstance(self.changes, Staged) else inserts_only(self.changes)

    @property
    def moves(self) -> bool:
        """A key change carries an unchanged TOAST value."""
        return self.changes.moves if isinstance(self.changes, Staged) else moves(self.changes)

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
    """Changes under one definition of the relation; `staged` instead of `table` once they are out of memory."""

    columns: tuple[TargetColumn, ...]
    column_names: list[str]
    inserts_only: bool
    moves: bool
    table: pa.Table | None
    staged: Any = None


@dataclass(slots=True)
class Pieces:
    """What has been decoded for one target so far.

    Attributes:
        columns: The replicated columns by the last definition.
        key: Positions of the columns that identify a row, by the last definition.
        truncated: The target was emptied before these changes.
        identity: Names of the key's columns by which there are changes other than INSERT; None while there are none.
    """

    subscribed: Subscribed
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[int, ...] = ()
    truncated: bool = False
    identity: frozenset[str] | None = None
    _pieces: list[_Piece] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Take changes that come after all others, under the definition in `columns`."""
        piece = _Piece(self.columns, table.column_names, inserts_only(table), moves(table), table)
        if not piece.inserts_only:
            self.identity = self.key_names
        self._pieces.append(piece)

    @property
    def key_names(self) -> frozenset[str]:
        """Names of the columns that identify a row, by the last definition."""
        return frozenset(self.columns[k].name for k in self.key)

    def truncate(self) -> None:
        """What came before is void."""
        self._pieces.clear()
        self.truncated = True
        self.identity = None

    @property
    def memory_bytes(self) -> int:
        """What they hold in memory."""
        return sum(piece.table.nbytes for piece in self._pieces if piece.table is not None)

    def stage(self, stage: Stage) -> None:
        """Take what is in memory out of it; changes under one definition go together."""
        kept: list[_Piece] = []
        for (columns, staged), group in groupby(self._pieces, lambda piece: (piece.columns, piece.table is None)):
            pieces = list(group)
            if staged:
                kept += pieces
                continue
            table = _together([piece.table for piece in pieces])
            only, moved = all(piece.inserts_only for piece in pieces), any(piece.moves for piece in pieces)
            kept.append(_Piece(columns, table.column_names, only, moved, None, stage.put(table)))
        self._pieces = kept

    def changes(self, stage: Stage | None = None) -> TableChanges | None:
        """All of it, brought together by column name under the last definition; None when there is nothing.

        A column that an earlier piece did not have yet is like an unchanged value in its updates, and NULL in its
        inserts, as in a native subscriber's table. A column that the last definition no longer has is dropped:
        its values before that stay as they are in the target.
        """
        if not self._pieces and not self.truncated:
            return None
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
            self.subscribed.columns,
        )

    def _staged(self, stage: Stage) -> Staged:
        renamings = [renaming(piece.column_names, piece.columns, self.columns) for piece in self._pieces]
        pieces = [(piece.staged, names) for piece, names in zip(self._pieces, renamings, strict=True)]
        return Staged(
            stage.union(pieces),
            list(dict.fromkeys(name.name for names in renamings for name in names)),
            all(piece.inserts_only for piece in self._pieces),
            any(piece.moves for piece in self._pieces),
        )

    def _in_memory(self) -> pa.Table:
        tables = [
            _rename(piece.table, renaming(piece.column_names, piece.columns, self.columns)) for piece in self._pieces
        ]
        return _together(tables) if tables else _no_changes(self.columns)


class Renaming(NamedTuple):
    """How a column of changes comes from one under an earlier definition.

    Attributes:
        name: The column, under the last definition.
        source: The column it was; None when the definition did not have it.
        type: Its Arrow type.
    """

    name: str
    source: str | None
    type: pa.DataType


def renaming(
    names: Sequence[str], columns: tuple[TargetColumn, ...], wanted: tuple[TargetColumn, ...]
) -> list[Renaming]:
    """The columns of changes under the last definition, from those (`names`) under an earlier one.

    A `new_<i>` without a source is NULL, an `unchanged_<i>` without one is true in updates.
    """
    positions = {column.name: i for i, column in enumerate(columns)}
    found = [Renaming(name, name, pa.int64() if name == "seq" else pa.int16()) for name in ("seq", "op", "old")]
    for i, column in enumerate(wanted):
        here = positions.get(column.name)
        if here is None:
            found += [Renaming(f"new_{i}", None, column.type.arrow), Renaming(f"unchanged_{i}", None, pa.bool_())]
            continue
        types = {"new": column.type.arrow, "old": column.type.arrow, "unchanged": pa.bool_()}
        found += [
            Renaming(f"{kind}_{i}", f"{kind}_{here}", type_)
            for kind, type_ in types.items()
            if f"{kind}_{here}" in names
        ]
    return found


def inserts_only(changes: pa.Table) -> bool:
    """There is nothing but new rows."""
    return bool(pc.all(pc.equal(changes["op"], INSERT), min_count=0).as_py())


def moves(changes: pa.Table) -> bool:
    """Whether a key change carries an unchanged TOAST value."""
    marks = [changes[name] for name in changes.column_names if name.startswith("unchanged_")]
    if not marks:
        return False
    keyed = pc.and_(pc.equal(changes["op"], UPDATE), pc.equal(changes["old"], KEY_TUPLE))
    return any(pc.any(pc.and_(keyed, mark)).as_py() for mark in marks)


def key_of(relation: Relation, subscribed: Subscribed) -> tuple[int, ...]:
    """Positions of the identity's columns: the replica identity's, or under FULL the primary key's."""
    if relation.replica_identity == "f":
        names = {column.name for column in relation.columns}
        if not subscribed.primary_key or not names.issuperset(subscribed.primary_key):
            return ()
        return tuple(i for i, column in enumerate(relation.columns) if column.name in subscribed.primary_key)
    return tuple(i for i, column in enumerate(relation.columns) if column.is_key)


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
        elif kind == "new" or (kind == "old" and index and int(index) in olds):
            columns[name] = table[name]
        elif kind == "unchanged":
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


def _rename(table: pa.Table, names: Sequence[Renaming]) -> pa.Table:
    columns: dict[str, Any] = {}
    for name, source, arrow in names:
        if source is not None:
            columns[name] = table[source]
        elif name.startswith("unchanged_"):
            columns[name] = pc.equal(table["op"], UPDATE)
        else:
            columns[name] = pa.nulls(len(table), arrow)
    return pa.table(columns)


def _no_changes(columns: Sequence[TargetColumn]) -> pa.Table:
    fields = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()}
    fields |= {f"new_{i}": column.type.arrow for i, column in enumerate(columns)}
    return pa.schema(fields).empty_table()

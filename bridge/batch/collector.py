"""Collects the changes of a batch to one target as they are decoded, also while the table's definition changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.batch.batch import Renaming, TableChanges, renamed, renaming
from pgbridge.bridge.effects.events import NO_OLD, TRUNCATE, with_marks
from pgbridge.bridge.evolution.alterations import AddColumn, Alteration, WidenColumn
from pgbridge.bridge.runtime.errors import NeedsResync, TargetError
from pgbridge.bridge.targets.target import TargetColumn, TargetSchema, holds, sql_type, unpublished_column

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pgbridge.bridge.batch.routes import Subscribed
    from pgbridge.bridge.effects.divided import Spill


@dataclass(slots=True)
class CommitPart:
    """Changes whose rows are found by the same columns: those of one commit, under each definition of the table.

    A new part begins where rows are found by other columns: another replica identity, or, without a key, another
    column. The net effect cannot reach over that, so each part is a commit of its own.

    Attributes:
        pieces: The changes under each definition, in order; at least one.
        changed: Whether there are changes other than INSERT.
        last_seq: Position of the last change in the batch.
    """

    pieces: list[TableChanges]
    changed: bool
    last_seq: int

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        """The columns of the last definition."""
        return self.pieces[-1].columns

    @property
    def key(self) -> tuple[int, ...]:
        """Positions of the columns that identify a row, by the last definition; empty: all columns do."""
        return self.pieces[-1].key

    def takes(self, piece: TableChanges, *, changed: bool) -> bool:
        """Whether more changes find rows by the same columns. INSERTs find no rows, and go with any key."""
        if not self._filled_alike(piece):
            return False
        if not self.changed and (piece.key or not changed):
            return True
        if self.changed and (piece.key or self.key):
            return _key_names(self) == _key_names(piece)
        names = {column.name for column in piece.columns}
        return all({column.name for column in earlier.columns} == names for earlier in self.pieces)

    def _filled_alike(self, piece: TableChanges) -> bool:
        """Whether new rows have the same columns, but for some that Delta gives NULL to a row that lacks them."""
        defaults = {field.name for field in piece.target.schema if field.filled == "default"}
        return not defaults or defaults & _names(self.pieces[-1]) == defaults & _names(piece)

    def add(self, piece: TableChanges, last_seq: int, *, changed: bool) -> None:
        """Add changes that `takes` has accepted; `last_seq` is the position of the last of them."""
        self.pieces.append(piece)
        self.changed = self.changed or changed
        self.last_seq = max(self.last_seq, last_seq)

    def alter(self, change: Alteration) -> None:
        """Bring the changes along with a change of the target's columns."""
        self.pieces = [_altered(piece, change) for piece in self.pieces]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the changes in memory."""
        return sum(piece.changes.nbytes for piece in self.pieces if piece.spill is None)

    def spill(self, spill: Spill) -> None:
        """Write the changes in memory to files, those under one definition together."""
        kept: list[TableChanges] = []
        for _, group in groupby(self.pieces, lambda piece: (piece.columns, piece.fills, piece.spill is None)):
            pieces = list(group)
            if pieces[-1].spill is None:
                written = spill.table([concatenated([piece.changes for piece in pieces])])
                pieces = [replace(pieces[-1], changes=written, spill=spill)]
            kept += pieces
        self.pieces = kept

    def joined(self, subscribed: Subscribed, *, altered_later: bool) -> TableChanges:
        """Join the changes of all definitions.

        A definition may lack a column that came later or was dropped. In its UPDATEs the column counts as unchanged; in
        its INSERTs it is NULL, or the constant that rows from before the column have. In a history, a column that only
        the target has counts as unchanged, too: the next version of a row has its value.

        Args:
            subscribed: Has the target with its columns as they are once the whole batch is applied.
            altered_later: Whether there are later definitions, which may have widened the target's columns.
        """
        last = self.pieces[-1]
        bag = self.changed and not self.key
        beside = self._columns_beside(subscribed.target.schema, () if bag else last.fills)
        columns = self.columns + beside
        if altered_later:
            columns = _in_types_of(subscribed.target.schema, columns)
        spill = next((piece.spill for piece in self.pieces if piece.spill is not None), None)
        changes = concatenated(
            [renamed(piece.changes, _renaming(piece, columns)) for piece in self.pieces], copied=spill is None
        )
        fills = last.fills if bag else {}
        return replace(last, target=subscribed.target, columns=columns, changes=changes, fills=fills, spill=spill)

    def _columns_beside(self, schema: TargetSchema, fills: Collection[str]) -> tuple[TargetColumn, ...]:
        """Columns of the target that the last definition lacks, and that have values here or must keep them."""
        columns = {column.name: column for column in self.columns}
        defined = len(columns)
        for piece in reversed(self.pieces):  # the last one has the widest types
            for column in piece.columns:
                columns.setdefault(column.name, column)
        last = self.pieces[-1].target
        # a changelog's or history's UPDATEs say of each column that they leave as it was; a handler has no such columns
        every = last.every_change and last.mode != "handler"
        for target_field in schema:
            kept = every and target_field.filled in {"null", "default", "refused"}
            if target_field.arrow is not None and (kept or target_field.name in fills):
                columns.setdefault(target_field.name, unpublished_column(target_field, target_field.arrow))
        return tuple(columns.values())[defined:]


def _names(changes: TableChanges) -> set[str]:
    return {column.name for column in changes.columns}


def _key_names(changes: TableChanges | CommitPart) -> frozenset[str]:
    return frozenset(changes.columns[k].name for k in changes.key)


def _altered(changes: TableChanges, change: Alteration) -> TableChanges:
    """The changes after a change of the target's columns."""
    fills = changes.fills
    if isinstance(change, AddColumn):
        return changes if change.value is None else replace(changes, fills={**fills, change.name: change.value})
    if isinstance(change, WidenColumn):
        widened = {name: value.cast(change.type) if name == change.name else value for name, value in fills.items()}
        return replace(changes, fills=widened)

    def new_name(name: str) -> str:
        return change.new_name if name == change.name else name

    return replace(
        changes,
        columns=tuple(replace(column, name=new_name(column.name)) for column in changes.columns),
        fills={new_name(name): value for name, value in fills.items()},
    )


def _in_types_of(schema: TargetSchema, columns: tuple[TargetColumn, ...]) -> tuple[TargetColumn, ...]:
    fields = {field.name: field for field in schema}

    def in_type(column: TargetColumn) -> TargetColumn:
        field = fields.get(column.name)
        if field is None:
            return column
        return replace(column, type=replace(column.type, arrow=field.arrow or column.type.arrow, place=field.place))

    return tuple(map(in_type, columns))


def _renaming(piece: TableChanges, columns: tuple[TargetColumn, ...]) -> list[Renaming]:
    return renaming(piece.changes.column_names, piece.columns, columns, piece.fills)


def concatenated(tables: Sequence[pa.Table], *, copied: bool = True) -> pa.Table:
    """The changes of tables in order; a column that a table lacks is NULL there, or not unchanged.

    Args:
        copied: Whether the values are copied, so that each column has one chunk.
    """
    together = pa.concat_tables(tables, promote_options="default")
    return with_marks(together.combine_chunks() if copied else together)


@dataclass(slots=True)
class ChangeCollector:
    """The changes that have been decoded for one target so far.

    Attributes:
        subscribed: The target and what is published of it, by the last definition.
        columns: The replicated columns, by the last definition.
        key: Positions of the columns that identify a row, by the last definition.
    """

    subscribed: Subscribed
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[int, ...] = ()
    truncated: bool = False
    alterations: tuple[Alteration, ...] = ()
    lost: int = 0
    _parts: list[CommitPart] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Add changes under the definition in `columns`.

        They come after all others. Only changes of partitions of one root may come between each other's, if all find
        rows by the same columns.

        Args:
            table: As `TableChanges.changes`.

        Raises:
            NeedsResync: Partitions find rows by different columns, and their changes come by turns.
            TargetError: A function gets every change, and a column has two types that have none in common.
        """
        if self.subscribed.target.every_change:
            self._keep(table)
            return
        piece = self._changes(table)
        changed = not piece.inserts_only
        first_seq, last_seq = (pc.min_max(table["seq"]).as_py()[name] or 0 for name in ("min", "max"))
        taken = bool(self._parts) and self._parts[-1].takes(piece, changed=changed)
        committed_before = self._parts[:-1] if taken else self._parts
        if len(table) and first_seq < max((part.last_seq for part in committed_before), default=0):
            target = self.subscribed.target
            raise NeedsResync(
                f'partitions of table "{target.qualified_name}" have different replica identities, '
                "and their changes come by turns",
                (target.namespace, target.name),
                hint="give all partitions the same replica identity",
            )
        if taken:
            self._parts[-1].add(piece, last_seq, changed=changed)
            return
        self._parts.append(CommitPart([piece], changed, last_seq))

    def _keep(self, table: pa.Table) -> None:
        """Add changes where every change is kept: one part has all, because their positions order them."""
        piece = self._changes(table)
        types = {column.name: column.type for column in piece.columns}
        for column in self._parts[-1].columns if self._parts else ():
            later = types.get(column.name, column.type)
            if not holds(later.arrow, column.type.arrow):
                raise TargetError(
                    f'column "{column.name}" of table "{piece.target.qualified_name}" changes its type from '
                    f"{sql_type(column.type.arrow)} to {sql_type(later.arrow)} within one batch",
                    hint="no other change of the transaction may have the earlier type",
                )
        if self._parts:
            self._parts[-1].add(piece, 0, changed=False)
        else:
            self._parts.append(CommitPart([piece], changed=False, last_seq=0))

    def alter(self, changes: Sequence[Alteration]) -> None:
        """Note changes of the target's columns, and bring the earlier changes along."""
        self.alterations += tuple(changes)
        for part in self._parts:
            for change in changes:
                part.alter(change)

    def keep_truncate(self, seq: int, position: Mapping[str, pa.Array]) -> None:
        """Add a TRUNCATE as a change, where every change is kept.

        Args:
            seq: Its position in the batch: that of the row after it.
            position: The columns of its position in the stream.
        """
        fixed = {"seq": pa.array([seq]), "op": pa.array([TRUNCATE], pa.int16()), "old": pa.array([NO_OLD], pa.int16())}
        if not self.columns:  # a root that the stream does not define
            fields = self.subscribed.target.schema
            self.columns = tuple(unpublished_column(field, field.arrow) for field in fields if field.arrow)
        values = {f"new_{i}": pa.nulls(1, column.type.arrow) for i, column in enumerate(self.columns)}
        self._keep(pa.table({**fixed, **position, **values}))

    def truncate(self) -> None:
        """Drop the changes so far."""
        self._parts.clear()
        self.truncated = True
        self.lost = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of the changes in memory."""
        return sum(part.memory_bytes for part in self._parts)

    def spill(self, spill: Spill) -> None:
        """Write the changes in memory to files."""
        for part in self._parts:
            part.spill(spill)

    def changes(self) -> list[TableChanges]:
        """The changes of each part, joined; empty where there are none."""
        made = [part.joined(self.subscribed, altered_later=part is not self._parts[-1]) for part in self._parts]
        if not made and (self.truncated or self.alterations):
            made = [self._changes(_no_changes(self.columns))]
        if made:
            made[0].truncated, made[-1].alterations, made[-1].lost = self.truncated, self.alterations, self.lost
        return made

    def _changes(self, table: pa.Table) -> TableChanges:
        return TableChanges(self.subscribed.target, self.columns, self.key, table)


def _no_changes(columns: Sequence[TargetColumn]) -> pa.Table:
    fields = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()}
    fields |= {f"new_{i}": column.type.arrow for i, column in enumerate(columns)}
    return pa.schema(fields).empty_table()

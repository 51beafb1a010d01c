"""The changes of one commit: those under each definition of the table, joined by column name under the last one.

A new part begins where rows are found by other columns: another replica identity, or, without a key, another column.
The net effect cannot reach over that, so each part is a commit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from bridge.apply.batch.renaming import renamed, renaming
from bridge.apply.batch.table_changes import Staged, TableChanges
from bridge.apply.effects.events import with_marks
from bridge.apply.evolution.alterations import AddColumn, WidenColumn
from bridge.apply.target.target import unpublished_column

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.apply.batch.renaming import Renaming
    from bridge.apply.batch.subscribed import Subscribed
    from bridge.apply.batch.table_changes import Stage
    from bridge.apply.evolution.alterations import Alteration
    from bridge.apply.target.target import TargetColumn, TargetSchema


@dataclass(slots=True)
class CommitPart:
    """Changes whose rows are found by the same columns.

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
        """Whether more changes find rows by the same columns. INSERTs find no rows, and go with any key.

        Args:
            piece: The changes.
            changed: Whether there are others than INSERT among them.
        """
        if not self.changed and (piece.key or not changed):
            return True
        if self.changed and (piece.key or self.key):
            return _key_names(self) == _key_names(piece)
        names = {column.name for column in piece.columns}
        return all({column.name for column in one.columns} == names for one in self.pieces)

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
        return sum(piece.changes.nbytes for piece in self.pieces if not isinstance(piece.changes, Staged))

    def stage(self, stage: Stage) -> None:
        """Hand the changes in memory to the stage, those under one definition together."""
        kept: list[TableChanges] = []
        for _, group in groupby(self.pieces, lambda one: (one.columns, one.fills, isinstance(one.changes, Staged))):
            pieces = list(group)
            tables = [piece.changes for piece in pieces if not isinstance(piece.changes, Staged)]
            if not tables:
                kept += pieces
                continue
            table = concatenated(tables)
            staged = Staged(
                stage.put(table),
                table.column_names,
                inserts_only=all(piece.inserts_only for piece in pieces),
                needs_fold=any(piece.needs_fold for piece in pieces),
                key_changes=any(piece.key_changes for piece in pieces),
            )
            kept.append(replace(pieces[-1], changes=staged))
        self.pieces = kept

    def joined(self, subscribed: Subscribed, stage: Stage | None, *, altered_later: bool) -> TableChanges:
        """Join the changes of all definitions.

        A definition may lack a column that came later or was dropped. In its UPDATEs the column counts as unchanged; in
        its INSERTs it is NULL, or the constant that rows from before the column have. Where a key changes, a column
        that only the target has counts as unchanged, too: it moves with the row.

        Args:
            subscribed: Has the target with its columns as they are once the whole batch is applied.
            stage: Has the changes that have left memory.
            altered_later: Whether there are later definitions, which may have widened the target's columns.
        """
        last = self.pieces[-1]
        bag = self.changed and not self.key
        beside = self._columns_beside(subscribed.target.schema, () if bag else last.fills)
        columns = self.columns + beside
        if altered_later:
            columns = _in_types_of(subscribed.target.schema, columns)
        changes: pa.Table | Staged
        if stage is not None and any(isinstance(piece.changes, Staged) for piece in self.pieces):
            self.stage(stage)
            changes = _union(self.pieces, columns, stage)
        else:
            changes = concatenated([renamed(piece.changes, _renaming(piece, columns)) for piece in self.pieces])
        return replace(
            last,
            target=subscribed.target,
            columns=columns,
            changes=changes,
            filters=subscribed.filters,
            # filters look at none of the columns in `beside`
            published=None if last.published is None else last.published.union(column.name for column in beside),
            fills=last.fills if bag else {},
        )

    def _columns_beside(self, schema: TargetSchema, fills: Collection[str]) -> tuple[TargetColumn, ...]:
        """Columns of the target that the last definition lacks, and that have values here or must keep them."""
        found = {column.name: column for column in self.columns}
        defined = len(found)
        for piece in reversed(self.pieces):  # the last one has the widest types
            for column in piece.columns:
                if piece.published is None or column.name in piece.published:
                    found.setdefault(column.name, column)
        last = self.pieces[-1].target
        # a changelog's or history's UPDATEs say of each column that they leave as it was; a handler has no such columns
        keyed = last.mode != "handler" if last.every_change else any(piece.key_changes for piece in self.pieces)
        for field in schema:
            if field.arrow is not None and (keyed or field.name in fills):
                found.setdefault(field.name, unpublished_column(field, field.arrow))
        return tuple(found.values())[defined:]


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
        published=None if changes.published is None else frozenset(map(new_name, changes.published)),
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


def _union(pieces: Sequence[TableChanges], columns: tuple[TargetColumn, ...], stage: Stage) -> Staged:
    """Join changes that are staged, all of them."""
    staged = [piece.changes for piece in pieces if isinstance(piece.changes, Staged)]
    renamings = [_renaming(piece, columns) for piece in pieces]
    return Staged(
        stage.union([(changes.frame, names) for changes, names in zip(staged, renamings, strict=True)]),
        list(dict.fromkeys(name.name for names in renamings for name in names)),
        inserts_only=all(changes.inserts_only for changes in staged),
        needs_fold=any(
            changes.needs_fold or (changes.key_changes and any(name.keeps for name in names))
            for changes, names in zip(staged, renamings, strict=True)
        ),
        key_changes=any(changes.key_changes for changes in staged),
    )


def _renaming(piece: TableChanges, columns: tuple[TargetColumn, ...]) -> list[Renaming]:
    return renaming(piece.changes.column_names, piece.columns, columns, piece.fills)


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """The changes of tables in order; a column that a table lacks is NULL there, or not unchanged."""
    return with_marks(pa.concat_tables(tables, promote_options="default").combine_chunks())

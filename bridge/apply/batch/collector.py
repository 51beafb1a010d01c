"""Collects the changes of a batch to one target as they are decoded, also while the table's definition changes.

The changes under one definition are a piece. Pieces whose rows are found by the same columns are a part, and are joined
by column name under its last definition. A new part begins where rows are found by other columns: another replica
identity, or, without a key, another column. The net effect cannot reach over that, so each part is a commit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.batch.renaming import renamed, renaming
from bridge.apply.batch.table_changes import Staged, TableChanges, inserts_only, key_changes, needs_fold
from bridge.apply.evolution.alterations import AddColumn, WidenColumn
from bridge.apply.target.target import TargetColumn
from bridge.errors import TargetError
from protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.apply.batch.renaming import Renaming
    from bridge.apply.batch.subscribed import Subscribed
    from bridge.apply.evolution.alterations import Alteration


class Stage(Protocol):
    """Holds changes outside of Python's memory."""

    def put(self, table: pa.Table) -> Any:
        """Store rows; returns a DataFrame of them that does not need `table` any more."""

    def union(self, pieces: Sequence[tuple[Any, list[Renaming]]]) -> Any:
        """One DataFrame of all pieces, the columns of each renamed."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Changes under one definition of the relation, in `table`; or in `staged`, once they have left memory.

    Attributes:
        published: Names of the columns that the target gets.
        key_changes: Whether there are UPDATEs of the key.
        fills: Constants of columns that were added later, which these rows have had since.
    """

    columns: tuple[TargetColumn, ...]
    column_names: list[str]
    inserts_only: bool
    needs_fold: bool
    table: pa.Table | None
    staged: Any = None
    published: frozenset[str] | None = None
    key_changes: bool = False
    fills: tuple[tuple[str, pa.Scalar], ...] = ()

    def altered(self, change: Alteration) -> _Piece:
        """The same piece after a change of the target's columns."""
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
class _Part:
    """Pieces whose rows are found by the same columns.

    Attributes:
        pieces: At least one.
        key: Positions of the columns that identify a row, by the last piece's definition; empty: all columns do.
        changed: Whether there are changes other than INSERT.
        last_seq: Position of its last change in the batch.
    """

    pieces: list[_Piece]
    key: tuple[int, ...]
    changed: bool
    last_seq: int

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        """The last piece's."""
        return self.pieces[-1].columns

    def takes(self, piece: _Piece, key: tuple[int, ...]) -> bool:
        """Whether a piece's rows are found by the same columns. INSERTs find no rows, and go with any key."""
        if not self.changed and (key or piece.inserts_only):
            return True
        if self.changed and (key or self.key):
            return _key_names(self.columns, self.key) == _key_names(piece.columns, key)
        every = {column.name for column in piece.columns}
        return all({column.name for column in one.columns} == every for one in self.pieces)

    def stage(self, stage: Stage) -> None:
        """Hand the changes in memory to the stage, those under one definition together."""
        kept: list[_Piece] = []
        for (columns, _, staged), group in groupby(
            self.pieces, lambda piece: (piece.columns, piece.fills, piece.table is None)
        ):
            pieces = list(group)
            if staged:
                kept += pieces
                continue
            table = _joined([piece.table for piece in pieces])
            kept.append(
                replace(
                    pieces[-1],
                    columns=columns,
                    column_names=table.column_names,
                    inserts_only=all(piece.inserts_only for piece in pieces),
                    needs_fold=any(piece.needs_fold for piece in pieces),
                    table=None,
                    staged=stage.put(table),
                    key_changes=any(piece.key_changes for piece in pieces),
                )
            )
        self.pieces = kept


def _key_names(columns: tuple[TargetColumn, ...], key: tuple[int, ...]) -> frozenset[str]:
    return frozenset(columns[k].name for k in key)


@dataclass(slots=True)
class ChangeCollector:
    """The changes that have been decoded for one target so far.

    Attributes:
        columns: The replicated columns by the last definition.
        key: Positions of the columns that identify a row, by the last definition.
        truncated: The target was emptied before these changes.
        alterations: Changes of the target's columns that come before the rows.
        lost: As in `TableChanges`.
    """

    subscribed: Subscribed
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[int, ...] = ()
    truncated: bool = False
    alterations: tuple[Alteration, ...] = ()
    lost: int = 0
    _parts: list[_Part] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Add changes under the definition in `columns`.

        They come after all others. Only changes of partitions of one root may come between each other's, if all find
        rows by the same columns.

        Raises:
            TargetError: Partitions find rows by different columns, and their changes come by turns.
        """
        piece = _Piece(
            self.columns,
            table.column_names,
            inserts_only(table),
            needs_fold(table, self.key),
            table,
            published=self.subscribed.columns,
            key_changes=key_changes(table, self.key),
        )
        changed = not piece.inserts_only
        first_seq, last_seq = (pc.min_max(table["seq"]).as_py()[name] or 0 for name in ("min", "max"))
        if self._parts and self._parts[-1].takes(piece, self.key):
            last = self._parts[-1]
            last.pieces.append(piece)
            last.key, last.changed, last.last_seq = self.key, last.changed or changed, max(last.last_seq, last_seq)
            return
        if len(table) and first_seq < max((part.last_seq for part in self._parts), default=0):
            raise TargetError(
                f'partitions of table "{self.subscribed.target.qualified_name}" have different replica identities, '
                "and their changes come by turns",
                hint="give all partitions the same replica identity",
            )
        self._parts.append(_Part([piece], self.key, changed, last_seq))

    def alter(self, changes: Sequence[Alteration]) -> None:
        """Note changes of the target's columns, and bring the earlier changes along."""
        self.alterations += tuple(changes)
        for part in self._parts if changes else ():
            for change in changes:
                part.pieces = [piece.altered(change) for piece in part.pieces]

    def truncate(self) -> None:
        """Drop the changes so far."""
        self._parts.clear()
        self.truncated = True
        self.lost = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of the changes in memory."""
        tables = (piece.table for part in self._parts for piece in part.pieces)
        return sum(table.nbytes for table in tables if table is not None)

    def stage(self, stage: Stage) -> None:
        """Hand the changes in memory to the stage, those under one definition together."""
        for part in self._parts:
            part.stage(stage)

    def changes(self, stage: Stage | None = None) -> list[TableChanges]:
        """The changes of each part, joined by column name; empty where there are none.

        A piece may lack a column that came later or was dropped. In its UPDATEs the column counts as unchanged; in its
        INSERTs it is NULL, or the constant that rows from before the column have. Where a key changes, a column that
        only the target has counts as unchanged, too: it moves with the row.
        """
        made = [self._changes(part, stage, last=part is self._parts[-1]) for part in self._parts]
        if not made and (self.truncated or self.alterations):
            nothing = _no_changes(self.columns)
            made = [TableChanges(self.subscribed.target, self.columns, self.key, nothing)]
            made[0].filters, made[0].published = self.subscribed.filters, self.subscribed.columns
        if made:
            made[0].truncated, made[-1].alterations, made[-1].lost = self.truncated, self.alterations, self.lost
        return made

    def _changes(self, part: _Part, stage: Stage | None, *, last: bool) -> TableChanges:
        columns = self.columns if last else part.columns
        published = self.subscribed.columns if last else part.pieces[-1].published
        fills = dict(part.pieces[-1].fills)
        bag = part.changed and not part.key
        others = tuple(self._columns_beside(part, columns, () if bag else fills))
        columns = columns + others if last else self._as_in_target(columns + others)
        changes: pa.Table | Staged
        if stage is not None and any(piece.table is None for piece in part.pieces):
            part.stage(stage)
            changes = _staged(part.pieces, columns, stage)
        else:
            tables = [renamed(piece.table, _renaming(piece, columns)) for piece in part.pieces]
            changes = _joined(tables)
        return TableChanges(
            self.subscribed.target,
            columns,
            self.key if last else part.key,
            changes,
            filters=self.subscribed.filters,
            # no column of `others` is there for the filters only
            published=None if published is None else published.union(column.name for column in others),
            fills=fills if bag else {},
        )

    def _as_in_target(self, columns: tuple[TargetColumn, ...]) -> tuple[TargetColumn, ...]:
        """Columns in the types that they have once all is applied: a later definition may have widened them."""
        types = {field.name: field.arrow for field in self.subscribed.target.schema}
        return tuple(
            replace(column, type=replace(column.type, arrow=types.get(column.name) or column.type.arrow))
            for column in columns
        )

    def _columns_beside(
        self, part: _Part, columns: tuple[TargetColumn, ...], fills: Collection[str]
    ) -> list[TargetColumn]:
        """Columns of the target that a part's last definition lacks, and that have values here or must keep them."""
        found = {column.name: column for column in columns}
        defined = len(found)
        for piece in reversed(part.pieces):  # the last one has the widest types
            for column in piece.columns:
                if piece.published is None or column.name in piece.published:
                    found.setdefault(column.name, column)
        keyed = any(piece.key_changes for piece in part.pieces)
        for name, arrow, _ in self.subscribed.target.schema:
            if arrow is not None and (keyed or name in fills):
                found.setdefault(name, TargetColumn(name, ColumnType(0, -1, arrow, binary=False, kind=Kind.OPAQUE)))
        return list(found.values())[defined:]


def _staged(pieces: Sequence[_Piece], columns: tuple[TargetColumn, ...], stage: Stage) -> Staged:
    renamings = [_renaming(piece, columns) for piece in pieces]
    together = [(piece.staged, names) for piece, names in zip(pieces, renamings, strict=True)]
    return Staged(
        stage.union(together),
        list(dict.fromkeys(name.name for names in renamings for name in names)),
        all(piece.inserts_only for piece in pieces),
        any(
            piece.needs_fold or (piece.key_changes and any(name.keeps for name in names))
            for piece, names in zip(pieces, renamings, strict=True)
        ),
    )


def _renaming(piece: _Piece, columns: tuple[TargetColumn, ...]) -> list[Renaming]:
    return renaming(piece.column_names, piece.columns, columns, dict(piece.fills))


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    changes = pa.concat_tables(tables, promote_options="default").combine_chunks()
    for index, name in enumerate(changes.column_names):
        if name.startswith("unchanged_"):
            changes = changes.set_column(index, name, pc.fill_null(changes[name], fill_value=False))
    return changes


def _no_changes(columns: Sequence[TargetColumn]) -> pa.Table:
    fields = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()}
    fields |= {f"new_{i}": column.type.arrow for i, column in enumerate(columns)}
    return pa.schema(fields).empty_table()

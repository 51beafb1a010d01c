"""What a batch has for one target, as it is decoded: pieces under one definition each, in parts that find rows alike.

Pieces come together by column name under their part's last definition. A part ends where rows are found by other
columns than before: another replica identity, or, without a key, another column. What it holds cannot be folded with
what follows, so each part is a commit of its own, in order. No Spark in here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.batch.renaming import renamed, renaming
from bridge.apply.batch.table_changes import Staged, TableChanges, inserts_only, key_changes, needs_fold
from bridge.apply.evolution.plan import AddColumn, WidenColumn
from bridge.apply.target.target import TargetColumn
from bridge.errors import TargetError
from protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.apply.batch.renaming import Renaming
    from bridge.apply.batch.subscribed import Subscribed
    from bridge.apply.evolution.plan import Change


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
    needs_fold: bool
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
class _Part:
    """Pieces whose rows are found by the same columns.

    Attributes:
        pieces: At least one.
        key: Positions of the columns that identify a row, by the last piece's definition; none: all columns do.
        changed: There are changes other than INSERT.
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
        """Whether a piece's rows are found by the same columns; INSERTs look for none, and go with any key."""
        if not self.changed and (key or piece.inserts_only):
            return True
        if self.changed and (key or self.key):
            return _names(self.columns, self.key) == _names(piece.columns, key)
        every = {column.name for column in piece.columns}
        return all({column.name for column in one.columns} == every for one in self.pieces)

    def stage(self, stage: Stage) -> None:
        """Take what is in memory out of it; changes under one definition go together."""
        kept: list[_Piece] = []
        for (columns, _, staged), group in groupby(
            self.pieces, lambda piece: (piece.columns, piece.fills, piece.table is None)
        ):
            pieces = list(group)
            if staged:
                kept += pieces
                continue
            table = _together([piece.table for piece in pieces])
            only, moved = all(piece.inserts_only for piece in pieces), any(piece.needs_fold for piece in pieces)
            kept.append(
                replace(
                    pieces[-1],
                    columns=columns,
                    column_names=table.column_names,
                    inserts_only=only,
                    needs_fold=moved,
                    table=None,
                    staged=stage.put(table),
                    key_changes=any(piece.key_changes for piece in pieces),
                )
            )
        self.pieces = kept


def _names(columns: tuple[TargetColumn, ...], key: tuple[int, ...]) -> frozenset[str]:
    return frozenset(columns[k].name for k in key)


@dataclass(slots=True)
class ChangeCollector:
    """What has been decoded for one target so far.

    Attributes:
        columns: The replicated columns by the last definition.
        key: Positions of the columns that identify a row, by the last definition.
        truncated: The target was emptied before these changes.
        alterations: What became of the target's columns.
        lost: As in `TableChanges`.
    """

    subscribed: Subscribed
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[int, ...] = ()
    truncated: bool = False
    alterations: tuple[Change, ...] = ()
    lost: int = 0
    _parts: list[_Part] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Take changes that come after all others, under the definition in `columns`.

        Those of partitions that go to one target may lie between the others, where their rows are found alike.

        Raises:
            TargetError: They do, and are not.
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

    def alter(self, changes: Sequence[Change]) -> None:
        """The target's columns become others: what came before is brought along."""
        self.alterations += tuple(changes)
        for part in self._parts if changes else ():
            for change in changes:
                part.pieces = [piece.altered(change) for piece in part.pieces]

    def truncate(self) -> None:
        """What came before is void."""
        self._parts.clear()
        self.truncated = True
        self.lost = 0

    @property
    def memory_bytes(self) -> int:
        """What they hold in memory."""
        tables = (piece.table for part in self._parts for piece in part.pieces)
        return sum(table.nbytes for table in tables if table is not None)

    def stage(self, stage: Stage) -> None:
        """Take what is in memory out of it; changes under one definition go together."""
        for part in self._parts:
            part.stage(stage)

    def changes(self, stage: Stage | None = None) -> list[TableChanges]:
        """All of it, part by part, each brought together by column name; empty when there is nothing.

        A column that a piece has not, because it came later or was dropped, is like an unchanged value in its updates;
        in its inserts it is NULL, or the constant that rows from before the column have. Where a key changes, so is a
        column that only the target has: the row is moved with it.
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
        others = tuple(self._others(part, columns, () if bag else fills))
        columns = columns + others if last else self._as_in_target(columns + others)
        changes: pa.Table | Staged
        if stage is not None and any(piece.table is None for piece in part.pieces):
            part.stage(stage)
            changes = _staged(part.pieces, columns, stage)
        else:
            tables = [renamed(piece.table, _renaming(piece, columns)) for piece in part.pieces]
            changes = _together(tables)
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

    def _others(self, part: _Part, columns: tuple[TargetColumn, ...], fills: Collection[str]) -> list[TargetColumn]:
        """Columns of the target that are not in a part's definition, and that have values here, or must keep them."""
        found = {column.name: column for column in columns}
        mine = len(found)
        for piece in reversed(part.pieces):  # the last one has the widest types
            for column in piece.columns:
                if piece.published is None or column.name in piece.published:
                    found.setdefault(column.name, column)
        keyed = any(piece.key_changes for piece in part.pieces)
        for name, arrow, _ in self.subscribed.target.schema:
            if arrow is not None and (keyed or name in fills):
                found.setdefault(name, TargetColumn(name, ColumnType(0, -1, arrow, binary=False, kind=Kind.OPAQUE)))
        return list(found.values())[mine:]


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

"""Collects the changes of a batch to one target as they are decoded, also while the table's definition changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.batch.commit_part import CommitPart
from bridge.apply.batch.table_changes import TableChanges
from bridge.apply.effects.operations import NO_OLD, TRUNCATE
from bridge.apply.target.target import sql_type, unpublished_column
from bridge.apply.target.widening import holds
from bridge.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.apply.batch.subscribed import Subscribed
    from bridge.apply.batch.table_changes import Stage
    from bridge.apply.evolution.alterations import Alteration
    from bridge.apply.target.target import TargetColumn


@dataclass(slots=True)
class ChangeCollector:
    """The changes that have been decoded for one target so far.

    Attributes:
        subscribed: The target and what is published of it, by the last definition.
        columns: The replicated columns, and columns that only row filters look at, by the last definition.
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
    _parts: list[CommitPart] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        """Add changes under the definition in `columns`.

        They come after all others. Only changes of partitions of one root may come between each other's, if all find
        rows by the same columns.

        Args:
            table: As `TableChanges.changes`.

        Raises:
            TargetError: Partitions find rows by different columns, and their changes come by turns. Or, where every
                change is kept, a column has two types that have none in common.
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
            raise TargetError(
                f'partitions of table "{self.subscribed.target.qualified_name}" have different replica identities, '
                "and their changes come by turns",
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

    def stage(self, stage: Stage) -> None:
        """Hand the changes in memory to the stage."""
        for part in self._parts:
            part.stage(stage)

    def changes(self, stage: Stage | None = None) -> list[TableChanges]:
        """The changes of each part, joined; empty where there are none.

        Args:
            stage: Has the changes that have left memory.
        """
        made = [part.joined(self.subscribed, stage, altered_later=part is not self._parts[-1]) for part in self._parts]
        if not made and (self.truncated or self.alterations):
            made = [self._changes(_no_changes(self.columns))]
        if made:
            made[0].truncated, made[-1].alterations, made[-1].lost = self.truncated, self.alterations, self.lost
        return made

    def _changes(self, table: pa.Table) -> TableChanges:
        subscribed = self.subscribed
        return TableChanges(
            subscribed.target,
            self.columns,
            self.key,
            table,
            filters=subscribed.filters,
            published=subscribed.columns,
        )


def _no_changes(columns: Sequence[TargetColumn]) -> pa.Table:
    fields = {"seq": pa.int64(), "op": pa.int16(), "old": pa.int16()}
    fields |= {f"new_{i}": column.type.arrow for i, column in enumerate(columns)}
    return pa.schema(fields).empty_table()

"""The changes of one target in a batch that grows: as effects, or as they are where an effect is not to be had."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.batch.commit_part import concatenated
from bridge.apply.batch.table_changes import Staged
from bridge.apply.effects.net_effect import NetEffect, fold, net_effect, shape_of

if TYPE_CHECKING:
    from bridge.apply.batch.table_changes import TableChanges

_FEW_ROWS = 200_000
"""Effects are folded when there are twice as many as were left the last time, and these more."""


class GrowingTable:
    """The changes of one target.

    Args:
        changes: The first ones.
        rows: Their rows: effects, or changes.
        effects: Whether they are effects.

    Attributes:
        rows: How many rows it keeps.
        truncated: The target is emptied first.
    """

    def __init__(self, changes: TableChanges, rows: pa.Table, *, effects: bool) -> None:
        assert isinstance(changes.changes, pa.Table)  # noqa: S101 - `of` has looked
        self._no_changes = changes.changes.schema.empty_table()  # a slice would keep the rows in memory
        self._last = replace(changes, changes=self._no_changes)
        self._effects = effects
        self._parts = [rows]
        self._folded_rows = 0
        self._lost = changes.lost
        self.rows = len(rows)
        self.truncated = changes.truncated

    @classmethod
    def of(cls, changes: TableChanges) -> Self | None:
        """Begin with some changes; None if they have to be in a batch by themselves."""
        found = changes.changes
        if isinstance(found, Staged) or changes.alterations or changes.fills:
            return None
        if not changes.foldable:
            return cls(changes, found, effects=False)
        effect = net_effect(found, changes.key)
        return cls(changes, effect.table, effects=True) if effect.clear else None

    @property
    def memory_bytes(self) -> int:
        """Memory that the rows take."""
        return sum(part.nbytes for part in self._parts)

    def takes(self, later: GrowingTable) -> bool:
        """Whether later changes are under the same definition, so that they can be added."""
        one, other = self._last, later._last
        return (
            (one.target, one.columns, one.key, one.published)
            == (other.target, other.columns, other.key, other.published)
            and (one.filters is other.filters or not (one.filters or other.filters))
            and (self._effects == later._effects or later.truncated)
        )

    def add(self, later: GrowingTable) -> None:
        """Add later changes, which `takes` has accepted, without a TRUNCATE before them."""
        self._lost += later._lost
        if not self._effects:
            last_seq = pc.max(self._parts[-1]["seq"]).as_py() if self.rows else 0
            later._parts = [_later(part, last_seq + 1) for part in later._parts]
        self._parts += [part for part in later._parts if len(part)]
        self.rows += later.rows
        if self._effects and self.rows > 2 * self._folded_rows + _FEW_ROWS:
            self.compact()

    def compact(self) -> None:
        """Fold effects into one for each key."""
        if self._effects and len(self._parts) > 1:
            self._parts = [fold(self._parts).table]
            self.rows = self._folded_rows = len(self._parts[0])
            pa.default_memory_pool().release_unused()  # it would keep as much again for the next fold

    def changes(self) -> TableChanges:
        """All changes, as one commit applies them."""
        made = replace(self._last, truncated=self.truncated, lost=self._lost)
        if not self._effects:
            return replace(made, changes=concatenated(self._parts))
        self.compact()
        (effects,) = self._parts  # one part is folded already: it needs no second fold
        return replace(made, changes=self._no_changes, effect=NetEffect(effects, shape_of(effects)))


def _later(changes: pa.Table, first_seq: int) -> pa.Table:
    """The same changes with their positions counted from `first_seq`."""
    index = changes.column_names.index("seq")
    return changes.set_column(index, "seq", pc.add(changes["seq"], pa.scalar(first_seq, pa.int64())))

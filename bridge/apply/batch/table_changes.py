"""The changes of a batch to one target, as one Arrow table.

Columns carry positions, not names, so that no column's name can collide with the bridge's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.effects.operations import INSERT, KEY_TUPLE, OLD_TUPLE, UPDATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.apply.batch.row_filters import RowFilters
    from bridge.apply.evolution.plan import Change
    from bridge.apply.target.target import Target, TargetColumn


@dataclass(frozen=True, slots=True)
class Staged:
    """Changes that were handed to Spark ahead of the batch's end, because memory would not hold all of them.

    Attributes:
        frame: The DataFrame, in the columns of `TableChanges.changes`.
        column_names: Its columns.
        inserts_only: There is nothing but new rows.
        needs_fold: A key change carries an unchanged TOAST value.
    """

    frame: Any
    column_names: list[str]
    inserts_only: bool
    needs_fold: bool


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
            as in `bridge.apply.delta.unrepresentable`. Or all that as `Staged`.
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
    def needs_fold(self) -> bool:
        """A key change carries an unchanged TOAST value."""
        return self.changes.needs_fold if isinstance(self.changes, Staged) else needs_fold(self.changes, self.key)

    @property
    def empty(self) -> bool:
        """There are no changes; what is staged is never empty."""
        return not isinstance(self.changes, Staged) and not len(self.changes)


def inserts_only(changes: pa.Table) -> bool:
    """There is nothing but new rows."""
    return bool((changes["op"].to_numpy() == INSERT).all())


def needs_fold(changes: pa.Table, key: Sequence[int] = ()) -> bool:
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

"""A batch that grows while it cannot be applied yet: the batches that are formed after it join it.

Of joined batches only the net effect is kept, so memory follows the rows that are touched, not the changes. A joined
batch is applied as a whole or not at all. It cannot be divided: for that, its transactions are received again.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.batch.collector import concatenated
from pgbridge.bridge.effects.net_effect import NetEffect, fold, shape_of
from pgbridge.bridge.evolution.tracker import TrackedState
from pgbridge.protocol.bulk.message_array import ChunkedMessages
from pgbridge.protocol.codec.messages import LogicalMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pgbridge.bridge.batch.batch import Batch, TableChanges
    from pgbridge.protocol.stream.transactions import Events, Transaction


_FEW_ROWS = 200_000
"""Effects are folded when there are twice as many as were left the last time, and these more."""


class GrowingTable:
    """The changes of one target: `rows` are effects, or changes as they are where an effect is not to be had."""

    def __init__(self, changes: TableChanges, rows: pa.Table, *, effects: bool) -> None:
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
        rows = changes.changes
        if changes.spill is not None or changes.alterations or changes.fills:
            return None
        if not changes.foldable:
            return cls(changes, rows, effects=False)
        effect = changes.net_effect()
        return cls(changes, effect.table, effects=True) if effect.clear else None

    @property
    def memory_bytes(self) -> int:
        """Memory that the rows take."""
        return sum(part.nbytes for part in self._parts)

    def takes(self, later: GrowingTable) -> bool:
        """Whether later changes are under the same definition, so that they can be added."""
        own, other = self._last, later._last
        return (own.target, own.columns, own.key) == (other.target, other.columns, other.key) and (
            self._effects == later._effects or later.truncated
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


class GrowingBatch:
    """A batch, and those that have joined it."""

    def __init__(self, first: Batch) -> None:
        self._batches = [first]
        self._tables: dict[str, GrowingTable] | None = None
        self._joinable = _is_joinable(first)
        self._messages_bytes = 0

    @property
    def rows(self) -> int:
        """The rows that it keeps: effects, and changes that have no effect yet."""
        if self._tables is None:
            return self._batches[0].rows
        return sum(table.rows for table in self._tables.values())

    @property
    def memory_bytes(self) -> int:
        """Memory that these rows, and logical messages, take; 0 as long as no batch has joined."""
        return self._messages_bytes + sum(table.memory_bytes for table in (self._tables or {}).values())

    @property
    def whole(self) -> bool:
        """Whether it still has its transactions: no other batch has joined the first."""
        return self._tables is None

    @property
    def last(self) -> Batch:
        """The last batch that joined, or the first one. The rows of joined batches are not in it any more."""
        return self._batches[-1]

    def join(self, batch: Batch) -> bool:
        """Take a batch that follows immediately; returns False, and is as before, if that one has to be by itself."""
        if not batch.transactions:  # nothing has come but the recorded end
            self._batches[-1].end_lsn = batch.end_lsn
            return True
        if not (self._joinable and _is_joinable(batch)):
            return False
        tables = self._tables
        if tables is None:
            tables = _growing(self._batches[0].tables)
            if tables is None:
                self._joinable = False
                return False
        more = _growing(batch.tables)
        if more is None or not all(tables[path].takes(later) for path, later in more.items() if path in tables):
            return False
        for path, later in more.items():
            if path in tables and not later.truncated:
                tables[path].add(later)
            else:
                tables[path] = later  # a TRUNCATE voids what came before it
        if self._tables is None:
            self._tables = tables
            self._batches = [self._without_rows(self._batches[0])]
        # only the first one says what was known before the batch
        after = replace(batch, relations_before=(), columns_before=TrackedState(), names_before={})
        self._batches.append(self._without_rows(after))
        return True

    def _without_rows(self, batch: Batch) -> Batch:
        """A batch without its changes and its transactions' rows."""
        self._messages_bytes += sum(transaction.content_bytes for transaction in batch.with_messages)
        messages = [_without_changes(transaction) for transaction in batch.with_messages]
        return replace(batch, tables=[], items=(), with_messages=messages)

    def compact(self) -> None:
        """Fold the effects of each table's rows into one."""
        for table in (self._tables or {}).values():
            table.compact()

    def formed(self) -> Batch:
        """The whole batch; without `items` if others have joined the first."""
        if self._tables is None:
            return self._batches[0]
        return _joined(self._batches, [table.changes() for table in self._tables.values()])


def _is_joinable(batch: Batch) -> bool:
    """Whether a batch may join another at all."""
    return batch.error is None and len({changes.target.path for changes in batch.tables}) == len(batch.tables)


def _growing(tables: Iterable[TableChanges]) -> dict[str, GrowingTable] | None:
    """The changes by path; None if those of a table have to be in a batch by themselves."""
    growing = {}
    for changes in tables:
        table = GrowingTable.of(changes)
        if table is None:
            return None
        growing[changes.target.path] = table
    return growing


def _without_changes(transaction: Transaction) -> Transaction:
    """A transaction with its logical messages only. Its spool file, if it has one, still has all."""
    events: Events = [(0, event) for _, event in transaction.events if isinstance(event, LogicalMessage)]
    return replace(transaction, rows=ChunkedMessages(), events=events)


def _joined(batches: list[Batch], tables: list[TableChanges]) -> Batch:
    first, last = batches[0], batches[-1]
    relids: dict[int, tuple[str, str]] = {}
    for batch in batches:
        for relid, name in batch.relids.items():
            relids.pop(relid, None)  # the last one to have a name is the last one here, too
            relids[relid] = name
    return replace(
        first,
        end_lsn=last.end_lsn,
        finish_lsn=last.finish_lsn,
        xid=None,
        transactions=sum(batch.transactions for batch in batches),
        rows=sum(batch.rows for batch in batches),
        tables=tables,
        with_messages=list(chain.from_iterable(batch.with_messages for batch in batches)),
        prepared=list(chain.from_iterable(batch.prepared for batch in batches)),
        ended=list(chain.from_iterable(batch.ended for batch in batches)),
        spools=list(chain.from_iterable(batch.spools for batch in batches)),
        columns={relid: row for batch in batches for relid, row in batch.columns.items()},
        relids=relids,
        items=(),
        commit_time_us=last.commit_time_us,
    )

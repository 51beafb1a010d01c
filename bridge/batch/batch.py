"""A batch: whole transactions, and the changes that they come to, one table of changes for each target."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.batch import change_schema, routes, row_filters
from pgbridge.bridge.effects.events import INSERT, KEY_TUPLE, OLD_TUPLE, UPDATE
from pgbridge.bridge.effects.net_effect import NetEffect, net_effect
from pgbridge.bridge.evolution.tracker import TrackedState
from pgbridge.bridge.track.spool import LargestRow, SpoolFile, largest_row
from pgbridge.protocol.codec.messages import LogicalMessage, Relation
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Ending, Item, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pgbridge.bridge.catalog.catalog_rows import ColumnRow
    from pgbridge.bridge.effects.divided import Spill
    from pgbridge.bridge.evolution.alterations import Alteration
    from pgbridge.bridge.runtime.errors import ApplyError
    from pgbridge.bridge.targets.target import Target, TargetColumn


@dataclass(slots=True)
class Batch:
    """Whole transactions in commit order, ready to apply.

    Attributes:
        start_lsn: The origin's LSN before the batch.
        end_lsn: The origin's LSN after it: the last transaction's end.
        finish_lsn: The last transaction's commit LSN, for errors.
        xid: The transaction's, where there is only one.
        rows: How many row messages were received, for a target or not.
        tables: The changes of each target, in order. A target has several entries where the columns change by which its
            rows are found.
        with_messages: Transactions with logical messages (see `messages`).
        prepared: Transactions that were prepared in the batch, which does not have their changes.
        ended: Prepared transactions that were committed or rolled back in the batch.
        spools: Spool files that can go once the batch is durable.
        items: The transactions that it was formed from; empty if other batches have joined it.
        columns: What is known of published tables' columns after it, by relid, where it differs from before.
        names_before: The names of the subscription's tables before it, by relid.
        relids: The names of tables that have another relid after it, by that relid.
        followed: The definitions that its changes came under, and the tables that they went to, by relid.
        emptied: The tables that each TRUNCATE is routed to, in order.
        error: Why its changes could not be decoded; such a batch has no changes.
        commit_time_us: The last transaction's: microseconds since 2000-01-01 UTC by the server's clock.
        first_commit_time_us: The first transaction's.
    """

    start_lsn: Lsn
    end_lsn: Lsn
    finish_lsn: Lsn
    xid: int | None
    transactions: int
    rows: int
    tables: list[TableChanges]
    with_messages: list[Transaction] = field(default_factory=list)
    prepared: list[Transaction] = field(default_factory=list)
    ended: list[Transaction] = field(default_factory=list)
    spools: list[SpoolFile] = field(default_factory=list)
    items: Sequence[Item] = ()
    relations_before: tuple[Relation, ...] = ()
    columns_before: TrackedState = field(default_factory=TrackedState)
    columns: Mapping[int, tuple[ColumnRow, ...]] = field(default_factory=dict)
    names_before: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    relids: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    followed: dict[int, list[routes.Followed]] = field(default_factory=dict)
    emptied: list[list[routes.Subscribed]] = field(default_factory=list)
    error: ApplyError | None = None
    commit_time_us: int = 0
    first_commit_time_us: int = 0

    @property
    def divisible(self) -> bool:
        """Whether it can be divided: it has several transactions, and they are still there."""
        return self.transactions > 1 and bool(self.items)

    @classmethod
    def of(cls, transactions: Sequence[Item], start_lsn: Lsn) -> Self:
        """A batch of these transactions, which are in the order of their ends, without their changes."""
        single = [transaction for transaction in transactions if isinstance(transaction, Transaction)]
        number = sum(map(len, transactions))
        finish_lsn, xid, last_end_lsn, time_us, first_us = start_lsn, None, start_lsn, 0, 0
        if transactions:
            first, last = transactions[0], transactions[-1]
            last_end_lsn, finish_lsn = last.end_lsn, Lsn(int(last.commit_lsns[-1]))
            xid, time_us, first_us = int(last.xids[-1]), int(last.commit_times_us[-1]), int(first.commit_times_us[0])
        return cls(
            start_lsn,
            last_end_lsn,
            finish_lsn,
            xid if number == 1 else None,
            number,
            sum(item.n_rows for item in transactions),
            [],
            prepared=[t for t in single if t.ending is Ending.PREPARE],
            ended=[t for t in single if t.gid is not None and t.ending is not Ending.PREPARE],
            spools=[t.spooled for t in single if isinstance(t.spooled, SpoolFile) and t.ending is not Ending.PREPARE],
            items=transactions,
            commit_time_us=time_us,
            first_commit_time_us=first_us,
        )

    @property
    def largest_row(self) -> LargestRow:
        """The largest row message, as far as the transactions are still there."""
        spooled = [item.spooled.largest_row for item in self.items if isinstance(item.spooled, SpoolFile)]
        here = (largest_row(item.rows, in_stream=item.in_stream) for item in self.items)
        return max([*spooled, *here], default=(0, 0))

    @property
    def unclear(self) -> bool:
        """Whether the net effect of a joined batch does not say it all, so that its changes are needed."""
        return any(changes.effect is not None and not changes.effect.clear for changes in self.tables)

    def messages(self) -> Iterator[tuple[Transaction, LogicalMessage]]:
        """Logical messages in order, each with the transaction it came in.

        Messages of spool files are read one at a time; a StateError tells that one cannot be read. The files stay until
        the batch is durable.
        """
        for transaction in self.with_messages:
            here = (event for _, event in transaction.events if isinstance(event, LogicalMessage))
            file = transaction.spooled
            spooled = file.messages(in_stream=transaction.in_stream) if isinstance(file, SpoolFile) else ()
            for message in chain(spooled, here):
                if message.xid not in transaction.aborted:
                    yield transaction, message

    @property
    def alters(self) -> bool:
        """Whether it changes columns of its targets, or commits to one of them several times.

        After a crash such a batch is taken back before it is formed again: the publisher's catalog, by which it was
        planned, may have changed since.
        """
        return any(changes.alterations for changes in self.tables) or len(self.commit_rounds()) > 1

    def commit_rounds(self) -> list[list[TableChanges]]:
        """The changes in rounds with at most one commit of a table in each; the last round has every table's last."""
        by_path: dict[str, list[TableChanges]] = {}
        for changes in self.tables:
            by_path.setdefault(changes.target.path, []).append(changes)
        earlier = zip_longest(*(parts[:-1] for parts in by_path.values()))
        return [*([c for c in nth if c is not None] for nth in earlier), [parts[-1] for parts in by_path.values()]]

    @property
    def committed(self) -> bool:
        """Whether it is one transaction that committed: not one that was prepared, or rolled back after that.

        A message outside of transactions is none, although its LSN may be that of the COMMIT behind it.
        """
        return bool(self.xid) and not self.prepared and all(t.ending is Ending.COMMIT for t in self.ended)


# --- The changes of a batch to one target, as one Arrow table ---------------------------------------------------------
# Columns carry positions, not names, so that no column's name can collide with the bridge's own.


@dataclass(slots=True)
class TableChanges:
    """The changes of a batch to one target that one commit applies, in order.

    While they are collected: the changes under one definition of the published table.

    Attributes:
        columns: The replicated columns. Positions count them from 0.
        key: Positions of the columns that identify a row; empty where none do.
        changes: Arrow table: `seq` int64 (position in the batch, ascending), `op` int16 (`INSERT`, `UPDATE`,
            `DELETE`), `old` int16 (`NO_OLD`, `KEY_TUPLE`, `OLD_TUPLE`), `new_<i>` and `old_<i>` in the column's
            type (NULL where the message has no such tuple), and `unchanged_<i>` bool for columns with at least one
            unchanged TOAST value that the stream does not carry. Where every change is kept also the columns of
            `bridge.batch.change_schema.POSITION`, `old_<i>` of all columns, and rows with `op` `TRUNCATE`. All of them
            pass the row filters.
        truncated: Whether the target is emptied first.
        alterations: Changes of the target's columns that come first; `target` has the columns after them.
        lost: In how many rows a value is NULL that the stream does not carry, because an UPDATE became an INSERT.
        fills: Constants of columns that were added after these changes: new rows have them. Empty where `changes` has
            those columns.
        effect: In a joined batch, the net effect of the changes on their keys; `changes` is empty then.
        spill: Where `changes` are, if memory shall not hold them; None if it does.
    """

    target: Target
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    changes: pa.Table
    truncated: bool = False
    alterations: tuple[Alteration, ...] = ()
    lost: int = 0
    fills: Mapping[str, pa.Scalar] = field(default_factory=dict)
    effect: NetEffect | None = None
    spill: Spill | None = None

    @property
    def foldable(self) -> bool:
        """Whether a net effect on each key is what counts."""
        return bool(self.key) and not self.target.every_change

    def net_effect(self) -> NetEffect:
        """The net effect on each key; there are changes, and they are `foldable`."""
        if self.effect is not None:
            return self.effect
        if self.spill is not None:
            return self.spill.net_effect(self.changes, self.key)
        return net_effect(self.changes, self.key)

    @property
    def inserts_only(self) -> bool:
        """Whether all changes are INSERTs."""
        if self.effect is not None:
            return self.effect.shape.begins_only
        return inserts_only(self.changes)

    @property
    def changes_keys(self) -> bool:
        """Whether there are key changes."""
        return _has_old_rows(self.changes) and bool(pc.any(_keyed(self.changes, self.key)).as_py())

    @property
    def needs_fold(self) -> bool:
        """Whether a key change carries an unchanged TOAST value."""
        return needs_fold(self.changes, self.key)

    @property
    def commits(self) -> bool:
        """Whether applying them makes a commit: more than the table's columns may change."""
        return self.truncated or not self.empty

    @property
    def empty(self) -> bool:
        """Whether there are no changes."""
        if self.effect is not None:
            return not len(self.effect.table)
        return not len(self.changes)


def inserts_only(changes: pa.Table) -> bool:
    """Whether all changes are INSERTs."""
    return bool((changes["op"].to_numpy() == INSERT).all())


def needs_fold(changes: pa.Table, key: Sequence[int] = ()) -> bool:
    """Whether a key change carries an unchanged TOAST value, or leaves a column that the stream lacks as it was."""
    marks = [changes[name] for name in changes.column_names if name.startswith("unchanged_")]
    if not marks or not _has_old_rows(changes):
        return False
    keyed = _keyed(changes, key)
    return any(pc.any(pc.and_(keyed, mark)).as_py() for mark in marks)


def _has_old_rows(changes: pa.Table) -> bool:
    """Whether there are old tuples. Mostly there are none, and this is a quick look."""
    return bool(changes["old"].to_numpy().any())


def _keyed(changes: pa.Table, key: Sequence[int]) -> pa.ChunkedArray:
    """Mark the UPDATEs of the key: those with a key tuple, and those whose whole old row has another key."""
    updates = pc.equal(changes["op"], UPDATE)
    keyed = pc.equal(changes["old"], KEY_TUPLE)
    whole = pc.equal(changes["old"], OLD_TUPLE)
    for k in key if {f"old_{k}" for k in key} <= set(changes.column_names) else ():
        old, new = changes[f"old_{k}"], changes[f"new_{k}"]
        nested = pa.types.is_nested(old.type)  # Arrow does not compare lists
        keyed = pc.or_(keyed, whole if nested else pc.and_(whole, pc.fill_null(pc.not_equal(old, new), False)))
    return pc.and_(updates, keyed)


class Renaming(NamedTuple):
    """How a column of changes comes from one under an earlier definition.

    Attributes:
        name: The column under the last definition.
        source: The column under the earlier definition; None where that lacks it.
        value: Its value where there is no source; None for NULL.
        widened: Whether the source has another type and is cast.
    """

    name: str
    source: str | None
    type: pa.DataType
    value: pa.Scalar | None = None
    widened: bool = False


def renaming(
    names: Sequence[str],
    columns: tuple[TargetColumn, ...],
    last: tuple[TargetColumn, ...],
    fills: Mapping[str, pa.Scalar] = MappingProxyType({}),
) -> list[Renaming]:
    """How the columns of changes come from those under an earlier definition.

    Without a source, `new_<i>` is its column's constant in `fills`, or NULL, and `unchanged_<i>` is true in UPDATEs.

    Args:
        names: The columns of the changes.
        columns: The table's columns under the earlier definition.
        last: The table's columns under the last definition.
        fills: Constants of columns that were added since.
    """
    positions = {column.name: i for i, column in enumerate(columns)}
    renamings = [Renaming(name, name, pa.int64() if name == "seq" else pa.int16()) for name in ("seq", "op", "old")]
    renamings += [Renaming(name, name, arrow) for name, arrow in change_schema.POSITION if name in names]
    for i, column in enumerate(last):
        here = positions.get(column.name)
        if here is None:
            value = fills.get(column.name)
            renamings += [
                Renaming(f"new_{i}", None, column.type.arrow, value),
                Renaming(f"unchanged_{i}", None, pa.bool_()),
            ]
            continue
        widened = not columns[here].type.arrow.equals(column.type.arrow)
        types = {"new": column.type.arrow, "old": column.type.arrow, "unchanged": pa.bool_()}
        types |= dict.fromkeys(row_filters.MARKS.values(), pa.string())
        renamings += [
            Renaming(f"{kind}_{i}", f"{kind}_{here}", type_, widened=kind in {"new", "old"} and widened)
            for kind, type_ in types.items()
            if f"{kind}_{here}" in names
        ]
    return renamings


def renamed(table: pa.Table, names: Sequence[Renaming]) -> pa.Table:
    """The changes with their columns under the last definition."""
    columns: dict[str, Any] = {}
    for name, source, arrow, value, widened in names:
        if source is not None:
            columns[name] = table[source].cast(arrow) if widened else table[source]
        elif name.startswith("unchanged_"):
            columns[name] = pc.equal(table["op"], UPDATE)
        elif value is not None:
            columns[name] = pa.repeat(value.cast(arrow), len(table))
        else:
            columns[name] = pa.nulls(len(table), arrow)
    return pa.table(columns)

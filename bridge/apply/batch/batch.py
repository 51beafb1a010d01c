"""A batch: whole transactions, and the changes that they come to, one table of changes for each target."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Self

from bridge.apply.evolution.tracker import TrackedState
from bridge.track.spool import LargestRow, SpoolFile, largest_row
from protocol.lsn import Lsn
from protocol.messages import LogicalMessage
from protocol.transactions import Ending, Transaction, TransactionRun, count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bridge.apply.batch.table_changes import TableChanges
    from bridge.errors import ApplyError
    from bridge.track.catalog_rows import ColumnRow
    from protocol.messages import Relation
    from protocol.transactions import Item


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
        number = count(transactions)
        finish_lsn, xid, last_end_lsn, time_us, first_us = start_lsn, None, start_lsn, 0, 0
        if transactions:
            last = transactions[-1]
            last_end_lsn = last.end_lsn
            finish_lsn = Lsn(int(last.commit_lsns[-1])) if isinstance(last, TransactionRun) else last.commit_lsn
            xid = int(last.xids[-1]) if isinstance(last, TransactionRun) else last.xid
            time_us = int(last.commit_times_us[-1]) if isinstance(last, TransactionRun) else last.commit_time_us
            first = transactions[0]
            first_us = int(first.commit_times_us[0]) if isinstance(first, TransactionRun) else first.commit_time_us
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
        files = [item.spooled for item in self.items if isinstance(item, Transaction)]
        spooled = [file.largest_row for file in files if isinstance(file, SpoolFile)]
        streamed = [isinstance(item, Transaction) and item.in_stream for item in self.items]
        here = (largest_row(item.rows, in_stream=flag) for item, flag in zip(self.items, streamed, strict=True))
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
        return [*([c for c in some if c is not None] for some in earlier), [parts[-1] for parts in by_path.values()]]

    @property
    def committed(self) -> bool:
        """Whether it is one transaction that committed: not one that was prepared, or rolled back after that."""
        return self.xid is not None and not self.prepared and all(t.ending is Ending.COMMIT for t in self.ended)

"""A batch: whole transactions, and the changes that they come to, one table of changes for each target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from bridge.apply.schemas import State
from bridge.track.spool import SpoolFile
from protocol.lsn import Lsn
from protocol.transactions import Ending, Transaction, TransactionRun, count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.apply.changes import TableChanges
    from bridge.errors import ApplyError
    from bridge.track.rows import ColumnRow
    from protocol.messages import LogicalMessage, Relation
    from protocol.transactions import Item


@dataclass(slots=True)
class Batch:
    """Whole transactions in commit order, ready to apply.

    Attributes:
        start_lsn: The origin's LSN before the batch.
        end_lsn: The origin's LSN after it: the last transaction's end.
        finish_lsn: The last transaction's commit LSN, for errors.
        xid: The transaction, when it is only one.
        transactions: How many.
        rows: Row messages received, whether or not they are for a target.
        tables: The changes, one entry a target.
        messages: Logical messages, each with the transaction it came in.
        prepared: Transactions that were prepared within the batch; their changes are not in it.
        ended: Prepared transactions that were committed or rolled back within the batch.
        spools: Files of changes that nobody needs any more once the batch is durable.
        items: What it was formed from.
        before: The relations that had been announced before it.
        schemas: What was known of columns before it.
        columns: What is known of published tables' columns after it, by relid, where that is something else.
        names: What the subscription's tables were called before it, by relid.
        relids: Of tables that have another relid after it, their names by that.
        error: Why its changes could not be decoded: then it has none.
    """

    start_lsn: Lsn
    end_lsn: Lsn
    finish_lsn: Lsn
    xid: int | None
    transactions: int
    rows: int
    tables: list[TableChanges]
    messages: list[tuple[Transaction, LogicalMessage]] = field(default_factory=list)
    prepared: list[Transaction] = field(default_factory=list)
    ended: list[Transaction] = field(default_factory=list)
    spools: list[SpoolFile] = field(default_factory=list)
    items: Sequence[Item] = ()
    before: tuple[Relation, ...] = ()
    schemas: State = field(default_factory=State)
    columns: Mapping[int, tuple[ColumnRow, ...]] = field(default_factory=dict)
    names: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    relids: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    error: ApplyError | None = None

    @classmethod
    def of(cls, transactions: Sequence[Item], start_lsn: Lsn, end_lsn: Lsn | None = None) -> Self:
        """A batch of these transactions, without their changes.

        Args:
            transactions: In the order of their ends; may be empty when `end_lsn` is given.
            start_lsn: The origin's LSN.
            end_lsn: The batch's recorded end, for a batch that is formed again.
        """
        single = [transaction for transaction in transactions if isinstance(transaction, Transaction)]
        number = count(transactions)
        finish_lsn, xid, last_end_lsn = start_lsn, None, start_lsn
        if transactions:
            last = transactions[-1]
            last_end_lsn = last.end_lsn
            finish_lsn = Lsn(int(last.commit_lsns[-1])) if isinstance(last, TransactionRun) else last.commit_lsn
            xid = int(last.xids[-1]) if isinstance(last, TransactionRun) else last.xid
        return cls(
            start_lsn,
            end_lsn or last_end_lsn,
            finish_lsn,
            xid if number == 1 else None,
            number,
            sum(item.n_rows for item in transactions),
            [],
            prepared=[t for t in single if t.ending is Ending.PREPARE],
            ended=[t for t in single if t.gid is not None and t.ending is not Ending.PREPARE],
            spools=[t.moved for t in single if isinstance(t.moved, SpoolFile) and t.ending is not Ending.PREPARE],
            items=transactions,
        )

    @property
    def alters(self) -> bool:
        """It changes columns of its targets."""
        return any(changes.alterations for changes in self.tables)

    @property
    def committed(self) -> bool:
        """It is one transaction, which committed: not one that was prepared, or rolled back after that."""
        return self.xid is not None and not self.prepared and all(t.ending is Ending.COMMIT for t in self.ended)

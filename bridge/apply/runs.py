"""Transactions as runs of row messages that can be decoded together: what was received, in commit order.

Transactions that came whole are joined into one run, those that were streamed into another, because an xid stands
in each of their messages; a transaction in a spool file gives one run for each chunk that is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from bridge.track.spool import CHUNK_BYTES, SpoolFile
from protocol.stretches import Packed
from protocol.transactions import Ending

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from protocol.lsn import Lsn
    from protocol.transactions import Event, RowMessage, Transaction


@dataclass(slots=True)
class Run:
    """Row messages of transactions in commit order, with what stands between them.

    Attributes:
        transactions: Those they are of.
        rows: The messages, with the header of XLogData.
        events: (position, transaction, message), each before the row at `position`; none of aborted
            subtransactions.
        in_stream: An xid follows each row message's tag.
        aborted: xids of aborted subtransactions, whose rows are void.
        first_seq: Position of the first row in the batch.
        first_rows: Of each transaction, and behind the last one, the position of its first row.
    """

    transactions: Sequence[Transaction]
    rows: list[RowMessage] | Packed
    events: list[tuple[int, Transaction, Event]]
    in_stream: bool
    first_seq: int
    first_rows: list[int]
    aborted: list[int] = field(default_factory=list)

    @property
    def spooled(self) -> bool:
        """It was read from a spool file: others of the same transaction follow, perhaps more than memory holds."""
        return isinstance(self.rows, Packed)

    def first_row_from(self, lsn: Lsn) -> int:
        """The first row of the first transaction that commits at or after `lsn` (should_apply_changes_for_rel)."""
        commit_lsns = np.array([transaction.commit_lsn for transaction in self.transactions], dtype=np.uint64)
        return self.first_rows[int(np.searchsorted(commit_lsns, np.uint64(lsn)))]

    def transaction_of(self, row: int) -> Transaction:
        """The transaction that a row is of."""
        number = int(np.searchsorted(np.array(self.first_rows), row, side="right")) - 1
        return self.transactions[min(number, len(self.transactions) - 1)]


def runs_of(transactions: Iterable[Transaction], chunk_bytes: int = CHUNK_BYTES) -> Iterator[Run]:
    """All runs of a batch's committed transactions; reads spool files as it goes, about `chunk_bytes` at a time.

    Raises:
        StateError: A spool file cannot be read.
        ProtocolError: It holds a message that is none.
    """
    seq = 0
    committed = [transaction for transaction in transactions if transaction.ending is Ending.COMMIT]
    for (moved, in_stream), group in groupby(committed, lambda t: (t.moved is not None, t.in_stream)):
        if moved:
            for transaction in group:
                for run in _spooled(transaction, seq, chunk_bytes):
                    yield run
                    seq += len(run.rows)
        else:
            run = _joined(list(group), seq, in_stream=in_stream)
            yield run
            seq += len(run.rows)


def _joined(transactions: list[Transaction], seq: int, *, in_stream: bool) -> Run:
    run = Run(transactions, [], [], in_stream, seq, [0])
    rows: list[RowMessage] = []
    for transaction in transactions:
        _add_events(run, transaction, transaction.events, len(rows), first=True)
        rows.extend(transaction.rows)
        run.first_rows.append(len(rows))
        run.aborted.extend(transaction.aborted)
    run.rows = rows
    return run


def _spooled(transaction: Transaction, seq: int, chunk_bytes: int) -> Iterator[Run]:
    assert isinstance(transaction.moved, SpoolFile)  # noqa: S101 - nothing else moves changes
    aborted = list(transaction.aborted)
    first = True
    for chunk in transaction.moved.chunks(in_stream=transaction.in_stream, chunk_bytes=chunk_bytes):
        run = Run([transaction], chunk.rows, [], transaction.in_stream, seq, [0, len(chunk.rows)], aborted)
        _add_events(run, transaction, chunk.events, 0, first=first)
        yield run
        seq += len(chunk.rows)
        first = False
    if transaction.rows or transaction.events:
        rest = Run([transaction], transaction.rows, [], transaction.in_stream, seq, [0, len(transaction.rows)], aborted)
        _add_events(rest, transaction, transaction.events, 0, first=first)
        yield rest


def _add_events(
    run: Run, transaction: Transaction, events: Iterable[tuple[int, Event]], offset: int, *, first: bool
) -> None:
    if first:
        run.events.extend((offset, transaction, relation) for relation in transaction.relations)
    run.events.extend(
        (offset + position, transaction, event) for position, event in events if event.xid not in transaction.aborted
    )

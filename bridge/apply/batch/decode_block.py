"""Transactions in commit order as blocks of row messages that can be decoded together.

Transactions that came whole are joined in one block. Streamed ones are joined in another: each of their messages has an
xid. A spooled transaction gives one block for each chunk that is read from its file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from bridge.track.spool import CHUNK_BYTES, SpoolFile
from protocol.lsn import Lsn
from protocol.message_array import MessageArray
from protocol.transactions import Ending, Transaction, TransactionRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from protocol.transactions import Event
    from protocol.values.value_array import Ints


_BLOCK_ROWS = 50_000
"""Enough rows of each table to be worth the steps of decoding them. More would hold Python's lock for long: the
receiver waits for it, and behind a full socket the walsender does."""

_NONE: Final = np.zeros(0, np.int64)


@dataclass(slots=True)
class DecodeBlock:
    """Row messages of transactions in commit order, and the other messages between them.

    Attributes:
        xids: The xid of each transaction.
        commit_lsns: The commit LSN of each transaction, ascending.
        rows: The row messages, with the header of XLogData.
        events: (position, transaction, message): each comes before the row at `position`. Those of aborted
            subtransactions are left out.
        in_stream: Whether an xid follows the tag of each row message.
        first_seq: The position in the batch of the first row.
        first_rows: The position of each transaction's first row; and at the end, the number of rows.
        aborted: xids of aborted subtransactions, whose rows do not count.
        spooled: Whether it was read from a spool file, whose other blocks memory may not hold.
    """

    xids: Ints
    commit_lsns: np.ndarray
    rows: MessageArray
    events: list[tuple[int, Transaction, Event]]
    in_stream: bool
    first_seq: int
    first_rows: Ints
    aborted: list[int] = field(default_factory=list)
    spooled: bool = False

    def first_row_from(self, lsn: Lsn) -> int:
        """Position of the first row that commits at or after `lsn` (`should_apply_changes_for_rel` in worker.c)."""
        return int(self.first_rows[int(np.searchsorted(self.commit_lsns, np.uint64(lsn)))])

    def transaction_of(self, row: int) -> tuple[int, Lsn]:
        """Xid and commit LSN of a row's transaction."""
        number = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        number = min(number, len(self.xids) - 1)
        return int(self.xids[number]), Lsn(int(self.commit_lsns[number]))


def decode_blocks(
    transactions: Iterable[Transaction | TransactionRun], chunk_bytes: int = CHUNK_BYTES
) -> Iterator[DecodeBlock]:
    """All blocks of a batch's committed transactions; reads spool files as it goes, about `chunk_bytes` at a time.

    Raises:
        StateError: A spool file cannot be read.
        ProtocolError: It holds bytes that are not a message.
    """
    seq = 0
    committed = (t for t in transactions if isinstance(t, TransactionRun) or t.ending is Ending.COMMIT)
    for (spooled, in_stream), group in groupby(committed, _form):
        if spooled:
            for transaction in group:
                assert isinstance(transaction, Transaction)  # noqa: S101 - nothing else is spooled
                for block in _spooled(transaction, seq, chunk_bytes):
                    yield block
                    seq += len(block.rows)
        else:
            for some in _grouped(group):
                block = _joined(some, seq, in_stream=in_stream)
                yield block
                seq += len(block.rows)


def _grouped(items: Iterable[Transaction | TransactionRun]) -> Iterator[list[Transaction | TransactionRun]]:
    """Group items to lists of about a block's size."""
    some: list[Transaction | TransactionRun] = []
    rows = 0
    for item in items:
        some.append(item)
        rows += item.n_rows
        if rows >= _BLOCK_ROWS:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _form(item: Transaction | TransactionRun) -> tuple[bool, bool]:
    """Whether its changes are spooled, and whether they were streamed."""
    return (item.spooled is not None, item.in_stream) if isinstance(item, Transaction) else (False, False)


def _joined(items: Iterable[Transaction | TransactionRun], seq: int, *, in_stream: bool) -> DecodeBlock:
    parts: list[MessageArray] = []
    rows = 0
    xids: list[Ints] = []
    commit_lsns: list[np.ndarray] = []
    first_rows: list[Ints] = []
    block = DecodeBlock(_NONE, _NONE, MessageArray.of(), [], in_stream, seq, _NONE)
    for item in items:
        if isinstance(item, TransactionRun):
            xids.append(item.xids)
            commit_lsns.append(item.commit_lsns)
            first_rows.append(item.first_rows[:-1] + rows)
            parts.append(item.rows)
        else:
            _add_events(block, item, item.events, rows, first=True)
            xids.append(np.array([item.xid]))
            commit_lsns.append(np.array([item.commit_lsn], np.uint64))
            first_rows.append(np.array([rows]))
            parts.append(item.rows.part())
            block.aborted.extend(item.aborted)
        rows += len(item.rows)
    block.rows = MessageArray.concatenated(parts)
    block.xids, block.commit_lsns = np.concatenate(xids), np.concatenate(commit_lsns)
    block.first_rows = np.concatenate([*first_rows, [rows]])
    return block


def _spooled(transaction: Transaction, seq: int, chunk_bytes: int) -> Iterator[DecodeBlock]:
    assert isinstance(transaction.spooled, SpoolFile)  # noqa: S101 - nothing else holds spooled changes
    first = True
    for rows, events in transaction.spooled.chunks(in_stream=transaction.in_stream, chunk_bytes=chunk_bytes):
        block = _alone(transaction, rows, seq, spooled=True)
        _add_events(block, transaction, events, 0, first=first)
        yield block
        seq += len(rows)
        first = False
    if len(transaction.rows) or transaction.events:
        rest = _alone(transaction, transaction.rows.part(), seq)
        _add_events(rest, transaction, transaction.events, 0, first=first)
        yield rest


def _alone(transaction: Transaction, rows: MessageArray, seq: int, *, spooled: bool = False) -> DecodeBlock:
    """A block of one transaction's rows, or of a part of them."""
    return DecodeBlock(
        np.array([transaction.xid]),
        np.array([transaction.commit_lsn], np.uint64),
        rows,
        [],
        transaction.in_stream,
        seq,
        np.array([0, len(rows)], np.int64),
        list(transaction.aborted),
        spooled,
    )


def _add_events(
    block: DecodeBlock, transaction: Transaction, events: Iterable[tuple[int, Event]], offset: int, *, first: bool
) -> None:
    if first:
        block.events.extend((offset, transaction, relation) for relation in transaction.relations)
    block.events.extend(
        (offset + position, transaction, event) for position, event in events if event.xid not in transaction.aborted
    )

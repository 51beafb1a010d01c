"""Transactions in commit order as blocks of row messages that can be decoded together.

Transactions that came whole are joined in one block. Streamed ones are joined in another: each of their messages has an
xid. A spooled transaction gives one block for each chunk that is read from its file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from pgbridge.bridge.track.spool import CHUNK_BYTES, SpoolFile
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Ending, Event, Item, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pgbridge.protocol.values.value_array import Ints

_BLOCK_ROWS = 200_000
"""Enough rows of each table to be worth the steps of decoding them, and a query of Spark's for their row filters. More
would hold Python's lock for long: the receiver waits for it, and behind a full socket the walsender does."""


@dataclass(frozen=True, slots=True)
class DecodeBlock:
    """Row messages of transactions in commit order, and the other messages between them.

    Attributes:
        commit_lsns: The commit LSN of each transaction, ascending.
        rows: The row messages, with the header of XLogData.
        events: (position, transaction, message): each comes before the row at `position`. Those of aborted
            subtransactions are left out.
        in_stream: Whether an xid follows the tag of each row message.
        first_seq: The position in the batch of the first row.
        first_rows: The position of each transaction's first row; and at the end, the number of rows.
        aborted: xids of aborted subtransactions, whose rows do not count.
        spooled: Whether it was read from a spool file, whose other blocks memory may not hold.
        items: The transactions; of a spooled one, this block may have a part only.
        masks: The masks of rows that were kept (`SpoolFile.masks`); None for those of this stream.
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
    items: Sequence[Item] = ()
    masks: Mapping[str, str] | None = None

    def first_row_from(self, lsn: Lsn) -> int:
        """Position of the first row that commits at or after `lsn` (`should_apply_changes_for_rel` in worker.c)."""
        return int(self.first_rows[int(np.searchsorted(self.commit_lsns, np.uint64(lsn)))])

    def transaction_of(self, row: int) -> tuple[int, Lsn]:
        """Xid and commit LSN of a row's transaction."""
        number = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        number = min(number, len(self.xids) - 1)
        return int(self.xids[number]), Lsn(int(self.commit_lsns[number]))


def decode_blocks(transactions: Iterable[Item], chunk_bytes: int = CHUNK_BYTES) -> Iterator[DecodeBlock]:
    """All blocks of a batch's committed transactions; reads spool files as it goes, about `chunk_bytes` at a time.

    Raises:
        StateError: A spool file cannot be read.
        ProtocolError: It holds bytes that are not a message.
    """
    seq = 0
    committed = (item for item in transactions if item.ending is Ending.COMMIT)
    for (spooled, in_stream), group in groupby(committed, _spooled_and_streamed):
        if spooled:
            for transaction in group:
                assert isinstance(transaction, Transaction)  # noqa: S101 - nothing else is spooled
                for block in _spooled(transaction, seq, chunk_bytes):
                    yield block
                    seq += len(block.rows)
        else:
            for items in _grouped(group):
                block = _joined(items, seq, in_stream=in_stream)
                yield block
                seq += len(block.rows)


def _grouped(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Group transactions to lists of about a block's size."""
    group: list[Item] = []
    rows = 0
    for item in items:
        group.append(item)
        rows += item.n_rows
        if rows >= _BLOCK_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _spooled_and_streamed(item: Item) -> tuple[bool, bool]:
    """Whether its changes are spooled, and whether they were streamed."""
    return item.spooled is not None, item.in_stream


def _joined(items: Sequence[Item], seq: int, *, in_stream: bool) -> DecodeBlock:
    """One block of transactions in memory."""
    parts: list[MessageArray] = []
    rows = 0
    xids: list[Ints] = []
    commit_lsns: list[np.ndarray] = []
    first_rows: list[Ints] = []
    events: list[tuple[int, Transaction, Event]] = []
    aborted: list[int] = []
    for item in items:
        xids.append(item.xids)
        commit_lsns.append(item.commit_lsns)
        first_rows.append(item.first_rows[:-1] + rows)
        parts.append(item.rows.part())
        if isinstance(item, Transaction):
            events += _events(item, item.events, rows, first=True)
        aborted.extend(item.aborted)
        rows += len(item.rows)
    return DecodeBlock(
        np.concatenate(xids),
        np.concatenate(commit_lsns),
        MessageArray.concatenated(parts),
        events,
        in_stream,
        seq,
        np.concatenate([*first_rows, [rows]]),
        aborted,
        items=items,
    )


def _spooled(transaction: Transaction, seq: int, chunk_bytes: int) -> Iterator[DecodeBlock]:
    """The blocks of a spooled transaction: one for each chunk of its file, and one for what is in memory."""
    assert isinstance(transaction.spooled, SpoolFile)  # noqa: S101 - nothing else holds spooled changes
    first = True
    for rows, events in transaction.spooled.chunks(in_stream=transaction.in_stream, chunk_bytes=chunk_bytes):
        yield _alone(transaction, rows, _events(transaction, events, first=first), seq, spooled=True)
        seq += len(rows)
        first = False
    if len(transaction.rows) or transaction.events:
        rest = _events(transaction, transaction.events, first=first)
        yield _alone(transaction, transaction.rows.part(), rest, seq)


def _alone(
    transaction: Transaction,
    rows: MessageArray,
    events: list[tuple[int, Transaction, Event]],
    seq: int,
    *,
    spooled: bool = False,
) -> DecodeBlock:
    """A block of some or all rows of one transaction."""
    return DecodeBlock(
        np.array([transaction.xid]),
        np.array([transaction.commit_lsn], np.uint64),
        rows,
        events,
        transaction.in_stream,
        seq,
        np.array([0, len(rows)], np.int64),
        list(transaction.aborted),
        spooled,
        (transaction,),
        transaction.spooled.masks if isinstance(transaction.spooled, SpoolFile) else None,
    )


def _events(
    transaction: Transaction, events: Iterable[tuple[int, Event]], offset: int = 0, *, first: bool
) -> list[tuple[int, Transaction, Event]]:
    """A transaction's events as those of a block; the definitions in force at its start come with the `first` ones.

    `events` are all or those of a chunk, by the position of the row after each.
    """
    relations: Sequence[Event] = transaction.relations if first else ()
    return [
        *((offset, transaction, relation) for relation in relations),
        *(
            (offset + position, transaction, event)
            for position, event in events
            if event.xid not in transaction.aborted
        ),
    ]

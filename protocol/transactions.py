"""What the assembler hands over: a transaction with its changes as they came, and how it ended.

Row messages (Insert, Update, Delete) are most of a stream. They are kept as they came, undecoded, in the
transaction's `rows`; whoever holds too many of them moves them elsewhere (`Spooled`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from protocol.lsn import INVALID, Lsn
from protocol.message_array import ROW_OVERHEAD_BYTES, ChunkedMessages, MessageArray
from protocol.messages import LogicalMessage, Relation, Truncate

if TYPE_CHECKING:
    from collections.abc import Iterable

ROW_TAGS = frozenset(b"IUD")
"""First bytes of the messages that stay undecoded until a batch is formed."""

Event = Relation | Truncate | LogicalMessage
Events = list[tuple[int, Event]]
"""(position, message), each before the row message at that position."""


class Ending(enum.Enum):
    """What a transaction that leaves the assembler came to."""

    COMMIT = "committed"
    PREPARE = "prepared"
    ROLLBACK_PREPARED = "rolled back after it was prepared"
    ABORT = "aborted"


class Spooled(Protocol):
    """Changes of a transaction that were written to a spool file; those still in `rows` and `events` come after them.

    Attributes:
        rows: How many row messages.
    """

    rows: int


@dataclass(slots=True)
class Transaction:
    """A transaction as received.

    Attributes:
        xid: The top-level transaction id on the server; 0 for a logical message outside of transactions.
        commit_lsn: LSN of the record that ends it (commit, prepare, commit prepared, rollback prepared): the
            finish LSN that operators see and skip. While it is in progress, what its first message said.
        end_lsn: Just after that record: resume and confirm from here.
        commit_time_us: Microseconds since 2000-01-01 UTC.
        rows: Row messages in order, each as it came (with the header its receiver leaves in front of it).
        events: Relation, Truncate and logical messages, each with its position among `rows`.
        origin_name: Where the transaction came to the server from; None when it began there.
        relations: Definitions that hold where its changes begin, and that those of the transactions handed over
            before it do not give.
        in_stream: It was streamed while it was in progress, so an xid follows the tag of each row message.
        aborted: Its subtransactions that were rolled back: changes with these xids are void.
        gid: The global identifier of a prepared transaction.
        ending: How it ended.
        spooled: Changes that lie in a spool file, no longer in memory.
        content_bytes: Of the logical messages in `events`.
    """

    xid: int
    commit_lsn: Lsn = INVALID
    commit_time_us: int = 0
    end_lsn: Lsn = INVALID
    rows: ChunkedMessages = field(default_factory=ChunkedMessages)
    events: Events = field(default_factory=list)
    origin_name: str | None = None
    relations: tuple[Relation, ...] = ()
    in_stream: bool = False
    aborted: set[int] = field(default_factory=set)
    gid: str | None = None
    ending: Ending = Ending.COMMIT
    spooled: Spooled | None = None
    content_bytes: int = field(default=0, compare=False, repr=False)

    @classmethod
    def of_message(cls, message: LogicalMessage) -> Self:
        """A logical message that stands outside of transactions."""
        made = cls(0, message.lsn, end_lsn=message.lsn)
        made.add(message)
        return made

    def add(self, event: Event) -> None:
        """What comes next, before the rows that are still to come."""
        self.events.append((len(self.rows), event))
        if isinstance(event, LogicalMessage):
            self.content_bytes += len(event.prefix) + len(event.content)

    @property
    def n_rows(self) -> int:
        """Row messages to apply, those of aborted subtransactions among them; none in one that did not commit."""
        if self.ending is not Ending.COMMIT:
            return 0
        return len(self.rows) + (self.spooled.rows if self.spooled else 0)

    @property
    def memory_bytes(self) -> int:
        """What it holds in memory."""
        return self.rows.memory_bytes + self.content_bytes + ROW_OVERHEAD_BYTES * len(self.events)

    @property
    def rows_bytes(self) -> int:
        """Bytes of the row messages in memory."""
        return self.rows.size_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes of the row messages and of logical messages' content in memory."""
        return self.rows_bytes + self.content_bytes

    def spool_to(self, spooled: Spooled) -> None:
        """Forget what is in memory: it lies in `spooled` now."""
        self.spooled = spooled
        self.rows.clear()
        self.events.clear()
        self.content_bytes = 0


@dataclass(slots=True)
class TransactionRun:
    """Committed transactions one after the other that hold nothing but rows: what most of a busy stream is.

    There is no object for each of them.

    Attributes:
        xids: uint32, of each.
        commit_lsns: uint64, of each.
        end_lsns: uint64, of each.
        commit_times_us: int64, of each.
        rows: Row messages of all, in order.
        first_rows: int64: of each transaction, and behind the last one, the index of its first row.
        row_ends: int64: of each row, the bytes of all rows up to it and with it.
    """

    xids: np.ndarray
    commit_lsns: np.ndarray
    end_lsns: np.ndarray
    commit_times_us: np.ndarray
    rows: MessageArray
    first_rows: np.ndarray
    row_ends: np.ndarray

    def __len__(self) -> int:
        return len(self.xids)

    @property
    def end_lsn(self) -> Lsn:
        """The last transaction's."""
        return Lsn(int(self.end_lsns[-1]))

    @property
    def n_rows(self) -> int:
        """Row messages."""
        return len(self.rows)

    @property
    def rows_bytes(self) -> int:
        """Bytes of `rows`."""
        return int(self.row_ends[-1]) if len(self.row_ends) else 0

    @property
    def received_bytes(self) -> int:
        """The same: it has no logical messages."""
        return self.rows_bytes

    @property
    def memory_bytes(self) -> int:
        """What it holds in memory."""
        return self.rows_bytes + ROW_OVERHEAD_BYTES * len(self.rows)

    def split(self, count: int) -> tuple[TransactionRun, TransactionRun | None]:
        """The first `count` transactions, and the others, if there are any."""
        if count >= len(self):
            return self, None
        row = int(self.first_rows[count])
        before = int(self.row_ends[row - 1]) if row else 0
        head = TransactionRun(
            self.xids[:count],
            self.commit_lsns[:count],
            self.end_lsns[:count],
            self.commit_times_us[:count],
            self.rows.part(0, row),
            self.first_rows[: count + 1],
            self.row_ends[:row],
        )
        tail = TransactionRun(
            self.xids[count:],
            self.commit_lsns[count:],
            self.end_lsns[count:],
            self.commit_times_us[count:],
            self.rows.part(row),
            self.first_rows[count:] - row,
            self.row_ends[row:] - before,
        )
        return head, tail

    def reaching(self, rows: int, size: int) -> int:
        """How many transactions it takes to have so many rows or so many bytes: at least 1, or all of them."""
        by_rows = int(np.searchsorted(self.first_rows[1:], rows))
        ends = np.concatenate([np.zeros(1, np.int64), self.row_ends])[self.first_rows[1:]]
        return min(by_rows, int(np.searchsorted(ends, size)), len(self) - 1) + 1

    def ending_by(self, lsn: Lsn) -> int:
        """How many transactions end at or before `lsn`."""
        return int(np.searchsorted(self.end_lsns, np.uint64(lsn), side="right"))


Item = Transaction | TransactionRun


def count(items: Iterable[Item]) -> int:
    """How many transactions there are."""
    return sum(len(item) if isinstance(item, TransactionRun) else 1 for item in items)


def divide(items: Iterable[Item], first: int) -> tuple[list[Item], list[Item]]:
    """The first so many transactions, and the others."""
    head: list[Item] = []
    tail: list[Item] = []
    for item in items:
        if first <= 0:
            tail.append(item)
            continue
        here, rest = item.split(first) if isinstance(item, TransactionRun) else (item, None)
        first -= count([here])
        head.append(here)
        if rest is not None:
            tail.append(rest)
    return head, tail

"""Transactions as the assembler hands them over: their changes as received, and how they ended.

Row messages (Insert, Update, Delete) are most of a stream. They stay undecoded in the transaction's `rows`; when they
are too many for memory, they are moved elsewhere (`Spooled`).

`TransactionAssembler` takes one message at a time. Runs of transactions that hold nothing but rows (Begin, rows,
Commit, and again) are found here by thousands at once, in NumPy (`RunFinder`). A transaction that has another form, or
is wrong in any field, is left to the assembler.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, Self

import numpy as np

from pgbridge.protocol.bulk.message_array import ROW_OVERHEAD_BYTES, ChunkedMessages, MessageArray
from pgbridge.protocol.codec.messages import LogicalMessage, Relation, Truncate
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.values.value_array import Bytes, Ints, numbers_at

if TYPE_CHECKING:
    from collections.abc import Iterable

ROW_TAGS = frozenset(b"IUD")
"""First bytes of row messages, which stay undecoded until a batch is formed."""

Event = Relation | Truncate | LogicalMessage
Events = list[tuple[int, Event]]
"""(position, message), each before the row message at that position."""


class Ending(enum.Enum):
    """How a transaction that leaves the assembler ended."""

    COMMIT = "committed"
    PREPARE = "prepared"
    ROLLBACK_PREPARED = "rolled back after it was prepared"
    ABORT = "aborted"


class Spooled(Protocol):
    """The first changes of a transaction, written to a spool file; those in `rows` and `events` come after them.

    Attributes:
        rows: Number of row messages.
    """

    rows: int


@dataclass(slots=True)
class Transaction:
    """A transaction as received.

    Attributes:
        xid: The top-level transaction id on the server; 0 for a logical message outside of transactions.
        commit_lsn: LSN of the record that ends it (commit, prepare, commit prepared, rollback prepared): the
            finish LSN that operators see and skip. While it is in progress, the LSN in its first message.
        end_lsn: Just after that record: the LSN to resume from and to confirm.
        commit_time_us: Microseconds since 2000-01-01 UTC.
        rows: Row messages in order, each as received, with XLogData around it.
        events: Relation, Truncate and logical messages, each with its position among `rows`.
        origin_name: The origin from which the server replicated it; None if it began on the server.
        relations: Definitions in force at its first change that earlier transactions did not announce.
        unseen: Which of them, by OID, only a transaction has announced that was prepared.
        in_stream: It was streamed while it was in progress, so an xid follows the tag of each row message.
        aborted: xids of its subtransactions that were rolled back: their changes are void.
        gid: The global identifier of a prepared transaction.
        ending: How it ended.
        spooled: Its changes in a spool file.
        content_bytes: Length of the logical messages in `events`.
    """

    xid: int
    commit_lsn: Lsn = INVALID
    commit_time_us: int = 0
    end_lsn: Lsn = INVALID
    rows: ChunkedMessages = field(default_factory=ChunkedMessages)
    events: Events = field(default_factory=list)
    origin_name: str | None = None
    relations: tuple[Relation, ...] = ()
    unseen: frozenset[int] = frozenset()
    in_stream: bool = False
    aborted: set[int] = field(default_factory=set)
    gid: str | None = None
    ending: Ending = Ending.COMMIT
    spooled: Spooled | None = None
    content_bytes: int = field(default=0, compare=False, repr=False)

    @classmethod
    def of_message(cls, message: LogicalMessage) -> Self:
        """Make a transaction of a logical message that stands outside of transactions."""
        made = cls(0, message.lsn, end_lsn=message.lsn)
        made.add(message)
        return made

    def add(self, event: Event) -> None:
        """Append an event: it comes before the rows that are appended later."""
        self.events.append((len(self.rows), event))
        if isinstance(event, LogicalMessage):
            self.content_bytes += len(event.prefix) + len(event.content)

    def __len__(self) -> int:
        return 1

    @property
    def xids(self) -> np.ndarray:
        """As those of a run; so are the following."""
        return np.array([self.xid], np.uint32)

    @property
    def commit_lsns(self) -> np.ndarray:
        """uint64."""
        return np.array([self.commit_lsn], np.uint64)

    @property
    def commit_times_us(self) -> np.ndarray:
        """int64."""
        return np.array([self.commit_time_us], np.int64)

    @property
    def first_rows(self) -> np.ndarray:
        """int64: of the rows in memory."""
        return np.array([0, len(self.rows)], np.int64)

    def split(self, count: int) -> tuple[Transaction, None]:
        """The first `count` transactions, which is at least one."""
        del count
        return self, None

    def reaching(self, rows: int, size: int) -> int:
        """One: from 1 to all of them."""
        del rows, size
        return 1

    def ending_by(self, lsn: Lsn) -> int:
        """Number of transactions that end at or before `lsn`."""
        return int(self.end_lsn <= lsn)

    def committing_before(self, lsn: Lsn) -> int:
        """Number of transactions that a stream from `lsn` on would not have (`SnapBuildXactNeedsSkip`).

        The record that ends a transaction begins before it; its end may be behind it.
        """
        return int(self.commit_lsn < lsn)

    @property
    def n_rows(self) -> int:
        """Number of row messages to apply, with those of aborted subtransactions; 0 if it did not commit."""
        if self.ending is not Ending.COMMIT:
            return 0
        return len(self.rows) + (self.spooled.rows if self.spooled else 0)

    @property
    def memory_bytes(self) -> int:
        """Memory it takes."""
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
        """Forget the changes in memory: they are in `spooled` now."""
        self.spooled = spooled
        self.rows.clear()
        self.events.clear()
        self.content_bytes = 0


@dataclass(slots=True)
class TransactionRun:
    """Consecutive committed transactions that hold nothing but rows, without an object for each.

    Most of a busy stream is of this form.

    Attributes:
        xids: uint32, one for each transaction, as the next three.
        commit_lsns: uint64.
        end_lsns: uint64.
        commit_times_us: int64.
        rows: Row messages of all transactions, in order.
        first_rows: int64: index of each transaction's first row, and at the end the number of rows.
        row_ends: int64: total length of the rows up to and including each row.
    """

    xids: np.ndarray
    commit_lsns: np.ndarray
    end_lsns: np.ndarray
    commit_times_us: np.ndarray
    rows: MessageArray
    first_rows: np.ndarray
    row_ends: np.ndarray

    origin_name: ClassVar[None] = None
    in_stream: ClassVar[bool] = False
    aborted: ClassVar[frozenset[int]] = frozenset()
    ending: ClassVar[Ending] = Ending.COMMIT
    spooled: ClassVar[None] = None

    def __len__(self) -> int:
        return len(self.xids)

    @property
    def end_lsn(self) -> Lsn:
        """The last transaction's end LSN."""
        return Lsn(int(self.end_lsns[-1]))

    @property
    def n_rows(self) -> int:
        """Number of row messages."""
        return len(self.rows)

    @property
    def rows_bytes(self) -> int:
        """Bytes of the row messages."""
        return int(self.row_ends[-1]) if len(self.row_ends) else 0

    @property
    def received_bytes(self) -> int:
        """The same: a run has no logical messages."""
        return self.rows_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory it takes."""
        return self.rows_bytes + ROW_OVERHEAD_BYTES * len(self.rows)

    def split(self, count: int) -> tuple[TransactionRun, TransactionRun | None]:
        """Divide it into the first `count` transactions and the others, if there are any."""
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
        """Number of transactions that together reach so many rows or so many bytes: from 1 to all of them."""
        by_rows = int(np.searchsorted(self.first_rows[1:], rows))
        ends = np.concatenate([np.zeros(1, np.int64), self.row_ends])[self.first_rows[1:]]
        return min(by_rows, int(np.searchsorted(ends, size)), len(self) - 1) + 1

    def ending_by(self, lsn: Lsn) -> int:
        """Number of transactions that end at or before `lsn`."""
        return int(np.searchsorted(self.end_lsns, np.uint64(lsn), side="right"))

    def committing_before(self, lsn: Lsn) -> int:
        """As that of a transaction."""
        return int(np.searchsorted(self.commit_lsns, np.uint64(lsn)))


Item = Transaction | TransactionRun
"""Transactions in commit order, one or more: its length. What a run never has is empty there."""


def divide(items: Iterable[Item], first: int) -> tuple[list[Item], list[Item]]:
    """Divide items into the first so many transactions and the others."""
    head: list[Item] = []
    tail: list[Item] = []
    for item in items:
        if first <= 0:
            tail.append(item)
            continue
        here, rest = item.split(first)
        first -= len(here)
        head.append(here)
        if rest is not None:
            tail.append(rest)
    return head, tail


_BEGIN, _COMMIT = b"BC"
_IS_ROW: Final = np.isin(np.arange(256), list(ROW_TAGS))
# As in `transaction_messages`: tag, final LSN, time, xid; tag, flags, commit LSN, end LSN, time.
_BEGIN_BYTES = HEADER_BYTES + 21
_COMMIT_BYTES = HEADER_BYTES + 26


class RunFinder:
    """Finds the runs in consecutive messages of a stream.

    Args:
        messages: The messages, each in its XLogData and longer than its header.

    Attributes:
        controls: Indices of the control messages: those that are not rows.
    """

    def __init__(self, messages: MessageArray) -> None:
        self._messages = messages
        tags = messages.data[messages.starts + HEADER_BYTES]
        self._is_row = _IS_ROW[tags]
        self.controls: Ints = np.flatnonzero(~self._is_row)
        control_tags: Bytes = tags[self.controls]
        pairs = (control_tags[:-1] == _BEGIN) & (control_tags[1:] == _COMMIT)
        # By control message: it is a Begin and the next one a Commit; no row stands between it and the next one.
        self._starts_pair = np.append(pairs, [False])
        self._adjoins = np.append(np.diff(self.controls) == 1, [False])

    def run_from(self, control: int) -> TransactionRun | None:
        """Return the run that begins with a control message, which must stand outside of a transaction.

        Args:
            control: The message's position in `controls`.

        Returns:
            All transactions up to the first that has another form or is wrong; None if that is the first of all.
        """
        pairs = self._starts_pair[control::2]
        if not pairs[0]:
            return None
        adjoins = self._adjoins[control + 1 :: 2][: len(pairs)]
        goes_on = pairs[1:] & adjoins[: len(pairs) - 1]
        count = len(pairs) if goes_on.all() else int(goes_on.argmin()) + 1
        return self._decode(control, count)

    def _decode(self, control: int, count: int) -> TransactionRun | None:
        """Decode `count` pairs of Begin and Commit, up to the first that is wrong."""
        of_run = self.controls[control : control + 2 * count]
        data, starts = self._messages.data, self._messages.starts[of_run]
        lengths = self._messages.ends[of_run] - starts
        begins, commits = starts[::2] + HEADER_BYTES, starts[1::2] + HEADER_BYTES
        final_lsns = numbers_at(data, begins, "u8", 1)
        commit_lsns = numbers_at(data, commits, "u8", 2)
        right = (lengths[::2] == _BEGIN_BYTES) & (lengths[1::2] == _COMMIT_BYTES)
        right &= (data[commits + 1] == 0) & (final_lsns != 0) & (final_lsns == commit_lsns)
        if not right.all():
            count = int(right.argmin())
            return self._decode(control, count) if count else None
        first, last = int(of_run[0]), int(of_run[-1])
        rows = self._messages.part(first, last).where(self._is_row[first:last]).trimmed()
        first_rows = of_run[::2] - first - 2 * np.arange(count)
        return TransactionRun(
            numbers_at(data, begins, "u4", 17),
            commit_lsns,
            numbers_at(data, commits, "u8", 10),
            numbers_at(data, begins, "u8", 9).astype(np.int64),
            rows,
            np.append(first_rows, len(rows)),
            np.cumsum(rows.lengths),
        )

"""Assembles whole transactions of a pgoutput stream; what is not committed never leaves it.

Row messages (Insert, Update, Delete) are most of a stream. They are kept as they came, undecoded, in the open
transaction's `rows`: the receive loop appends to that list itself and calls `control` only for other messages.

The states and what may come in each are the table `TRANSITIONS`. Source: the documentation's "Logical Streaming
Replication Protocol"; `apply_handle_begin` and `apply_handle_commit` in PostgreSQL's worker.c.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from protocol.errors import UnexpectedMessage
from protocol.lsn import INVALID, Lsn
from protocol.messages import Begin, Commit, LogicalMessage, Message, Origin, Relation, Truncate, Type

ROW_TAGS = frozenset(b"IUD")
"""First bytes of the messages that stay undecoded until a batch is formed."""

RowMessage = bytes | memoryview


class State(enum.Enum):
    """Where the stream stands."""

    IDLE = "outside a transaction"
    IN_TRANSACTION = "inside a transaction"


TRANSITIONS: dict[State, dict[type, State]] = {
    State.IDLE: {
        Begin: State.IN_TRANSACTION,
        LogicalMessage: State.IDLE,
    },
    State.IN_TRANSACTION: {
        Commit: State.IDLE,
        Origin: State.IN_TRANSACTION,
        Relation: State.IN_TRANSACTION,
        Type: State.IN_TRANSACTION,
        Truncate: State.IN_TRANSACTION,
        LogicalMessage: State.IN_TRANSACTION,
    },
}
"""State -> message -> next state; what is not there is a protocol violation."""


@dataclass(slots=True)
class Transaction:
    """A transaction as received.

    Attributes:
        xid: The top-level transaction id on the server.
        commit_lsn: LSN of the commit record, Begin's `final_lsn`: the finish LSN that operators see and skip.
        end_lsn: Just after the commit record: resume and confirm from here.
        commit_time_us: Microseconds since 2000-01-01 UTC.
        rows: Row messages in order, each as it came (with the header its receiver leaves in front of it).
        events: (position, message): Relation, Truncate and logical messages, each before `rows[position]`.
        origin_name: Where the transaction came to the server from; None when it began there.
        rows_bytes: Bytes of `rows`; set at commit.
    """

    xid: int
    commit_lsn: Lsn
    commit_time_us: int
    end_lsn: Lsn = INVALID
    rows: list[RowMessage] = field(default_factory=list)
    events: list[tuple[int, Relation | Truncate | LogicalMessage]] = field(default_factory=list)
    origin_name: str | None = None
    rows_bytes: int = 0


class TransactionAssembler:
    """The state of one stream, from START_REPLICATION to its end.

    Attributes:
        state: Where the stream stands.
        open: The transaction being received; None outside of one.
    """

    def __init__(self) -> None:
        self.state = State.IDLE
        self.open: Transaction | None = None

    def rows(self) -> list[RowMessage]:
        """The open transaction's row messages, for the receive loop to append to.

        Raises:
            UnexpectedMessage: No transaction is open, so no row message may come.
        """
        if self.open is None:
            raise UnexpectedMessage("row", self.state.value)
        return self.open.rows

    def control(self, message: Message) -> Transaction | None:
        """Take a message that is not a row's.

        Returns:
            The transaction that the message committed; None for every other message.

        Raises:
            UnexpectedMessage: The message may not come in this state, or contradicts the transaction's Begin.
        """
        state = TRANSITIONS[self.state].get(type(message))
        if state is None:
            raise UnexpectedMessage(type(message).__name__, self.state.value)
        self.state = state
        transaction = self.open
        if isinstance(message, Begin):
            self.open = Transaction(message.xid, message.final_lsn, message.commit_time_us)
        elif transaction is not None:
            if isinstance(message, Commit):
                self.open = None
                return _commit(transaction, message)
            if isinstance(message, Relation | Truncate | LogicalMessage):
                transaction.events.append((len(transaction.rows), message))
            elif isinstance(message, Origin):
                _before_changes(transaction)
                transaction.origin_name = message.name
        return None


def _before_changes(transaction: Transaction) -> None:
    """An Origin may stand before the transaction's first change only (apply_handle_origin)."""
    if transaction.rows or any(isinstance(event, Truncate) for _, event in transaction.events):
        raise UnexpectedMessage("Origin", State.IN_TRANSACTION.value, "the transaction has changed rows already")


def _commit(transaction: Transaction, commit: Commit) -> Transaction:
    if commit.commit_lsn != transaction.commit_lsn:
        raise UnexpectedMessage(
            "Commit",
            State.IN_TRANSACTION.value,
            f"incorrect commit LSN {commit.commit_lsn} in commit message (expected {transaction.commit_lsn})",
        )
    transaction.end_lsn = commit.end_lsn
    transaction.rows_bytes = sum(map(len, transaction.rows))
    return transaction

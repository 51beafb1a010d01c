"""Assembles whole transactions of a pgoutput stream; what is not committed or prepared never leaves it.

Messages are taken many at a time (`take`). Row messages stay as they came; the others are looked at one by one
(`control`), unless they are of transactions of the plain form, which are found in bulk (`plain`).

Transactions come whole (Begin … Commit, Begin Prepare … Prepare) or, while they are in progress, in segments between
Stream Start and Stream Stop, those of several transactions in turn; a segment's transaction ends with Stream Commit,
Stream Abort or Stream Prepare, and a prepared one with Commit Prepared or Rollback Prepared.

The states and what may come in each are the table `TRANSITIONS`. Source: the documentation's "Logical Streaming
Replication Protocol"; the `apply_handle_*` functions in PostgreSQL's worker.c.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING

from protocol.errors import UnexpectedMessage
from protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
)
from protocol.pgoutput import decode
from protocol.relations import RelationCache
from protocol.transaction_runs import Messages
from protocol.transactions import Ending, Transaction, TransactionRun
from protocol.walsender import decode_xlog_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from protocol.message_array import ChunkedMessages, MessageArray


class State(enum.Enum):
    """Where the stream stands."""

    IDLE = "outside a transaction"
    IN_TRANSACTION = "inside a transaction"
    IN_PREPARED = "inside a transaction that is prepared"
    IN_STREAM = "inside a segment of a streamed transaction"


def _inside(state: State) -> dict[type, State]:
    return dict.fromkeys((Origin, Relation, Type, Truncate, LogicalMessage), state)


TRANSITIONS: dict[State, dict[type, State]] = {
    State.IDLE: {
        Begin: State.IN_TRANSACTION,
        BeginPrepare: State.IN_PREPARED,
        StreamStart: State.IN_STREAM,
        StreamCommit: State.IDLE,
        StreamAbort: State.IDLE,
        StreamPrepare: State.IDLE,
        CommitPrepared: State.IDLE,
        RollbackPrepared: State.IDLE,
        LogicalMessage: State.IDLE,
    },
    State.IN_TRANSACTION: {Commit: State.IDLE, **_inside(State.IN_TRANSACTION)},
    State.IN_PREPARED: {Prepare: State.IDLE, **_inside(State.IN_PREPARED)},
    State.IN_STREAM: {StreamStop: State.IDLE, **_inside(State.IN_STREAM)},
}
"""State -> message -> next state; what is not there is a protocol violation."""


class TransactionAssembler:
    """The state of one stream, from START_REPLICATION to its end.

    Args:
        prepared: Transactions that were prepared in an earlier session and have not ended, with their changes.

    Attributes:
        state: Where the stream stands.
        open: The transaction being received; None outside of one.
        streamed: Streamed transactions that are in progress, by xid.
        prepared: Prepared transactions that have not ended, by gid.
    """

    def __init__(self, prepared: Iterable[Transaction] = ()) -> None:
        self.state = State.IDLE
        self.open: Transaction | None = None
        self.streamed: dict[int, Transaction] = {}
        self.prepared = {transaction.gid: transaction for transaction in prepared}
        self._relations = RelationCache()
        # Relations of which whoever takes the transactions in the order of their ends may know another definition
        # than the server believes: the next transaction carries the right one.
        self._unsettled: set[int] = set()
        self._announced: dict[int, set[int]] = {}  # by xid, in transactions that are not handed over as they end
        self._take: dict[type, Callable[..., Transaction | None]] = {
            Begin: self._begin,
            Commit: self._commit,
            BeginPrepare: self._begin_prepare,
            Prepare: self._prepare,
            StreamStart: self._stream_start,
            StreamStop: self._stream_stop,
            StreamCommit: self._stream_commit,
            StreamAbort: self._stream_abort,
            StreamPrepare: self._stream_prepare,
            CommitPrepared: self._commit_prepared,
            RollbackPrepared: self._rollback_prepared,
            Origin: self._origin,
            Relation: self._relation,
            Truncate: self._event,
            LogicalMessage: self._event,
        }

    def rows(self) -> ChunkedMessages:
        """The open transaction's row messages, to extend.

        Raises:
            UnexpectedMessage: No transaction is open, so no row message may come.
        """
        if self.open is None:
            raise UnexpectedMessage("row", self.state.value)
        return self.open.rows

    def in_progress(self) -> list[Transaction]:
        """The transactions that hold changes and have not ended."""
        streamed = list(self.streamed.values())
        return streamed if self.open is None or self.open.in_stream else [*streamed, self.open]

    def take(self, messages: MessageArray) -> Iterator[Transaction | TransactionRun]:
        """Take messages as they come, each in its XLogData.

        Yields:
            What they end, in order; see `control`. Transactions with nothing but rows come as runs.

        Raises:
            UnexpectedMessage: As `control` does; what came before the message has been taken.
            MalformedMessage: One is not of its tag's form.
            UnsupportedMessage: No protocol version has its tag.
        """
        found = Messages(messages)
        at = control = 0
        while control < len(found.controls):
            index = int(found.controls[control])
            if at < index:
                self.rows().extend(messages.part(at, index))
            run = found.run_from(control) if self.state is State.IDLE and not self._unsettled else None
            if run is not None:
                control += 2 * len(run)
                at = int(found.controls[control - 1]) + 1
                yield run
                continue
            payload = decode_xlog_data(messages[index]).payload
            ended = self.control(decode(payload, in_stream=self.state is State.IN_STREAM))
            at = index + 1
            control += 1
            if ended is not None:
                yield ended
        if at < len(messages):
            self.rows().extend(messages.part(at))

    def control(self, message: Message) -> Transaction | None:
        """Take a message that is not a row's.

        Returns:
            The transaction that the message ended, `ending` telling how: committed, also at COMMIT PREPARED;
            prepared, to be kept safe, with all its changes, before its end may be confirmed; rolled back at
            ROLLBACK PREPARED; aborted while it was streamed. A logical message outside of transactions is handed
            over as one of its own. None for every other message.

        Raises:
            UnexpectedMessage: The message may not come in this state, or contradicts what came before. The state
                is what it was.
        """
        state = TRANSITIONS[self.state].get(type(message))
        if state is None:
            raise UnexpectedMessage(type(message).__name__, self.state.value)
        take = self._take.get(type(message))
        ended = take(message) if take else None
        self.state = state
        return ended

    # --- transactions that come whole ---------------------------------------------------------------------------------

    def _begin(self, begin: Begin) -> None:
        self.open = Transaction(begin.xid, begin.final_lsn, begin.commit_time_us)

    def _commit(self, commit: Commit) -> Transaction:
        transaction = self._opened()
        if commit.commit_lsn != transaction.commit_lsn:
            raise UnexpectedMessage(
                "Commit",
                self.state.value,
                f"incorrect commit LSN {commit.commit_lsn} in commit message (expected {transaction.commit_lsn})",
            )
        self.open = None
        transaction.end_lsn = commit.end_lsn
        return self._hand_over(transaction)

    def _begin_prepare(self, begin: BeginPrepare) -> None:
        transaction = Transaction(begin.xid, begin.prepare_lsn, begin.prepare_time_us, begin.end_lsn, gid=begin.gid)
        # It will be applied later, perhaps by another process: what it takes for known has to be kept with it.
        transaction.relations = self._relations.session()
        self.open = transaction

    def _prepare(self, prepare: Prepare) -> Transaction:
        transaction = self._opened()
        began = (transaction.xid, transaction.gid, transaction.commit_lsn, transaction.end_lsn)
        ends = (prepare.xid, prepare.gid, prepare.prepare_lsn, prepare.end_lsn)
        if began != ends:
            raise UnexpectedMessage("Prepare", self.state.value, f"it is of {ends}, Begin Prepare was of {began}")
        self.open = None
        # The server counts on what it announced in here, from now on.
        self._unsettled.update(self._announced.pop(transaction.xid, ()))
        return self._keep(transaction, prepare)

    # --- streamed transactions ----------------------------------------------------------------------------------------

    def _stream_start(self, start: StreamStart) -> None:
        known = self.streamed.get(start.xid)
        if (known is None) != start.first_segment:
            which = "first" if start.first_segment else "further"
            raise UnexpectedMessage("StreamStart", self.state.value, f"a {which} segment of transaction {start.xid}")
        if known is None:
            known = self.streamed[start.xid] = Transaction(start.xid, in_stream=True)
        self.open = known

    def _stream_stop(self, _: StreamStop) -> None:
        self.open = None

    def _stream_commit(self, commit: StreamCommit) -> Transaction:
        transaction = self._streamed(commit)
        transaction.commit_lsn, transaction.end_lsn = commit.commit_lsn, commit.end_lsn
        transaction.commit_time_us = commit.commit_time_us
        handed_over = self._hand_over(transaction)
        self._relations.promote(commit.xid)
        # Another definition may be newer than the one that whoever takes this transaction will hold after it.
        self._unsettled.update(self._announced.pop(commit.xid, ()))
        return handed_over

    def _stream_abort(self, abort: StreamAbort) -> Transaction | None:
        transaction = self.streamed.get(abort.xid)
        if transaction is None:
            return None  # nothing of it came
        if abort.subxid != abort.xid:
            transaction.aborted.add(abort.subxid)
            self._relations.forget(abort.xid)
            return None
        del self.streamed[abort.xid]
        self._announced.pop(abort.xid, None)
        self._relations.forget(abort.xid)
        transaction.ending = Ending.ABORT
        return transaction

    def _stream_prepare(self, prepare: StreamPrepare) -> Transaction:
        transaction = self._streamed(prepare)
        self._announced.pop(prepare.xid, None)
        self._relations.forget(prepare.xid)
        return self._keep(transaction, prepare)

    def _streamed(self, message: StreamCommit | StreamPrepare) -> Transaction:
        transaction = self.streamed.pop(message.xid, None)
        if transaction is None:
            raise UnexpectedMessage(
                type(message).__name__, self.state.value, f"transaction {message.xid} was not streamed"
            )
        return transaction

    # --- prepared transactions ----------------------------------------------------------------------------------------

    def _keep(self, transaction: Transaction, prepare: Prepare | StreamPrepare) -> Transaction:
        transaction.gid, transaction.ending = prepare.gid, Ending.PREPARE
        transaction.commit_lsn, transaction.end_lsn = prepare.prepare_lsn, prepare.end_lsn
        transaction.commit_time_us = prepare.prepare_time_us
        self.prepared[prepare.gid] = transaction
        return transaction

    def _commit_prepared(self, commit: CommitPrepared) -> Transaction:
        prepared = self.prepared.get(commit.gid)
        if prepared is None or prepared.xid != commit.xid:
            reason = f'prepared transaction with identifier "{commit.gid}" and xid {commit.xid} was not received'
            raise UnexpectedMessage("CommitPrepared", self.state.value, reason)
        del self.prepared[commit.gid]
        transaction = replace(
            prepared,
            ending=Ending.COMMIT,
            commit_lsn=commit.commit_lsn,
            end_lsn=commit.end_lsn,
            commit_time_us=commit.commit_time_us,
        )
        handed_over = self._hand_over(transaction)
        # Whoever takes it learns its definitions only now, and they may be older than the session's.
        self._unsettled.update(relation.relation_id for relation in self._relations.session())
        return handed_over

    def _rollback_prepared(self, rollback: RollbackPrepared) -> Transaction | None:
        prepared = self.prepared.get(rollback.gid)
        if prepared is None or prepared.xid != rollback.xid:
            return None  # prepared before the slot was there: it never came, as in apply_handle_rollback_prepared
        del self.prepared[rollback.gid]
        return replace(
            prepared,
            ending=Ending.ROLLBACK_PREPARED,
            commit_lsn=rollback.prepare_end_lsn,
            end_lsn=rollback.rollback_end_lsn,
            commit_time_us=rollback.rollback_time_us,
        )

    # --- what stands inside transactions ------------------------------------------------------------------------------

    def _origin(self, origin: Origin) -> None:
        """It may stand before the transaction's first change only (apply_handle_origin)."""
        transaction = self._opened()
        if transaction.n_rows or any(isinstance(event, Truncate) for _, event in transaction.events):
            raise UnexpectedMessage("Origin", self.state.value, "the transaction has changed rows already")
        transaction.origin_name = origin.name

    def _relation(self, relation: Relation) -> None:
        transaction = self._opened()
        self._relations.update(relation, transaction.xid if transaction.in_stream else None)
        if self.state is not State.IN_TRANSACTION:
            self._announced.setdefault(transaction.xid, set()).add(relation.relation_id)
        transaction.add(relation)

    def _event(self, message: Truncate | LogicalMessage) -> Transaction | None:
        if self.open is not None:
            self.open.add(message)
            return None
        assert isinstance(message, LogicalMessage)  # noqa: S101 - TRANSITIONS has no Truncate outside
        return Transaction.of_message(message)

    def _opened(self) -> Transaction:
        assert self.open is not None  # noqa: S101 - TRANSITIONS: the message comes only where one is open
        return self.open

    def _hand_over(self, transaction: Transaction) -> Transaction:
        """A committed transaction: it carries what must be known of relations before its own definitions."""
        if self._unsettled:
            known = (self._relations.find(relation_id) for relation_id in self._unsettled)
            settled = tuple(relation for relation in known if relation is not None)
            transaction.relations = settled + transaction.relations
            self._unsettled.clear()
        return transaction

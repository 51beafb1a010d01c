"""Assembles a pgoutput stream into whole transactions; a transaction leaves the assembler only when it has ended.

`take` takes many messages at a time. Transactions that hold nothing but rows are found in bulk (`RunFinder`);
otherwise row messages stay undecoded, and the others, the control messages, are decoded one by one (`control`).

A transaction comes whole (Begin … Commit, Begin Prepare … Prepare) or, while it is in progress, in segments between
Stream Start and Stream Stop, in turn with segments of others; then it ends with Stream Commit, Stream Abort or Stream
Prepare. A prepared transaction ends with Commit Prepared or Rollback Prepared.

The table `TRANSITIONS` has the states and the messages that may come in each. Source: the documentation's "Logical
Streaming Replication Protocol"; the `apply_handle_*` functions in PostgreSQL's worker.c.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING

from pgbridge.protocol.codec import messages as m, pgoutput, walsender
from pgbridge.protocol.errors import UnexpectedMessage
from pgbridge.protocol.stream.relations import RelationCache
from pgbridge.protocol.stream.transactions import Ending, RunFinder, Transaction, TransactionRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pgbridge.protocol.bulk.message_array import ChunkedMessages, MessageArray


class State(enum.Enum):
    """The state of the stream; the value completes the sentence "unexpected message while …"."""

    IDLE = "outside a transaction"
    IN_TRANSACTION = "inside a transaction"
    IN_PREPARED = "inside a transaction that is prepared"
    IN_STREAM = "inside a segment of a streamed transaction"


def _inside(state: State) -> dict[type, State]:
    return dict.fromkeys((m.Origin, m.Relation, m.Type, m.Truncate, m.LogicalMessage), state)


TRANSITIONS: dict[State, dict[type, State]] = {
    State.IDLE: {
        m.Begin: State.IN_TRANSACTION,
        m.BeginPrepare: State.IN_PREPARED,
        m.StreamStart: State.IN_STREAM,
        m.StreamCommit: State.IDLE,
        m.StreamAbort: State.IDLE,
        m.StreamPrepare: State.IDLE,
        m.CommitPrepared: State.IDLE,
        m.RollbackPrepared: State.IDLE,
        m.LogicalMessage: State.IDLE,
    },
    State.IN_TRANSACTION: {m.Commit: State.IDLE, **_inside(State.IN_TRANSACTION)},
    State.IN_PREPARED: {m.Prepare: State.IDLE, **_inside(State.IN_PREPARED)},
    State.IN_STREAM: {m.StreamStop: State.IDLE, **_inside(State.IN_STREAM)},
}
"""State -> message -> next state; any other message is a protocol violation."""


class TransactionAssembler:
    """The state of one stream, from START_REPLICATION to its end.

    Args:
        prepared: Transactions that were prepared in an earlier session and have not ended, with their changes.

    Attributes:
        state: The state of the stream.
        open: The transaction being received; None outside of one.
        streamed: Streamed transactions that are in progress, by xid.
        prepared: Prepared transactions that have not ended, by gid.
    """

    def __init__(self, prepared: Iterable[Transaction] = ()) -> None:
        self.state: State = State.IDLE
        self.open: Transaction | None = None
        self.streamed: dict[int, Transaction] = {}
        self.prepared: dict[str | None, Transaction] = {transaction.gid: transaction for transaction in prepared}
        self._relations = RelationCache()
        # The server has announced these relations' definitions, but the transactions handed over so far, taken in
        # order, may tell another one: the next transaction carries the right one.
        self._unsettled: set[int] = set()
        # Those of them that were announced in a transaction that is prepared. What ends meanwhile may be older.
        self._unseen: set[int] = set()
        # By xid: relations announced in transactions that are streamed or being prepared.
        self._announced: dict[int, set[int]] = {}
        self._take: dict[type, Callable[..., Transaction | None]] = {
            m.Begin: self._begin,
            m.Commit: self._commit,
            m.BeginPrepare: self._begin_prepare,
            m.Prepare: self._prepare,
            m.StreamStart: self._stream_start,
            m.StreamStop: self._stream_stop,
            m.StreamCommit: self._stream_commit,
            m.StreamAbort: self._stream_abort,
            m.StreamPrepare: self._stream_prepare,
            m.CommitPrepared: self._commit_prepared,
            m.RollbackPrepared: self._rollback_prepared,
            m.Origin: self._origin,
            m.Relation: self._relation,
            m.Truncate: self._event,
            m.LogicalMessage: self._event,
        }

    def rows(self) -> ChunkedMessages:
        """The open transaction's row messages, to be extended.

        Raises:
            UnexpectedMessage: No transaction is open.
        """
        if self.open is None:
            raise UnexpectedMessage("row", self.state.value)
        return self.open.rows

    def in_progress(self) -> list[Transaction]:
        """Transactions that have changes here and have not ended."""
        streamed = list(self.streamed.values())
        return streamed if self.open is None or self.open.in_stream else [*streamed, self.open]

    def take(self, messages: MessageArray) -> Iterator[Transaction | TransactionRun]:
        """Take messages in the order in which they came, each in its XLogData.

        Yields:
            The transactions that they end, in order; see `control`. Transactions with nothing but rows come as runs.

        Raises:
            UnexpectedMessage: As `control` does; the messages before it have been taken.
            MalformedMessage: A message does not have its tag's form.
            UnsupportedMessage: No protocol version has a message's tag.
        """
        finder = RunFinder(messages)
        at = control = 0
        while control < len(finder.controls):
            index = int(finder.controls[control])
            if at < index:
                self.rows().extend(messages.part(at, index))
            run = finder.run_from(control) if self.state is State.IDLE and not self._unsettled else None
            if run is not None:
                control += 2 * len(run)
                at = int(finder.controls[control - 1]) + 1
                yield run
                continue
            payload = walsender.decode_xlog_data(messages[index]).payload
            ended = self.control(pgoutput.decode(payload, in_stream=self.state is State.IN_STREAM))
            at = index + 1
            control += 1
            if ended is not None:
                yield ended
        if at < len(messages):
            self.rows().extend(messages.part(at))

    def control(self, message: m.Message) -> Transaction | None:
        """Take a message that is not a row's.

        Returns:
            The transaction that the message ended; its `ending` tells how: COMMIT (also at COMMIT PREPARED); PREPARE
            (its changes must be durable before its end may be confirmed); ROLLBACK_PREPARED; ABORT (while it was
            streamed). For a logical message outside of transactions, a transaction of its own. None for every other
            message.

        Raises:
            UnexpectedMessage: The message may not come in this state, or contradicts an earlier one. The state does
                not change.
        """
        state = TRANSITIONS[self.state].get(type(message))
        if state is None:
            raise UnexpectedMessage(type(message).__name__, self.state.value)
        take = self._take.get(type(message))
        ended = take(message) if take else None
        self.state = state
        return ended

    # --- transactions that come whole ---------------------------------------------------------------------------------

    def _begin(self, begin: m.Begin) -> None:
        self.open = Transaction(begin.xid, begin.final_lsn, begin.commit_time_us, unseen=frozenset(self._unseen))
        self._unseen.clear()
        self._settle(self.open)  # by what holds now: it may announce others itself, between its rows

    def _commit(self, commit: m.Commit) -> Transaction:
        transaction = self._opened()
        if commit.commit_lsn != transaction.commit_lsn:
            raise UnexpectedMessage(
                "Commit",
                self.state.value,
                f"incorrect commit LSN {commit.commit_lsn} in commit message (expected {transaction.commit_lsn})",
            )
        self.open = None
        transaction.end_lsn = commit.end_lsn
        return transaction

    def _begin_prepare(self, begin: m.BeginPrepare) -> None:
        transaction = Transaction(begin.xid, begin.prepare_lsn, begin.prepare_time_us, begin.end_lsn, gid=begin.gid)
        # It will be applied later, perhaps by another process: the definitions it relies on are kept with it.
        transaction.relations = self._relations.session()
        self.open = transaction

    def _prepare(self, prepare: m.Prepare) -> Transaction:
        transaction = self._opened()
        began = (transaction.xid, transaction.gid, transaction.commit_lsn, transaction.end_lsn)
        ends = (prepare.xid, prepare.gid, prepare.prepare_lsn, prepare.end_lsn)
        if began != ends:
            raise UnexpectedMessage("Prepare", self.state.value, f"it has {ends}, Begin Prepare had {began}")
        self.open = None
        # From now on the server relies on the definitions that it announced in this transaction.
        announced = self._announced.pop(transaction.xid, set())
        self._unsettled |= announced
        self._unseen |= announced
        return self._keep(transaction, prepare)

    # --- streamed transactions ----------------------------------------------------------------------------------------

    def _stream_start(self, start: m.StreamStart) -> None:
        known = self.streamed.get(start.xid)
        if (known is None) != start.first_segment:
            which = "first" if start.first_segment else "further"
            raise UnexpectedMessage("StreamStart", self.state.value, f"a {which} segment of transaction {start.xid}")
        if known is None:
            known = self.streamed[start.xid] = Transaction(start.xid, in_stream=True)
        self.open = known

    def _stream_stop(self, _: m.StreamStop) -> None:
        self.open = None

    def _stream_commit(self, commit: m.StreamCommit) -> Transaction:
        transaction = self._streamed(commit)
        transaction.commit_lsn, transaction.end_lsn = commit.commit_lsn, commit.end_lsn
        transaction.commit_time_us = commit.commit_time_us
        self._settle(transaction)
        self._relations.promote(commit.xid)
        # A definition announced outside of this transaction may be newer than the one that it carries.
        self._unsettled.update(self._announced.pop(commit.xid, ()))
        return transaction

    def _stream_abort(self, abort: m.StreamAbort) -> Transaction | None:
        transaction = self.streamed.get(abort.xid)
        if transaction is None:
            return None  # none of its changes came
        if abort.subxid != abort.xid:
            transaction.aborted.add(abort.subxid)
            self._relations.forget(abort.xid)
            return None
        del self.streamed[abort.xid]
        self._announced.pop(abort.xid, None)
        self._relations.forget(abort.xid)
        transaction.ending = Ending.ABORT
        return transaction

    def _stream_prepare(self, prepare: m.StreamPrepare) -> Transaction:
        transaction = self._streamed(prepare)
        self._announced.pop(prepare.xid, None)
        self._relations.forget(prepare.xid)
        return self._keep(transaction, prepare)

    def _streamed(self, message: m.StreamCommit | m.StreamPrepare) -> Transaction:
        transaction = self.streamed.pop(message.xid, None)
        if transaction is None:
            raise UnexpectedMessage(
                type(message).__name__, self.state.value, f"transaction {message.xid} was not streamed"
            )
        return transaction

    # --- prepared transactions ----------------------------------------------------------------------------------------

    def _keep(self, transaction: Transaction, prepare: m.Prepare | m.StreamPrepare) -> Transaction:
        transaction.gid, transaction.ending = prepare.gid, Ending.PREPARE
        transaction.commit_lsn, transaction.end_lsn = prepare.prepare_lsn, prepare.end_lsn
        transaction.commit_time_us = prepare.prepare_time_us
        self.prepared[prepare.gid] = transaction
        return transaction

    def _commit_prepared(self, commit: m.CommitPrepared) -> Transaction:
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
        self._settle(transaction)
        # It carries definitions that may be older than the session's.
        self._unsettled.update(relation.relation_id for relation in self._relations.session())
        return transaction

    def _rollback_prepared(self, rollback: m.RollbackPrepared) -> Transaction | None:
        prepared = self.prepared.get(rollback.gid)
        if prepared is None or prepared.xid != rollback.xid:
            return None  # prepared before the slot was made, so it never came: as in apply_handle_rollback_prepared
        del self.prepared[rollback.gid]
        return replace(
            prepared,
            ending=Ending.ROLLBACK_PREPARED,
            commit_lsn=rollback.prepare_end_lsn,
            end_lsn=rollback.rollback_end_lsn,
            commit_time_us=rollback.rollback_time_us,
        )

    # --- messages inside transactions ---------------------------------------------------------------------------------

    def _origin(self, origin: m.Origin) -> None:
        """Take an Origin, which may only come before the transaction's first change (apply_handle_origin)."""
        transaction = self._opened()
        if transaction.n_rows or any(isinstance(event, m.Truncate) for _, event in transaction.events):
            raise UnexpectedMessage("Origin", self.state.value, "the transaction has already changed rows")
        transaction.origin_name = origin.name

    def _relation(self, relation: m.Relation) -> None:
        transaction = self._opened()
        self._relations.update(relation, transaction.xid if transaction.in_stream else None)
        if self.state is not State.IN_TRANSACTION:
            self._announced.setdefault(transaction.xid, set()).add(relation.relation_id)
        transaction.add(relation)

    def _event(self, message: m.Truncate | m.LogicalMessage) -> Transaction | None:
        if self.open is not None:
            self.open.add(message)
            return None
        assert isinstance(message, m.LogicalMessage)  # noqa: S101 - TRANSITIONS: no Truncate outside of transactions
        return Transaction.of_message(message)

    def _opened(self) -> Transaction:
        assert self.open is not None  # noqa: S101 - TRANSITIONS: the message comes only while one is open
        return self.open

    def _settle(self, transaction: Transaction) -> None:
        """Give a transaction, the next one to be handed over, the definitions that must be known before its own."""
        if self._unsettled:
            known = (self._relations.find(relation_id) for relation_id in self._unsettled - self._unseen)
            settled = tuple(relation for relation in known if relation is not None)
            transaction.relations = settled + transaction.relations
            self._unsettled &= self._unseen

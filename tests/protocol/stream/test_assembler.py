"""Messages come only in the states that worker.c allows; a transaction leaves whole, once, and only at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st

from pgbridge.protocol.bulk.message_array import ChunkedMessages, MessageArray
from pgbridge.protocol.codec import messages as m
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.errors import ProtocolError, UnexpectedMessage
from pgbridge.protocol.lsn import INVALID, Lsn
from pgbridge.protocol.stream.assembler import TRANSITIONS, State, TransactionAssembler
from pgbridge.protocol.stream.transactions import ROW_TAGS, Ending, Transaction
from tests import strategies
from tests.protocol.made_stream import BEGIN, COMMIT, EXAMPLES, RELATION, ROW, assembler_in, receive, wrapped

INSIDE = (m.Origin, m.Relation, m.Type, m.Truncate, m.LogicalMessage)
ALLOWED: dict[State, dict[type, State]] = {
    State.IDLE: {
        m.Begin: State.IN_TRANSACTION,
        m.BeginPrepare: State.IN_PREPARED,
        m.StreamStart: State.IN_STREAM,
        **dict.fromkeys((m.StreamCommit, m.StreamAbort, m.StreamPrepare), State.IDLE),
        **dict.fromkeys((m.CommitPrepared, m.RollbackPrepared, m.LogicalMessage), State.IDLE),
    },
    State.IN_TRANSACTION: {m.Commit: State.IDLE, **dict.fromkeys(INSIDE, State.IN_TRANSACTION)},
    State.IN_PREPARED: {m.Prepare: State.IDLE, **dict.fromkeys(INSIDE, State.IN_PREPARED)},
    State.IN_STREAM: {m.StreamStop: State.IDLE, **dict.fromkeys(INSIDE, State.IN_STREAM)},
}
"""Written from the documentation's protocol flow and not from the source."""

NEEDS: dict[type, tuple[m.Message, ...]] = {
    m.StreamCommit: (EXAMPLES[m.StreamStart], m.StreamStop()),
    m.StreamAbort: (EXAMPLES[m.StreamStart], m.StreamStop()),
    m.StreamPrepare: (EXAMPLES[m.StreamStart], m.StreamStop()),
    m.CommitPrepared: (EXAMPLES[m.BeginPrepare], EXAMPLES[m.Prepare]),
    m.RollbackPrepared: (EXAMPLES[m.BeginPrepare], EXAMPLES[m.Prepare]),
}
"""The messages before an example that ends a transaction."""

ENDS = {
    m.Commit: Ending.COMMIT,
    m.StreamCommit: Ending.COMMIT,
    m.StreamAbort: Ending.ABORT,
    m.Prepare: Ending.PREPARE,
    m.StreamPrepare: Ending.PREPARE,
    m.CommitPrepared: Ending.COMMIT,
    m.RollbackPrepared: Ending.ROLLBACK_PREPARED,
}

EVERY_CASE = [
    pytest.param(state, kind, id=f"{kind.__name__}-{state.name.lower()}")
    for state in State
    for kind in get_args(m.Message)
]


@pytest.mark.parametrize(("state", "kind"), EVERY_CASE)
def test_every_message_in_every_state(state, kind):
    """It leads where the protocol says, or is refused by name and state, and leaves the state as it was."""
    following = ALLOWED[state].get(kind)
    if following is None:
        assembler = assembler_in(state)
        with pytest.raises(UnexpectedMessage, match=f"unexpected {kind.__name__} message while {state.value}"):
            assembler.control(EXAMPLES[kind])
        assert assembler.state is state
    else:
        assembler = assembler_in(state, *NEEDS.get(kind, ()))
        ended = assembler.control(EXAMPLES[kind])
        assert assembler.state is following
        alone = kind is m.LogicalMessage and state is State.IDLE
        assert (ended.ending if ended else None) == (Ending.COMMIT if alone else ENDS.get(kind))
    assert (assembler.open is None) == (assembler.state is State.IDLE)


def test_table_is_the_whole_rule():
    """The table has exactly the transitions of `control`."""
    assert TRANSITIONS == ALLOWED


def test_row_tags_are_those_of_the_row_messages():
    rows = (m.Insert, m.Update, m.Delete)
    assert {encode(EXAMPLES[kind])[0] for kind in rows} == ROW_TAGS


def test_rows_need_an_open_transaction():
    assembler = TransactionAssembler()
    with pytest.raises(UnexpectedMessage, match="unexpected row message while outside a transaction"):
        assembler.rows()
    assembler.control(BEGIN)
    assembler.rows().extend(MessageArray.of([ROW]))
    assembler.control(COMMIT)
    with pytest.raises(UnexpectedMessage):
        assembler.rows()


def test_transaction_as_received():
    """Every field is there; the events' positions tell between which rows they came."""
    assembler = TransactionAssembler()
    assembler.control(BEGIN)
    assembler.control(m.Origin(Lsn(0x99), "elsewhere"))
    assembler.control(RELATION)
    rows = assembler.rows()
    rows.extend(MessageArray.of([ROW, ROW]))
    truncate = m.Truncate((16384,), cascade=True)
    assembler.control(truncate)
    rows.extend(MessageArray.of([b"U"]))
    message = m.LogicalMessage(transactional=True, lsn=Lsn(0x1F0), prefix="p", content=b"c")
    assembler.control(message)
    assert assembler.control(COMMIT) == Transaction(
        xid=725,
        commit_lsn=Lsn(0x200),
        commit_time_us=7,
        end_lsn=Lsn(0x230),
        rows=ChunkedMessages([ROW, ROW, b"U"]),
        events=[(0, RELATION), (2, truncate), (3, message)],
        origin_name="elsewhere",
    )


def test_types_are_not_kept():
    """The names of types say nothing that the catalog does not: no event is made of them."""
    assembler = assembler_in(State.IN_TRANSACTION)
    assembler.control(EXAMPLES[m.Type])
    transaction = assembler.control(COMMIT)
    assert transaction is not None
    assert transaction.events == []


def test_end_lsn_is_unknown_until_the_commit():
    """Nobody can confirm, by mistake, a transaction that is still open."""
    assembler = assembler_in(State.IN_TRANSACTION)
    assert assembler.open is not None
    assert assembler.open.end_lsn == INVALID


@pytest.mark.parametrize("commit_lsn", [0x1FF, 0x201, 0x230, 0])
def test_commit_of_another_lsn(commit_lsn):
    """worker.c's error, with both LSNs; the transaction does not leave."""
    assembler = assembler_in(State.IN_TRANSACTION)
    text = rf"incorrect commit LSN 0/{commit_lsn:X} in commit message \(expected 0/200\)"
    with pytest.raises(ProtocolError, match=text):
        assembler.control(m.Commit(0, Lsn(commit_lsn), Lsn(0x230), 7))


@pytest.mark.parametrize("change", ["row", "truncate"])
def test_origin_after_a_change(change):
    """apply_handle_origin: before any actual writes."""
    assembler = assembler_in(State.IN_TRANSACTION)
    assembler.control(RELATION)
    if change == "row":
        assembler.rows().extend(MessageArray.of([ROW]))
    else:
        assembler.control(EXAMPLES[m.Truncate])
    with pytest.raises(UnexpectedMessage, match=r"unexpected Origin message .* has already changed rows"):
        assembler.control(EXAMPLES[m.Origin])


@dataclass(frozen=True)
class Sent:
    """A transaction as a server would send it: its messages between Begin and Commit."""

    begin: m.Begin
    origin: m.Origin | None
    body: list[m.Message]
    commit: m.Commit

    def messages(self) -> list[m.Message]:
        """All of them, in order."""
        return [self.begin, *([self.origin] if self.origin else []), *self.body, self.commit]


def sent(begin: m.Begin, origin: m.Origin | None, body: list[m.Message], end_lsn: Lsn) -> Sent:
    return Sent(begin, origin, body, m.Commit(0, begin.final_lsn, end_lsn, begin.commit_time_us))


# Made once: building strategies takes longer than drawing from them.
SENT = st.builds(
    sent,
    strategies.begins(),
    st.none() | strategies.origins(),
    st.lists(strategies.changes(), max_size=6),
    strategies.lsns(),
)
BETWEEN = st.lists(strategies.logical_messages(), max_size=1)


def expected(source: Sent) -> Transaction:
    """The transaction by another way: picked out of the list, not assembled."""
    is_row = [isinstance(message, m.Insert | m.Update | m.Delete) for message in source.body]
    frames = [wrapped(message) for message, row in zip(source.body, is_row, strict=True) if row]
    events = [
        (sum(is_row[:i]), message)
        for i, message in enumerate(source.body)
        if isinstance(message, m.Relation | m.Truncate | m.LogicalMessage)
    ]
    return Transaction(
        source.begin.xid,
        source.begin.final_lsn,
        source.begin.commit_time_us,
        source.commit.end_lsn,
        ChunkedMessages(frames),
        events,
        source.origin.name if source.origin else None,
    )


@settings(deadline=None)
@given(st.lists(st.tuples(BETWEEN, SENT), max_size=3), st.data())
def test_whole_transactions_in_order(stream, data):
    """From any valid stream, cut anywhere, exactly the transactions whose Commit came have left, each at its Commit."""
    steps = [message for between, source in stream for message in (*between, *source.messages())]
    cut = data.draw(st.integers(0, len(steps)), label="cut")
    assembler = TransactionAssembler()
    left = []
    for message in steps[:cut]:
        finished = receive(assembler, message)
        alone = isinstance(message, m.LogicalMessage) and assembler.open is None
        assert (finished is not None) == (alone or isinstance(message, m.Commit))
        if finished is not None and not alone:
            left.append(finished)
    commits = sum(isinstance(message, m.Commit) for message in steps[:cut])
    assert left == [expected(source) for _, source in stream[:commits]]
    assert (assembler.open is not None) == (assembler.state is State.IN_TRANSACTION)


@settings(deadline=None)
@given(st.lists(strategies.messages(), max_size=12))
def test_any_messages_in_any_order(stream):
    """Nonsense leads to ProtocolError and to nothing else, and never lets a transaction out before its end."""
    assembler = TransactionAssembler()
    for message in stream:
        try:
            finished = receive(assembler, message)
        except ProtocolError:
            return
        assert finished is None or type(message) in {*ENDS, m.LogicalMessage}

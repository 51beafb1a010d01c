"""What may come when, as worker.c has it; and that a transaction leaves whole, once, and only at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import messages as m
from protocol.errors import ProtocolError, UnexpectedMessage
from protocol.lsn import INVALID, Lsn
from protocol.pgoutput import decode, encode
from protocol.transactions import ROW_TAGS, TRANSITIONS, State, Transaction, TransactionAssembler
from protocol.walsender import XLogData, encode_xlog_data
from tests import strategies

BEGIN = m.Begin(Lsn(0x200), 7, 725)
COMMIT = m.Commit(0, Lsn(0x200), Lsn(0x230), 7)
RELATION = m.Relation(16384, "public", "t", "d", (m.Column("id", 23, -1, is_key=True),))
ROW = b"I a row, as it came"

EXAMPLES: dict[type, m.Message] = {
    type(message): message
    for message in (
        BEGIN,
        COMMIT,
        m.Origin(Lsn(1), "elsewhere"),
        RELATION,
        m.Type(16390, "public", "mood"),
        m.Insert(16384, ()),
        m.Update(16384, ()),
        m.Delete(16384, key_tuple=()),
        m.Truncate((16384,)),
        m.LogicalMessage(transactional=False, lsn=Lsn(5), prefix="p", content=b"c"),
        m.StreamStart(725, first_segment=True),
        m.StreamStop(),
        m.StreamCommit(725, 0, Lsn(0x200), Lsn(0x230), 7),
        m.StreamAbort(725, 725),
        m.BeginPrepare(Lsn(0x200), Lsn(0x230), 7, 725, "g"),
        m.Prepare(0, Lsn(0x200), Lsn(0x230), 7, 725, "g"),
        m.CommitPrepared(0, Lsn(0x200), Lsn(0x230), 7, 725, "g"),
        m.RollbackPrepared(0, Lsn(0x200), Lsn(0x230), 7, 7, 725, "g"),
        m.StreamPrepare(0, Lsn(0x200), Lsn(0x230), 7, 725, "g"),
    )
}
"""One message of each class."""

ALLOWED: dict[State, dict[type, State]] = {
    State.IDLE: {m.Begin: State.IN_TRANSACTION, m.LogicalMessage: State.IDLE},
    State.IN_TRANSACTION: {
        m.Commit: State.IDLE,
        m.Origin: State.IN_TRANSACTION,
        m.Relation: State.IN_TRANSACTION,
        m.Type: State.IN_TRANSACTION,
        m.Truncate: State.IN_TRANSACTION,
        m.LogicalMessage: State.IN_TRANSACTION,
    },
}
"""Written from the documentation's protocol flow, for protocol version 1, and not from the source."""

EVERY_CASE = [
    pytest.param(state, kind, id=f"{kind.__name__}-{state.name.lower()}")
    for state in State
    for kind in get_args(m.Message)
]


def assembler_in(state: State) -> TransactionAssembler:
    """A new assembler, brought to a state."""
    assembler = TransactionAssembler()
    if state is State.IN_TRANSACTION:
        assembler.control(BEGIN)
    assert assembler.state is state
    return assembler


@pytest.mark.parametrize(("state", "kind"), EVERY_CASE)
def test_every_message_in_every_state(state, kind):
    """It leads where the protocol says, or is refused by name and state, and leaves the state as it was."""
    assembler = assembler_in(state)
    following = ALLOWED[state].get(kind)
    if following is None:
        with pytest.raises(UnexpectedMessage, match=f"unexpected {kind.__name__} message while {state.value}"):
            assembler.control(EXAMPLES[kind])
        assert assembler.state is state
    else:
        finished = assembler.control(EXAMPLES[kind])
        assert assembler.state is following
        assert (finished is not None) == (kind is m.Commit)
    assert (assembler.open is None) == (assembler.state is State.IDLE)


def test_table_is_the_whole_rule():
    """Whoever reads or draws the table sees what `control` does."""
    assert TRANSITIONS == ALLOWED


def test_row_tags_are_those_of_the_row_messages():
    rows = (m.Insert, m.Update, m.Delete)
    assert {encode(EXAMPLES[kind])[0] for kind in rows} == ROW_TAGS


def test_rows_need_an_open_transaction():
    assembler = TransactionAssembler()
    with pytest.raises(UnexpectedMessage, match="unexpected row message while outside a transaction"):
        assembler.rows()
    assembler.control(BEGIN)
    assembler.rows().append(ROW)
    assembler.control(COMMIT)
    with pytest.raises(UnexpectedMessage):
        assembler.rows()


def test_transaction_as_received():
    """Every field; the events' positions say between which rows they came."""
    assembler = TransactionAssembler()
    assembler.control(BEGIN)
    assembler.control(m.Origin(Lsn(0x99), "elsewhere"))
    assembler.control(RELATION)
    rows = assembler.rows()
    rows += [ROW, memoryview(ROW)]
    truncate = m.Truncate((16384,), cascade=True)
    assembler.control(truncate)
    rows.append(b"U")
    message = m.LogicalMessage(transactional=True, lsn=Lsn(0x1F0), prefix="p", content=b"c")
    assembler.control(message)
    assert assembler.control(COMMIT) == Transaction(
        xid=725,
        commit_lsn=Lsn(0x200),
        commit_time_us=7,
        end_lsn=Lsn(0x230),
        rows=[ROW, ROW, b"U"],
        events=[(0, RELATION), (2, truncate), (3, message)],
        origin_name="elsewhere",
        rows_bytes=2 * len(ROW) + 1,
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
        assembler.rows().append(ROW)
    else:
        assembler.control(EXAMPLES[m.Truncate])
    with pytest.raises(UnexpectedMessage, match=r"unexpected Origin message .* has changed rows already"):
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


def wrapped(message: m.Message) -> bytes:
    """A message as it comes: in XLogData."""
    return encode_xlog_data(XLogData(Lsn(0), Lsn(0), 0, encode(message)))


def receive(assembler: TransactionAssembler, message: m.Message) -> Transaction | None:
    """What the receive loop does with a message."""
    if isinstance(message, m.Insert | m.Update | m.Delete):
        assembler.rows().append(wrapped(message))
        return None
    return assembler.control(decode(encode(message)))


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
        list(frames),
        events,
        source.origin.name if source.origin else None,
        sum(map(len, frames)),
    )


@settings(deadline=None)
@given(st.lists(st.tuples(BETWEEN, SENT), max_size=3), st.data())
def test_whole_transactions_in_order(stream, data):
    """Of any valid stream, cut anywhere, just the transactions whose Commit came have left, each at its Commit."""
    steps = [message for between, source in stream for message in (*between, *source.messages())]
    cut = data.draw(st.integers(0, len(steps)), label="cut")
    assembler = TransactionAssembler()
    left = []
    for message in steps[:cut]:
        finished = receive(assembler, message)
        assert (finished is not None) == isinstance(message, m.Commit)
        if finished is not None:
            left.append(finished)
    commits = sum(isinstance(message, m.Commit) for message in steps[:cut])
    assert left == [expected(source) for _, source in stream[:commits]]
    assert (assembler.open is not None) == (assembler.state is State.IN_TRANSACTION)


@settings(deadline=None)
@given(st.lists(strategies.messages(), max_size=12))
def test_any_messages_in_any_order(stream):
    """Nonsense leads to ProtocolError and to nothing else, and never lets a transaction out before its Commit."""
    assembler = TransactionAssembler()
    for message in stream:
        try:
            finished = receive(assembler, message)
        except ProtocolError:
            return
        assert finished is None or isinstance(message, m.Commit)

"""What may come when, as worker.c has it; and that a transaction leaves whole, once, and only at its end."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import messages as m
from protocol.assembler import TRANSITIONS, State, TransactionAssembler
from protocol.errors import ProtocolError, UnexpectedMessage
from protocol.lsn import INVALID, Lsn
from protocol.message_array import ChunkedMessages, MessageArray
from protocol.pgoutput import decode, encode
from protocol.transactions import ROW_TAGS, Ending, Transaction
from protocol.walsender import HEADER_BYTES, XLogData, encode_xlog_data
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

LEADS_TO = {
    State.IDLE: (),
    State.IN_TRANSACTION: (BEGIN,),
    State.IN_PREPARED: (EXAMPLES[m.BeginPrepare],),
    State.IN_STREAM: (EXAMPLES[m.StreamStart],),
}
NEEDS: dict[type, tuple[m.Message, ...]] = {
    m.StreamCommit: (EXAMPLES[m.StreamStart], m.StreamStop()),
    m.StreamAbort: (EXAMPLES[m.StreamStart], m.StreamStop()),
    m.StreamPrepare: (EXAMPLES[m.StreamStart], m.StreamStop()),
    m.CommitPrepared: (EXAMPLES[m.BeginPrepare], EXAMPLES[m.Prepare]),
    m.RollbackPrepared: (EXAMPLES[m.BeginPrepare], EXAMPLES[m.Prepare]),
}
"""What must have come before the examples that end something."""

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


def assembler_in(state: State, *before: m.Message) -> TransactionAssembler:
    """A new assembler, brought to a state."""
    assembler = TransactionAssembler()
    for message in (*before, *LEADS_TO[state]):
        assembler.control(message)
    assert assembler.state is state
    return assembler


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
    assembler.rows().extend(MessageArray.of([ROW]))
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


def wrapped(message: m.Message) -> bytes:
    """A message as it comes: in XLogData."""
    return encode_xlog_data(XLogData(Lsn(0), Lsn(0), 0, encode(message)))


def receive(assembler: TransactionAssembler, message: m.Message) -> Transaction | None:
    """What the receive loop does with a message."""
    in_stream = assembler.state is State.IN_STREAM
    if isinstance(message, m.Insert | m.Update | m.Delete):
        assembler.rows().extend(MessageArray.of([wrapped(message)]))
        return None
    return assembler.control(decode(encode(message), in_stream=in_stream))


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
    """Of any valid stream, cut anywhere, just the transactions whose Commit came have left, each at its Commit."""
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


# --- streamed and prepared transactions -------------------------------------------------------------------------------


def test_segments_of_two_transactions_in_turn():
    """Each transaction gets its own segments' changes, whatever comes between, and leaves at its own end."""
    assembler = TransactionAssembler()
    for xid, first, row in ((1, True, b"a"), (2, True, b"b"), (1, False, b"c")):
        assembler.control(m.StreamStart(xid, first))
        assembler.rows().extend(MessageArray.of([row]))
        assembler.control(m.StreamStop())
    assert {t.xid: t.rows for t in assembler.in_progress()} == {
        1: ChunkedMessages([b"a", b"c"]),
        2: ChunkedMessages([b"b"]),
    }
    two = assembler.control(m.StreamCommit(2, 0, Lsn(0x300), Lsn(0x330), 9))
    assert two == Transaction(2, Lsn(0x300), 9, Lsn(0x330), rows=ChunkedMessages([b"b"]), in_stream=True)
    one = assembler.control(m.StreamCommit(1, 0, Lsn(0x400), Lsn(0x430), 9))
    assert one is not None
    assert one.rows == ChunkedMessages([b"a", b"c"])
    assert assembler.in_progress() == []


@pytest.mark.parametrize(("xid", "first"), [(1, True), (2, False)])
def test_segment_that_does_not_fit(xid, first):
    """A first segment twice, or a further one of a transaction that never began: something was lost."""
    assembler = assembler_in(State.IDLE, m.StreamStart(1, first_segment=True), m.StreamStop())
    with pytest.raises(UnexpectedMessage, match=f"segment of transaction {xid}"):
        assembler.control(m.StreamStart(xid, first))


def test_commit_of_what_was_not_streamed():
    with pytest.raises(UnexpectedMessage, match="transaction 725 was not streamed"):
        TransactionAssembler().control(EXAMPLES[m.StreamCommit])


def test_aborts():
    """A subtransaction's is noted; the whole transaction's lets it go; one of which nothing came is no matter."""
    assembler = assembler_in(State.IDLE, m.StreamStart(1, first_segment=True), m.StreamStop())
    assert assembler.control(m.StreamAbort(1, 2)) is None
    assert assembler.control(m.StreamAbort(8, 9)) is None
    assert assembler.control(m.StreamAbort(8, 8)) is None
    aborted = assembler.control(m.StreamAbort(1, 1))
    assert aborted is not None
    assert (aborted.ending, aborted.aborted) == (Ending.ABORT, {2})
    assert assembler.in_progress() == []


def test_prepared_and_committed():
    """It leaves twice: with its changes and the LSNs of the prepare, and again with those of the commit."""
    assembler = assembler_in(State.IN_PREPARED)
    assembler.rows().extend(MessageArray.of([ROW]))
    prepared = assembler.control(EXAMPLES[m.Prepare])
    assert prepared is not None
    assert (prepared.gid, prepared.rows, prepared.commit_lsn, prepared.end_lsn) == (
        "g",
        ChunkedMessages([ROW]),
        0x200,
        0x230,
    )
    ended = assembler.control(m.CommitPrepared(0, Lsn(0x500), Lsn(0x530), 11, 725, "g"))
    assert ended is not None
    assert (ended.gid, ended.rows, ended.commit_lsn, ended.end_lsn) == ("g", ChunkedMessages([ROW]), 0x500, 0x530)
    assert (prepared.ending, prepared.commit_lsn) == (Ending.PREPARE, 0x200)
    assert assembler.prepared == {}


def test_prepared_in_an_earlier_session():
    """COMMIT PREPARED finds what was kept."""
    assembler = TransactionAssembler([Transaction(725, gid="g", ending=Ending.PREPARE)])
    ended = assembler.control(EXAMPLES[m.CommitPrepared])
    assert ended is not None
    assert (ended.ending, ended.xid) == (Ending.COMMIT, 725)


@pytest.mark.parametrize(("gid", "xid"), [("other", 725), ("g", 726)])
def test_end_of_a_prepared_transaction_that_did_not_come(gid, xid):
    """A commit of it would lose its changes; a rollback has nothing to take back (apply_handle_rollback_prepared)."""
    assembler = TransactionAssembler([Transaction(725, gid="g", ending=Ending.PREPARE)])
    with pytest.raises(UnexpectedMessage, match=f'identifier "{gid}" and xid {xid} was not received'):
        assembler.control(m.CommitPrepared(0, Lsn(0x500), Lsn(0x530), 11, xid, gid))
    assert assembler.control(m.RollbackPrepared(0, Lsn(0x230), Lsn(0x530), 11, 11, xid, gid)) is None
    assert set(assembler.prepared) == {"g"}


def test_prepare_of_another_transaction_than_began():
    assembler = assembler_in(State.IN_PREPARED)
    with pytest.raises(UnexpectedMessage, match=r"unexpected Prepare message .* Begin Prepare had"):
        assembler.control(m.Prepare(0, Lsn(0x200), Lsn(0x230), 7, 726, "g"))
    assert assembler.state is State.IN_PREPARED


class Server:
    """pgoutput's bookkeeping of what it has announced (`maybe_send_schema`, `cleanup_rel_sync_cache`)."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.assembler = TransactionAssembler()
        self.ended: list[Transaction] = []
        self.version = dict.fromkeys((1, 2, 3), 0)
        self.sent: set[int] = set()
        self.streamed: dict[int, set[int]] = {}
        self.subxids: dict[int, list[int]] = {}
        self.gids: dict[str, int] = {}
        self.lsn = 0
        self.next_xid = 100

    def send(self, message: m.Message) -> None:
        ended = receive(self.assembler, message)
        if ended is not None:
            self.ended.append(replace(ended, rows=ChunkedMessages(ended.rows.messages()), events=list(ended.events)))

    def new(self, counter: str) -> int:
        setattr(self, counter, getattr(self, counter) + 1)
        value: int = getattr(self, counter)
        return value

    def alter(self) -> None:
        """A relation's definition changes: all that was announced of it is void."""
        relation_id = self.rng.choice(sorted(self.version))
        self.version[relation_id] += 1
        self.sent.discard(relation_id)
        for announced in self.streamed.values():
            announced.discard(relation_id)

    def change(self, xid: int | None = None, top: int | None = None) -> None:
        """A row whose only value is the number of columns of the definition it was made under."""
        relation_id = self.rng.choice(sorted(self.version))
        announced = self.sent if top is None else self.streamed[top]
        columns = self.version[relation_id] + 1
        if relation_id not in announced:
            announced.add(relation_id)
            definition = tuple(m.Column(f"c{i}", 23, -1, is_key=False) for i in range(columns))
            self.send(m.Relation(relation_id, "public", f"t{relation_id}", "d", definition, xid))
        self.send(m.Insert(relation_id, (m.Value(m.ValueKind.NULL),) * columns, xid))

    def whole(self, gid: str | None = None) -> None:
        xid, lsn = self.new("next_xid"), self.new("lsn")
        if gid:
            self.send(m.BeginPrepare(Lsn(lsn), Lsn(lsn), 0, xid, gid))
        else:
            self.send(m.Begin(Lsn(lsn), 0, xid))
        for _ in range(self.rng.randint(0, 3)):
            self.change()
        self.send(m.Prepare(0, Lsn(lsn), Lsn(lsn), 0, xid, gid) if gid else m.Commit(0, Lsn(lsn), Lsn(lsn), 0))
        if gid:
            self.gids[gid] = xid

    def segment(self) -> None:
        if self.streamed and self.rng.random() < 0.7:
            top, first = self.rng.choice(sorted(self.streamed)), False
        else:
            top, first = self.new("next_xid"), True
            self.streamed[top], self.subxids[top] = set(), [top]
        self.send(m.StreamStart(top, first))
        for _ in range(self.rng.randint(0, 3)):
            if self.rng.random() < 0.3:
                self.subxids[top].append(self.new("next_xid"))
            self.change(self.subxids[top][-1], top)
        self.send(m.StreamStop())

    def end_streamed(self) -> None:
        if not self.streamed:
            return
        top = self.rng.choice(sorted(self.streamed))
        what = self.rng.choice(("commit", "abort", "prepare", "subabort"))
        lsn = Lsn(self.new("lsn"))
        if what == "subabort":
            if len(self.subxids[top]) > 1:  # the last one: those before it are its parents
                self.send(m.StreamAbort(top, self.subxids[top].pop()))
                self.streamed[top].clear()
            return
        announced = self.streamed.pop(top)
        if what == "commit":
            self.send(m.StreamCommit(top, 0, lsn, lsn, 0))
            self.sent |= announced
        elif what == "abort":
            self.send(m.StreamAbort(top, top))
        else:
            gid = f"g{self.new('next_xid')}"
            self.send(m.StreamPrepare(0, lsn, lsn, 0, top, gid))
            self.gids[gid] = top

    def end_prepared(self) -> None:
        if self.gids:
            gid = self.rng.choice(sorted(self.gids))
            xid, lsn = self.gids.pop(gid), Lsn(self.new("lsn"))
            if self.rng.random() < 0.7:
                self.send(m.CommitPrepared(0, lsn, lsn, 0, xid, gid))
            else:
                self.send(m.RollbackPrepared(0, lsn, lsn, 0, 0, xid, gid))

    def step(self) -> None:
        self.rng.choice(
            (
                self.alter,
                self.whole,
                lambda: self.whole(f"g{self.new('next_xid')}"),
                self.segment,
                self.segment,
                self.end_streamed,
                self.end_prepared,
            )
        )()


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_definitions_reach_whoever_takes_transactions_in_the_order_of_their_ends(seed):
    """Each row is read under the definition that the server made it under.

    Transactions leave in another order than their changes came: with segments in turn, rolled back subtransactions,
    prepared ones that end much later.
    """
    server = Server(random.Random(seed))
    for _ in range(40):
        server.step()
    known: dict[int, m.Relation] = {}
    for transaction in server.ended:
        if transaction.ending is not Ending.COMMIT:
            continue
        known |= {relation.relation_id: relation for relation in transaction.relations}
        for position, row in enumerate(transaction.rows.messages()):
            for event in (event for before, event in transaction.events if before == position):
                if isinstance(event, m.Relation) and event.xid not in transaction.aborted:
                    known[event.relation_id] = event
            insert = decode(row[HEADER_BYTES:], in_stream=transaction.in_stream)
            assert isinstance(insert, m.Insert)
            if insert.xid not in transaction.aborted:
                assert len(known[insert.relation_id].columns) == len(insert.new_tuple)

"""A transaction's counts: its rows, its memory, and its spooled changes.

Taking messages in bulk gives what taking them one by one gives, wherever a turn ends and whatever is wrong.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pgbridge.protocol.bulk.message_array import ROW_OVERHEAD_BYTES, ChunkedMessages, MessageArray
from pgbridge.protocol.codec import messages as m
from pgbridge.protocol.codec.messages import LogicalMessage, Truncate
from pgbridge.protocol.codec.pgoutput import decode, encode
from pgbridge.protocol.codec.walsender import HEADER_BYTES, XLogData, encode_xlog_data
from pgbridge.protocol.errors import ProtocolError
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.assembler import State, TransactionAssembler
from pgbridge.protocol.stream.transactions import Ending, RunFinder, Transaction, TransactionRun
from tests.protocol.singled import singles


@dataclass
class Elsewhere:
    """Where changes were spooled."""

    rows: int


def test_weight():
    """Rows, events and the content of logical messages count."""
    transaction = Transaction(725, rows=ChunkedMessages([b"abc", b"de"]), content_bytes=1000)
    rows_bytes = transaction.rows.memory_bytes
    assert (transaction.rows_bytes, transaction.memory_bytes) == (5, rows_bytes + 1000)
    transaction.events += [(1, Truncate((7,)))] * 3
    assert transaction.memory_bytes == rows_bytes + 1000 + 3 * ROW_OVERHEAD_BYTES


def test_a_logical_message_weighs_what_it_holds():
    """Also outside of transactions, where each is handed over by itself."""
    message = LogicalMessage(transactional=False, lsn=Lsn(5), prefix="p" * 100, content=b"c" * 1_000_000)
    alone = Transaction.of_message(message)
    assert (alone.commit_lsn, alone.end_lsn, alone.events) == (5, 5, [(0, message)])
    assert (alone.rows_bytes, alone.received_bytes) == (0, 1_000_100)
    assert alone.memory_bytes == 1_000_100 + ROW_OVERHEAD_BYTES
    within = Transaction(725, rows=ChunkedMessages([b"abc"]))
    within.add(message)
    assert (within.events, within.received_bytes) == ([(1, message)], 1_000_103)
    within.spool_to(Elsewhere(1))
    assert (within.received_bytes, within.memory_bytes) == (0, 0)


def test_what_was_spooled_weighs_nothing():
    transaction = Transaction(725, rows=ChunkedMessages([b"abc"]))
    message = LogicalMessage(transactional=True, lsn=Lsn(1), prefix="", content=b"")
    transaction.events.append((1, message))
    transaction.spool_to(Elsewhere(1))
    assert (transaction.rows, transaction.events, transaction.memory_bytes) == (ChunkedMessages(), [], 0)
    transaction.rows.extend(MessageArray.of([b"defg"]))
    assert transaction.memory_bytes == ChunkedMessages([b"defg"]).memory_bytes
    assert transaction.n_rows == 2


@pytest.mark.parametrize("ending", Ending)
def test_only_what_committed_has_rows_to_apply(ending):
    """A batch is not filled by transactions that bring nothing."""
    transaction = Transaction(725, rows=ChunkedMessages([b"a"]), spooled=Elsewhere(4), ending=ending)
    assert transaction.n_rows == (5 if ending is Ending.COMMIT else 0)


def wrapped(message: m.Message) -> bytes:
    return encode_xlog_data(XLogData(Lsn(0), Lsn(0), 0, encode(message)))


def row(number: int, xid: int | None = None) -> bytes:
    return wrapped(m.Insert(7, (m.Value(m.ValueKind.TEXT, b"x" * (number % 5)),), xid))


def rows_only(lsn: int, rows: int) -> list[bytes]:
    """A transaction with nothing but rows."""
    begin, commit = m.Begin(Lsn(lsn), lsn + 1, lsn + 2), m.Commit(0, Lsn(lsn), Lsn(lsn + 8), lsn + 1)
    return [wrapped(begin), *(row(n) for n in range(rows)), wrapped(commit)]


def other(lsn: int, rng: random.Random) -> list[bytes]:
    """A transaction, or something, that is not of that form."""
    relation = wrapped(m.Relation(7, "public", "t", "d", (m.Column("c", 25, -1, is_key=False),)))
    message = m.LogicalMessage(transactional=False, lsn=Lsn(lsn), prefix="p", content=b"")
    begin, *rows, commit = rows_only(lsn, 2)
    streamed = [
        wrapped(m.StreamStart(lsn, first_segment=True)),
        row(1, lsn),
        wrapped(m.StreamStop()),
        wrapped(m.StreamCommit(lsn, 0, Lsn(lsn), Lsn(lsn + 8), 0)),
    ]
    choices = [[begin, relation, *rows, commit], [wrapped(message)], streamed, [begin, commit]]
    return rng.choice(choices)


def one_by_one(messages: list[bytes]) -> tuple[list[Transaction], str]:
    """The transactions that `control` returns, and its last error."""
    assembler = TransactionAssembler()
    ended: list[Transaction] = []
    try:
        for message in messages:
            payload = message[HEADER_BYTES:]
            if payload[:1] in b"IUD":
                assembler.rows().extend(MessageArray.of([message]))
            elif transaction := assembler.control(decode(payload, in_stream=assembler.state is State.IN_STREAM)):
                ended.append(transaction)
    except ProtocolError as error:
        return ended, str(error)
    return ended, f"{assembler.state} {assembler.in_progress()}"


def in_turns(messages: list[bytes], rng: random.Random) -> tuple[list[Transaction], str, int]:
    """The transactions that `take` returns, given messages in turns of any size, and how many came in runs."""
    assembler = TransactionAssembler()
    ended: list[Transaction] = []
    in_runs = 0
    try:
        while messages:
            size = rng.choice([1, 3, 10, 100])
            turn, messages = messages[:size], messages[size:]
            for item in assembler.take(MessageArray.of(turn)):
                if isinstance(item, TransactionRun):
                    in_runs += len(item)
                ended += singles(item)
    except ProtocolError as error:
        return ended, str(error), in_runs
    return ended, f"{assembler.state} {assembler.in_progress()}", in_runs


def same(one: list[Transaction], two: list[Transaction]) -> bool:
    """Equal, but for what of relations is told again."""
    fields = ("xid", "commit_lsn", "commit_time_us", "end_lsn", "rows", "events", "rows_bytes", "in_stream", "ending")
    return [[getattr(t, name) for name in fields] for t in one] == [[getattr(t, name) for name in fields] for t in two]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32))
def test_turns_make_no_difference(seed):
    """Also if a message is wrong, missing or in another's place: the transactions before it are handed over."""
    rng = random.Random(seed)
    messages: list[bytes] = []
    for number in range(rng.randint(0, 30)):
        lsn = 0x1000 + 0x10 * number
        messages += rows_only(lsn, rng.choice([0, 1, 1, 4])) if rng.random() < 0.85 else other(lsn, rng)
    if messages and rng.random() < 0.4:
        place = rng.randrange(len(messages))
        spoiled = bytearray(messages[place])
        spoiled[rng.randrange(HEADER_BYTES, len(spoiled))] ^= 0x41
        messages[place : place + 1] = rng.choice(
            [[], [messages[place]] * 2, [bytes(spoiled)], [messages[place] + b"x"]]
        )
    expected, end = one_by_one(messages)
    found, found_end, _ = in_turns(messages, rng)
    assert same(found, expected)
    assert found_end == end


def test_plain_transactions_come_as_one_run():
    """One object for all of them; the one that is open at the end stays."""
    messages = [message for n in range(100) for message in rows_only(0x1000 + 0x10 * n, n % 4)]
    assembler = TransactionAssembler()
    (run,) = assembler.take(MessageArray.of([*messages, rows_only(0x9000, 1)[0], row(1)]))
    assert isinstance(run, TransactionRun)
    assert len(run) == 100
    assert (run.n_rows, run.end_lsn) == (sum(n % 4 for n in range(100)), 0x1000 + 0x10 * 99 + 8)
    assert assembler.rows() == ChunkedMessages([row(1)])


@pytest.mark.parametrize(
    ("place", "offset", "value"),
    [("begin", 1, struct.pack(">Q", 0)), ("commit", 1, b"\1"), ("commit", 2, struct.pack(">Q", 77))],
    ids=["no LSN", "flags", "another LSN"],
)
def test_what_is_not_right_is_left_to_the_strict_way(place, offset, value):
    """The run ends before it, and the error is the assembler's."""
    first, wrong = rows_only(0x1000, 1), rows_only(0x2000, 1)
    index = 0 if place == "begin" else 2
    message = wrong[index]
    wrong[index] = message[: HEADER_BYTES + offset] + value + message[HEADER_BYTES + offset + len(value) :]
    taken: list[Transaction | TransactionRun] = []
    with pytest.raises(ProtocolError):
        taken.extend(TransactionAssembler().take(MessageArray.of([*first, *wrong])))
    run = RunFinder(MessageArray.of([*first, *wrong])).run_from(0)
    assert run is not None
    assert run.xids.tolist() == [0x1002]
    assert RunFinder(MessageArray.of(wrong)).run_from(0) is None


def run_of(*rows: int) -> TransactionRun:
    messages = [message for n, count in enumerate(rows) for message in rows_only(0x100 * (n + 1), count)]
    (run,) = TransactionAssembler().take(MessageArray.of(messages))
    assert isinstance(run, TransactionRun)
    return run


@pytest.mark.parametrize("count", range(1, 6))
def test_split(count):
    """Two runs that together are the one."""
    run = run_of(2, 0, 3, 1, 0)
    head, tail = run.split(count)
    parts = [head, *([tail] if tail else [])]
    assert [len(part) for part in parts] == ([count, 5 - count] if count < 5 else [5])
    assert [t for part in parts for t in singles(part)] == singles(run)
    assert sum(part.rows_bytes for part in parts) == run.rows_bytes
    for part in parts:
        assert part.row_ends.tolist() == np.cumsum(part.rows.lengths).tolist()


def test_reaching():
    """The transaction that reaches the limit is among them; at least one, at most all."""
    run = run_of(2, 0, 3, 1)
    sizes = run.row_ends.tolist()
    assert [run.reaching(rows, 1 << 40) for rows in range(8)] == [1, 1, 1, 3, 3, 3, 4, 4]
    assert [run.reaching(1 << 40, size) for size in (0, sizes[1], sizes[1] + 1, sizes[4], sizes[5], 1 << 40)] == [
        1,
        1,
        3,
        3,
        4,
        4,
    ]


def test_ending_by():
    run = run_of(1, 1, 1)
    ends = [int(lsn) for lsn in run.end_lsns]
    assert [run.ending_by(Lsn(lsn)) for lsn in (0, ends[0] - 1, ends[0], ends[2] - 1, ends[2], 1 << 60)] == [
        0,
        0,
        1,
        2,
        3,
        3,
    ]

"""Streamed and prepared transactions: changes that come in segments, and transactions that end later."""

from __future__ import annotations

import pytest

from pgbridge.protocol.bulk.message_array import ChunkedMessages, MessageArray
from pgbridge.protocol.codec import messages as m
from pgbridge.protocol.errors import UnexpectedMessage
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.assembler import State, TransactionAssembler
from pgbridge.protocol.stream.transactions import Ending, Transaction
from tests.protocol.made_stream import EXAMPLES, ROW, assembler_in


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
    """A subtransaction's abort is recorded, the transaction's ends it, and an unknown one's is ignored."""
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
    """COMMIT PREPARED finds the transaction that was kept."""
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

"""A batch's boundaries, its transactions' ends, their logical messages, and the rounds of its commits."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pgbridge.bridge.batch.batch import Batch, TableChanges
from pgbridge.bridge.batch.batcher import Batcher
from pgbridge.bridge.batch.routes import Routes
from pgbridge.bridge.targets.target import Target
from pgbridge.bridge.track.spool import SpoolFile, SpoolFolder
from pgbridge.protocol.bulk.message_array import ChunkedMessages, MessageArray
from pgbridge.protocol.codec.messages import LogicalMessage
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Ending, Transaction, TransactionRun
from tests.bridge.batch.collected import spill_in

START = Lsn(0x50)


def transaction(number: int, *rows: bytes, **fields: object) -> Transaction:
    """Make transaction `number`, which commits at 100 times its number."""
    made = Transaction(number, Lsn(100 * number), 0, Lsn(100 * number + 8), ChunkedMessages(rows))
    return replace(made, **fields)  # type: ignore[arg-type]


def run(*numbers: int) -> TransactionRun:
    """Make a run of such transactions with a row in each."""
    of_each = np.array(numbers)
    lsns = (100 * of_each).astype(np.uint64)
    rows = MessageArray.of([b"x"] * len(numbers))
    return TransactionRun(of_each, lsns, lsns + 8, of_each, rows, np.arange(len(numbers) + 1), np.cumsum(rows.lengths))


@pytest.mark.parametrize("items", [[transaction(7, b"x")], [run(7)]])
def test_one_transaction_gives_its_xid(items):
    batch = Batch.of(items, START)
    assert (batch.xid, batch.finish_lsn, batch.end_lsn, batch.transactions, batch.rows) == (7, 700, 708, 1, 1)
    assert batch.committed


@pytest.mark.parametrize(
    "items",
    [[transaction(7, b"x"), run(8, 9)], [run(7), transaction(8), transaction(9, b"x", b"y")]],
    ids=["run", "single"],
)
def test_of_several_the_last_one_counts(items):
    batch = Batch.of(items, START)
    assert (batch.xid, batch.finish_lsn, batch.end_lsn, batch.transactions, batch.rows) == (None, 900, 908, 3, 3)
    assert not batch.committed


def test_prepared_transactions_and_their_ends(tmp_path):
    """A prepared transaction's spool file can go when it is committed or rolled back, not before."""
    file = SpoolFile(tmp_path / "7.1", rows=2)
    prepared = transaction(7, gid="g", spooled=file, ending=Ending.PREPARE)
    batch = Batch.of([prepared], START)
    assert (batch.prepared, batch.ended, batch.spools, batch.rows, batch.committed) == ([prepared], [], [], 0, False)
    ended = replace(prepared, ending=Ending.COMMIT)
    batch = Batch.of([ended], START)
    assert (batch.prepared, batch.ended, batch.spools, batch.rows, batch.committed) == ([], [ended], [file], 2, True)
    rolled_back = replace(prepared, ending=Ending.ROLLBACK_PREPARED)
    batch = Batch.of([rolled_back], START)
    assert (batch.ended, batch.spools, batch.rows, batch.committed) == ([rolled_back], [file], 0, False)


def test_the_largest_row_in_memory_and_in_files(tmp_path):
    """With its relation, so that an error can name the table."""

    def row(relation_id: int, size_bytes: int) -> bytes:
        return bytes(HEADER_BYTES) + b"I" + relation_id.to_bytes(4) + bytes(size_bytes)

    spooled = transaction(20, row(7, 300), row(8, 500))
    SpoolFolder(tmp_path).file_for(spooled).append(spooled)
    assert Batch.of([transaction(10, row(5, 10), row(6, 400)), spooled], Lsn(1)).largest_row == (HEADER_BYTES + 505, 8)
    assert Batch.of([transaction(10, row(5, 10), row(6, 400))], Lsn(1)).largest_row == (HEADER_BYTES + 405, 6)
    assert Batch.of([transaction(10)], Lsn(1)).largest_row == (0, 0)


def message(number: int, *, size_bytes: int = 1, xid: int | None = None) -> LogicalMessage:
    content = bytes([number]) * size_bytes
    return LogicalMessage(transactional=True, lsn=Lsn(number), prefix="p", content=content, xid=xid)


def test_logical_messages_come_in_order_from_file_and_memory(tmp_path):
    """Messages of subtransactions that were rolled back are left out."""
    streamed = transaction(7, in_stream=True, aborted={9})
    file = SpoolFolder(tmp_path).file_for(streamed)
    for number, xid in ((1, 7), (2, 8), (3, 9)):
        streamed.add(message(number, xid=xid))
        streamed.rows.extend(MessageArray.of([bytes(HEADER_BYTES) + b"D\0\0\0\7\0\0\0\1K\0\0"]))
        file.append(streamed)
    streamed.add(message(4, xid=7))
    streamed.add(message(5, xid=9))
    alone = Transaction.of_message(message(6))
    silent = transaction(8, b"x")
    batch = Batch.of([streamed, silent, alone], START)
    batch.with_messages += [streamed, alone]
    for _ in range(2):  # for the log and for the table
        assert [(found.xid, told.content[0]) for found, told in batch.messages()] == [(7, 1), (7, 2), (7, 4), (0, 6)]


def test_logical_messages_in_a_file_are_read_one_at_a_time(tmp_path):
    """Python's peak memory shows it."""
    large = transaction(7)
    file = SpoolFolder(tmp_path).file_for(large)
    for number in range(64):
        large.add(message(number, size_bytes=1 << 18))
        file.append(large)
    tracemalloc.start()
    try:
        batch = Batcher("o", Routes({}), lambda _: [], spill=spill_in(tmp_path)).form([large], START)
        read_bytes = sum(len(told.content) for _, told in batch.messages())
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read_bytes == 16 << 20
    assert peak_bytes < 5 << 20


def test_rounds_keep_the_order_of_a_tables_parts_and_end_with_its_last():
    """The last round's commits have the batch's own version in Delta, however many parts a table has."""
    targets = {name: Target("public", name, f"/{name}", ()) for name in "abc"}
    batch = Batch.of([transaction(7)], START)
    batch.tables = [TableChanges(targets[name], (), (), pa.table({"seq": [seq]})) for seq, name in enumerate("aaabcc")]
    found = [[part.changes["seq"].to_pylist()[0] for part in some] for some in batch.commit_rounds()]
    assert found == [[0, 4], [1], [2, 3, 5]]
    assert batch.alters
    batch.tables = batch.tables[2:5]
    assert (len(batch.commit_rounds()), batch.alters) == (1, False)

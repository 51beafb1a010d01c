"""Blocks have the right rows, positions and transactions, and nothing that was rolled back."""

from __future__ import annotations

import pytest

from pgbridge.bridge.batch import decode_block
from pgbridge.bridge.batch.decode_block import DecodeBlock, decode_blocks
from pgbridge.bridge.track.spool import SpoolFolder
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.codec.messages import Column, Insert, LogicalMessage, Relation, Truncate, Value, ValueKind
from pgbridge.protocol.codec.pgoutput import encode
from pgbridge.protocol.codec.walsender import XLogData, encode_xlog_data
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Ending, Transaction

RELATION = Relation(7, "public", "t", "d", (Column("id", 23, -1, is_key=True),))


def row(number: int, xid: int | None = None) -> bytes:
    insert = Insert(7, (Value(ValueKind.TEXT, str(number).encode()),), xid)
    return encode_xlog_data(XLogData(Lsn(1), Lsn(1), 0, encode(insert)))


def transaction(number: int, rows: int, **fields) -> Transaction:
    """Make transaction `number`, which commits at 100 times its number."""
    xid = number if fields.get("in_stream") else None
    made = Transaction(number, Lsn(100 * number), 0, Lsn(100 * number + 8), **fields)
    made.rows.extend(MessageArray.of([row(n, xid) for n in range(rows)]))
    return made


def shape(block: DecodeBlock) -> tuple[list[int], int, int, list[int], bool]:
    """(xids, rows, first_seq, first_rows, in_stream)."""
    return list(block.xids), len(block.rows), block.first_seq, block.first_rows.tolist(), block.in_stream


def test_transactions_of_one_form_are_joined(tmp_path):
    """Streamed and spooled transactions have blocks of their own. Positions count through all blocks."""
    spooled = transaction(4, 3)
    SpoolFolder(tmp_path).file_for(spooled).append(spooled)
    spooled.rows.extend(MessageArray.of([row(3)]))
    some = [
        transaction(1, 2),
        transaction(2, 0),
        transaction(3, 1, in_stream=True),
        spooled,
        transaction(5, 1),
        transaction(6, 2),
    ]
    assert [shape(block) for block in decode_blocks(some)] == [
        ([1, 2], 2, 0, [0, 2, 2], False),
        ([3], 1, 2, [0, 1], True),
        ([4], 3, 3, [0, 3], False),
        ([4], 1, 6, [0, 1], False),
        ([5, 6], 3, 7, [0, 1, 3], False),
    ]


def test_a_block_ends_with_the_transaction_that_fills_it(monkeypatch):
    monkeypatch.setattr(decode_block, "_BLOCK_ROWS", 3)
    transactions = [transaction(number, rows) for number, rows in ((1, 2), (2, 2), (3, 1), (4, 3), (5, 1))]
    assert [shape(block) for block in decode_blocks(transactions)] == [
        ([1, 2], 4, 0, [0, 2, 4], False),
        ([3, 4], 4, 4, [0, 1, 4], False),
        ([5], 1, 8, [0, 1], False),
    ]


@pytest.mark.parametrize("ending", [Ending.PREPARE, Ending.ROLLBACK_PREPARED])
def test_transactions_that_did_not_commit_are_left_out(ending):
    assert list(decode_blocks([transaction(1, 2, ending=ending)])) == []


@pytest.mark.parametrize("spooled", [False, True])
def test_events_stand_before_their_rows(tmp_path, spooled):
    """A transaction's definitions come before its first row. Events of aborted subtransactions are left out."""
    made = transaction(1, 2, in_stream=True, relations=(RELATION,), aborted={9})
    truncate, void = Truncate((7,), xid=1), Truncate((7,), xid=9)
    message = LogicalMessage(transactional=True, lsn=Lsn(5), prefix="p", content=b"", xid=1)
    made.events += [(0, void), (1, truncate), (2, message)]
    if spooled:
        SpoolFolder(tmp_path).file_for(made).append(made)
    (block,) = decode_blocks([made])
    assert block.events == [(0, made, RELATION), (1, made, truncate), (2, made, message)]
    assert block.aborted == [9]


def test_rows_and_transactions_of_a_block():
    """The first row that commits at or after an LSN, and the transaction of a row; one transaction is empty."""
    (block,) = decode_blocks([transaction(1, 2), transaction(2, 0), transaction(3, 1)])
    assert [block.first_row_from(Lsn(lsn)) for lsn in (0, 100, 101, 200, 201, 300, 301)] == [0, 0, 2, 2, 2, 2, 3]
    assert [block.transaction_of(row) for row in range(3)] == [(1, 100), (1, 100), (3, 300)]

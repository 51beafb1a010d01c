"""What a batch says of the transactions that it is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bridge.apply.batch import Batch
from bridge.track.spool import SpoolFile
from protocol.joined import Joined, Rows
from protocol.lsn import Lsn
from protocol.transactions import Ending, Transaction, TransactionRun

START = Lsn(0x50)


def transaction(number: int, *rows: bytes, **fields: object) -> Transaction:
    """The number-th, which commits at 100 times its number."""
    made = Transaction(number, Lsn(100 * number), 0, Lsn(100 * number + 8), Rows(rows))
    return replace(made, **fields)  # type: ignore[arg-type]


def run(*numbers: int) -> TransactionRun:
    """The same, a row in each."""
    of_each = np.array(numbers)
    lsns = (100 * of_each).astype(np.uint64)
    rows = Joined.of([b"x"] * len(numbers))
    return TransactionRun(of_each, lsns, lsns + 8, of_each, rows, np.arange(len(numbers) + 1), np.cumsum(rows.lengths))


def test_without_transactions_it_has_the_recorded_end():
    batch = Batch.of([], START, Lsn(0x60))
    assert (batch.start_lsn, batch.end_lsn, batch.finish_lsn, batch.transactions) == (0x50, 0x60, 0x50, 0)
    assert (batch.xid, batch.committed, batch.alters) == (None, False, False)


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
    """Their files are of no use any more when they have ended."""
    file = SpoolFile(tmp_path / "7.1", rows=2)
    prepared = transaction(7, gid="g", moved=file, ending=Ending.PREPARE)
    batch = Batch.of([prepared], START)
    assert (batch.prepared, batch.ended, batch.spools, batch.rows, batch.committed) == ([prepared], [], [], 0, False)
    ended = replace(prepared, ending=Ending.COMMIT)
    batch = Batch.of([ended], START)
    assert (batch.prepared, batch.ended, batch.spools, batch.rows, batch.committed) == ([], [ended], [file], 2, True)
    rolled_back = replace(prepared, ending=Ending.ROLLBACK_PREPARED)
    batch = Batch.of([rolled_back], START)
    assert (batch.ended, batch.spools, batch.rows, batch.committed) == ([rolled_back], [file], 0, False)

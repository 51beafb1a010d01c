"""A transaction's counts: its rows, its memory, and its spooled changes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from protocol.bulk.message_array import ROW_OVERHEAD_BYTES, ChunkedMessages, MessageArray
from protocol.codec.messages import LogicalMessage, Truncate
from protocol.lsn import Lsn
from protocol.stream.transactions import Ending, Transaction


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

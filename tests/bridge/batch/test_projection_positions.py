"""Ordinals: what counts, in what order, from block to block."""

from __future__ import annotations

import numpy as np

from pgbridge.bridge.batch.decode_block import decode_blocks
from pgbridge.bridge.batch.projection import BlockPositions, Ordinals
from pgbridge.protocol.codec.messages import Insert, LogicalMessage, Truncate
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction
from tests.bridge.batch.streamed import T, batcher, insert, subscribed, text, transaction

TWO = Truncate((1, 2), cascade=False, restart_identity=False)


def positions(*transactions, aborted=None):
    (block,) = decode_blocks(transactions)
    return block, BlockPositions(block, aborted, Ordinals())


def columns(found):
    return {name: array.to_pylist() for name, array in found.items()}


def test_rows_and_truncates_count_within_their_transaction():
    one = transaction(100, insert(1, "a"), insert(2, "b"), TWO)
    other = transaction(200, TWO, insert(3, "c"), TWO, insert(4, "d"))
    other.origin_name, other.commit_time_us = "upstream", 1
    block, made = positions(one, other)
    found = columns(made.of_rows(np.arange(4)))
    assert found["ordinal"] == [0, 1, 2, 5]
    assert found["commit_lsn"] == found["xid"] == [100, 100, 200, 200]
    assert found["origin"] == [None, None, "upstream", "upstream"]
    assert [time.isoformat() for time in found["commit_time"][1:3]] == [
        "2000-01-01T00:00:00+00:00",
        "2000-01-01T00:00:00.000001+00:00",
    ]
    assert len(block.events) == 3
    truncates = [columns(made.of_truncate(event, number)) for event in range(3) for number in (0, 1)]
    assert [found["ordinal"] for found in truncates] == [[2], [3], [0], [1], [3], [4]]
    assert [found["xid"] for found in truncates] == [[100], [100], [200], [200], [200], [200]]


def test_a_message_may_have_the_lsn_of_the_commit_behind_it():
    """One that is not transactional has where its record ends: the TRUNCATE is not the message's."""
    message = Transaction.of_message(LogicalMessage(transactional=False, lsn=Lsn(200), prefix="p", content=b""))
    _, made = positions(message, transaction(200, insert(1, "a"), TWO, insert(2, "b")))
    assert columns(made.of_rows(np.arange(2)))["ordinal"] == [0, 3]
    (number,) = made._truncates
    found = [columns(made.of_truncate(number, table)) for table in (0, 1)]
    assert [(one["ordinal"], one["xid"]) for one in found] == [([1], [200]), ([2], [200])]


def test_rolled_back_rows_do_not_count():
    made = transaction(100, *(insert(key, "a") for key in range(4)))
    _, found = positions(made, aborted=np.array([False, True, True, False]))
    assert columns(found.of_rows(np.array([0, 3])))["ordinal"] == [0, 1]


def test_a_transaction_goes_on_in_the_next_block():
    ordinals = Ordinals()
    made = transaction(100, insert(1, "a"), TWO, insert(2, "b"))
    (block,) = decode_blocks([made])
    counted = [columns(BlockPositions(block, None, ordinals).of_rows(np.arange(2)))["ordinal"] for _ in range(2)]
    assert counted == [[0, 3], [4, 7]]
    (other,) = decode_blocks([transaction(200, insert(1, "a"))])
    assert columns(BlockPositions(other, None, ordinals).of_rows(np.arange(1)))["ordinal"] == [0]


def test_they_are_made_only_for_targets_that_keep_every_change():
    batch = batcher(subscribed(T)).form([transaction(100, T, Insert(1, (text(1), text("a"))))], 0)
    assert "ordinal" not in batch.tables[0].changes.column_names

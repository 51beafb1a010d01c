"""What a stream tells the server, and what it does when more waits than it may hold."""

from __future__ import annotations

import time

import pytest

from bridge.errors import PublisherError
from bridge.source.slot_stream import _LeavingQueue, _Unconfirmed, waited
from protocol.lsn import INVALID, Lsn
from protocol.messages import LogicalMessage
from protocol.transactions import Transaction


def test_a_position_is_told_once():
    progress = _Unconfirmed(Lsn(100))
    assert progress.durable_lsn == INVALID
    progress.keepalive(Lsn(500), in_transaction=False)
    progress.transaction(Lsn(600))
    assert (progress.durable_lsn, progress.passed_lsn) == (INVALID, Lsn(600))
    progress.confirm(Lsn(300))
    assert (progress.durable_lsn, progress.durable_lsn) == (Lsn(300), INVALID)


def test_a_full_queue_leaves_once():
    left = []
    queue = _LeavingQueue(1000, lambda: left.append(1))
    assert queue.wait_for_room(0.01)
    queue.put(Transaction.of_message(LogicalMessage(False, Lsn(7), "p", bytes(2000))))
    assert not queue.wait_for_room(0.01)
    assert not queue.wait_for_room(0.01)
    assert (left, queue.full) == ([1], True)


class _InUse(Exception):
    sqlstate = "55006"


def test_only_a_slot_in_use_is_waited_for():
    tries = []

    def begin() -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise PublisherError("slot is active for PID 7") from _InUse()

    waited(begin, 10)
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(PublisherError, match="active for PID 7; waited for 0 s"):
        waited(begin, 0)

    def refuse() -> None:
        raise PublisherError("no")

    with pytest.raises(PublisherError, match="no"):
        waited(refuse, 10)

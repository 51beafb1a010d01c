"""How long the next batch waits for others to join; all else of it is tested with the worker."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pgbridge.bridge.apply import next_batch
from pgbridge.bridge.apply.next_batch import Growth, NextBatch
from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.batch.growing_batch import GrowingBatch
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.track.progress import Progress
from pgbridge.protocol.bulk.message_array import ChunkedMessages
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction


class Batcher:
    """Forms batches without changes."""

    may_filter = False

    def attempt(self, transactions, start_lsn):
        return Batch.of(transactions, start_lsn)


@pytest.fixture
def following():
    """A batch that grows from a queue."""
    batcher: Any = Batcher()
    queue, progress = TransactionQueue(1 << 20), Progress(Lsn(0))
    return NextBatch(queue, progress, batcher, BatchLimits(100, 1 << 20, 0.0), Growth(), most=lambda: None)


def put(following, number, *, committed_s=0, rows=1):
    transaction = Transaction(number, Lsn(100 * number - 8), committed_s * 1_000_000, Lsn(100 * number))
    transaction.rows = ChunkedMessages([b"x"] * rows)
    following.queue.put(transaction)


def form(following):
    items = following.take(0.0, applied=None)
    if items:
        following.form(items)
    return following.complete(waited_for=True)


@pytest.mark.parametrize(("may_filter", "together"), [(False, 1), (True, 3)])
def test_runs_are_larger_where_rows_are_filtered_here(following, monkeypatch, may_filter, together):
    """A query for their filters takes hardly longer for more rows."""
    monkeypatch.setattr(next_batch, "_RUN_ROWS", 10)
    monkeypatch.setattr(next_batch, "_FILTERED_RUN_ROWS", 30)
    following.batcher.may_filter = may_filter
    for number in range(1, 6):
        put(following, number, rows=10)
    assert len(following.take(0.0, applied=lambda: False)) == together


@pytest.mark.parametrize("behind_s", [0, 60])
def test_only_a_stream_that_is_far_behind_is_waited_for(following, monkeypatch, behind_s):
    """An idle stream's first transaction does not wait; while catching up, more may come within a moment."""
    monkeypatch.setattr(next_batch, "_PAUSE_S", 1.0)
    following.progress.server_time_us = (1 + behind_s) * 1_000_000
    put(following, 1, committed_s=1)
    assert not form(following)
    started_s = time.monotonic()  # before the timer's start, whose time would count else
    threading.Timer(0.5, put, (following, 2), {"rows": 1000}).start()
    assert form(following) == (behind_s == 0)
    assert (time.monotonic() - started_s < 0.5) == (behind_s == 0)
    assert following.pop().transactions == (1 if behind_s == 0 else 2)


@pytest.fixture
def later(following):
    """The same with a first batch behind it, and an age that transactions wait for."""
    put(following, 1)
    assert not form(following)
    assert form(following)
    assert following.pop().transactions == 1
    following.limits = BatchLimits(100, 1 << 20, 0.5)
    return following


def put_later(following, number, after_s=0.02):
    threading.Timer(after_s, put, (following, number)).start()


def take_idle(following):
    following.form(following.take(60.0, applied=None))


def test_a_transaction_alone_waits_no_longer_than_its_age(later):
    put(later, 2)
    take_idle(later)
    put_later(later, 3, 0.5)
    assert form(later)
    assert later.pop().transactions == 1


def test_a_burst_of_an_idle_stream_is_one_batch(later):
    """It is waited for until a pause comes."""
    put(later, 2)
    put(later, 3)
    take_idle(later)
    for number in (4, 5):
        put_later(later, number)
        assert not form(later)
    assert form(later)
    assert later.pop().transactions == 4


def test_no_burst_is_waited_for_after_a_batch_that_was_applied_meanwhile(later):
    put(later, 2)
    put(later, 3)
    assert later.take(0.0, applied=lambda: True) == []
    later.form(later.queue.take(later.limits, 5.0))
    put_later(later, 4, 0.5)
    assert form(later)
    assert later.pop().transactions == 2


def test_a_burst_that_does_not_end_is_waited_for_no_longer_than_five_ages(later):
    put(later, 2)
    put(later, 3)
    take_idle(later)
    started_s, number = time.monotonic(), 4
    while True:
        put_later(later, number)
        if form(later):
            break
        number += 1
    assert 1.75 < time.monotonic() - started_s < 30.0
    assert later.pop().transactions >= 5


def test_the_first_batch_waits_for_a_longer_pause(following):
    """Even for one that follows a transaction alone."""
    following.limits = BatchLimits(100, 1 << 20, 0.1)
    put(following, 1)
    take_idle(following)
    put_later(following, 2, 0.1)
    assert not form(following)
    assert form(following)
    assert following.pop().transactions == 2


def test_a_stream_far_behind_is_waited_for_as_long_as_it_sends(following, monkeypatch):
    """Less than a run in each pause, but more and more; then nothing."""
    monkeypatch.setattr(next_batch, "_PAUSE_S", 0.5)
    following.progress.server_time_us = 60_000_000
    put(following, 1, committed_s=1)
    assert not form(following)
    for number in (2, 3, 4):
        threading.Timer(0.01, put, (following, number), {"committed_s": 1}).start()
        assert not form(following)
    assert form(following)
    assert following.pop().transactions == 4


def test_a_stream_that_has_caught_up_is_not_waited_for(following, monkeypatch):
    """Forming took some seconds, and what came meanwhile is recent: it joins, and nothing else is waited for."""
    monkeypatch.setattr(next_batch, "_PAUSE_S", 0.1)
    following.progress.server_time_us = 60_000_000
    put(following, 1, committed_s=50)
    assert not form(following)
    put_later(following, 2, 0.5)
    following.queue.put(recent := Transaction(3, Lsn(292), 59_500_000, Lsn(300)))
    assert recent.commit_time_us == 59_500_000
    assert form(following)
    assert following.pop().transactions == 2


def test_a_keepalive_after_the_last_transaction_ends_the_wait(following, monkeypatch):
    """The server has sent all, however old it is: nothing is to come."""
    monkeypatch.setattr(next_batch, "_PAUSE_S", 60.0)
    following.progress.server_time_us = 60_000_000
    put(following, 1, committed_s=1)
    following.progress.transaction(Lsn(100))
    assert not form(following)
    following.progress.keepalive(Lsn(150), in_transaction=False)
    started_s = time.monotonic()
    assert form(following)
    assert time.monotonic() - started_s < 30.0


def test_what_is_there_joins_before_it_is_closed(following):
    put(following, 1)
    assert not form(following)
    put(following, 2)
    put(following, 3)
    assert form(following)
    assert following.pop().transactions == 3
    assert not following.there


def test_a_stream_far_behind_is_not_waited_for_for_ever(following, monkeypatch):
    monkeypatch.setattr(next_batch, "_GROW_S", 0.0)
    put(following, 1)
    assert form(following)
    assert not following.complete(waited_for=False)


def test_a_batch_that_is_applied_ends_the_wait(following):
    put(following, 1)
    applied = threading.Event()

    def end():
        applied.set()
        following.queue.wake()

    threading.Timer(0.1, end).start()
    started_s = time.monotonic()
    assert following.take(60.0, applied=applied.is_set) == []
    assert time.monotonic() - started_s < 30.0


def test_a_message_outside_of_transactions_has_no_age(following, monkeypatch):
    """Nor has a transaction whose time is not known: it is not taken for one of the year 2000."""
    monkeypatch.setattr(next_batch, "_PAUSE_S", 60.0)
    following.progress.server_time_us = 10**15
    put(following, 1)
    started_s = time.monotonic()
    assert not form(following)
    assert form(following)
    assert time.monotonic() - started_s < 30.0


def test_batches_do_not_join_before_the_origin_has_passed_the_failed_one():
    growth = Growth()
    growth.failed(Lsn(100), Lsn(200))
    assert not growth.may_join(Lsn(199))
    assert growth.may_join(Lsn(200))
    assert growth.may_join(Lsn(0)), "a later stream begins anew"


def test_after_each_failure_they_stay_apart_for_twice_as_long():
    growth = Growth()
    for expected in (200, 300, 500):
        growth.failed(Lsn(100), Lsn(200))
        assert growth.apart_until_lsn == expected
    growth.apart(Lsn(50))
    assert growth.apart_until_lsn == 500


def test_what_cannot_be_folded_is_applied_apart_the_next_time(following, monkeypatch):
    """Whatever the reason is: memory, say."""

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(GrowingBatch, "join", fails)
    put(following, 1)
    form(following)
    put(following, 2)
    with pytest.raises(MemoryError):
        form(following)
    assert following.growth.apart_until_lsn == 200


def test_no_batch_goes_over_a_fence(following):
    """Also one that is taken in one piece with what comes after; from there on batches join as ever."""
    following.growth.fence(Lsn(250))
    following.growth.fence(Lsn(200))
    for number in (1, 2, 3, 4):
        put(following, number)
    ends = []
    while form(following) or following.there or following.in_pieces:
        if following.complete(waited_for=True) or not following.in_pieces:
            ends.append(int(following.pop().end_lsn))
            following.progress.durable(Lsn(ends[-1]))
    assert ends == [200, 400]

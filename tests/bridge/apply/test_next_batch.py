"""How long the next batch waits for others to join; all else of it is tested with the worker.

Its time is virtual: a wait of the queue passes at once, and what is to happen during it happens.
"""

from __future__ import annotations

from typing import Any

import pytest

from pgbridge.bridge.apply import next_batch
from pgbridge.bridge.apply.next_batch import Growth, NextBatch
from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.batch.growing_batch import GrowingBatch
from pgbridge.bridge.receive.stream import queue as transaction_queue
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


class VirtualTime:
    """A clock, and the condition that the queue waits for: nobody waits, what is planned happens in the order of time.

    Attributes:
        now_s: What the clock says.
    """

    def __init__(self):
        self.now_s = 1000.0
        self._planned = []

    def monotonic(self):
        return self.now_s

    def after(self, delay_s, action, *args, **kwargs):
        """Plan what happens while somebody waits."""
        self._planned.append((self.now_s + delay_s, lambda: action(*args, **kwargs)))
        self._planned.sort(key=lambda planned: planned[0])

    def wait(self, timeout_s):
        until_s = self.now_s + timeout_s
        if self._planned and self._planned[0][0] <= until_s:
            self.now_s, action = self._planned.pop(0)
            action()
        else:
            self.now_s = until_s

    def notify_all(self):
        """Nobody else waits."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.fixture
def clock(monkeypatch):
    virtual = VirtualTime()
    monkeypatch.setattr(next_batch, "time", virtual)
    monkeypatch.setattr(transaction_queue, "time", virtual)
    return virtual


@pytest.fixture
def following(clock):
    """A batch that grows from a queue."""
    batcher: Any = Batcher()
    queue, progress = TransactionQueue(1 << 20), Progress(Lsn(0))
    queue._changed = clock
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
def test_only_a_stream_that_is_far_behind_is_waited_for(following, clock, behind_s):
    """An idle stream's first transaction does not wait; while catching up, more may come within a moment."""
    following.progress.server_time_us = (1 + behind_s) * 1_000_000
    put(following, 1, committed_s=1)
    assert not form(following)
    clock.after(0.1, put, following, 2, rows=1000)
    assert form(following) == (behind_s == 0)
    assert clock.now_s == 1000.0 + (0.0 if behind_s == 0 else 0.1)
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


def take_idle(following):
    following.form(following.take(60.0, applied=None))


def test_a_transaction_alone_waits_no_longer_than_its_age(later, clock):
    put(later, 2)
    take_idle(later)
    clock.after(0.5, put, later, 3)
    assert form(later)
    assert later.pop().transactions == 1


def test_a_burst_of_an_idle_stream_is_one_batch(later, clock):
    """It is waited for until a pause comes."""
    put(later, 2)
    put(later, 3)
    take_idle(later)
    for number in (4, 5):
        clock.after(0.02, put, later, number)
        assert not form(later)
    assert form(later)
    assert later.pop().transactions == 4


def test_no_burst_is_waited_for_after_a_batch_that_was_applied_meanwhile(later, clock):
    put(later, 2)
    put(later, 3)
    assert later.take(0.0, applied=lambda: True) == []
    later.form(later.queue.take(later.limits, 5.0))
    clock.after(0.5, put, later, 4)
    assert form(later)
    assert later.pop().transactions == 2


def test_a_burst_that_does_not_end_is_waited_for_no_longer_than_five_ages(later, clock):
    put(later, 2)
    put(later, 3)
    take_idle(later)
    started_s, number = clock.now_s, 4
    while True:
        clock.after(0.02, put, later, number)
        if form(later):
            break
        number += 1
    assert clock.now_s - started_s == pytest.approx(2.0, abs=0.3)
    assert later.pop().transactions >= 5


def test_the_first_batch_waits_for_a_longer_pause(following, clock):
    """Even for one that follows a transaction alone."""
    following.limits = BatchLimits(100, 1 << 20, 0.1)
    put(following, 1)
    take_idle(following)
    clock.after(0.1, put, following, 2)
    assert not form(following)
    assert form(following)
    assert following.pop().transactions == 2


def test_a_stream_far_behind_is_waited_for_as_long_as_it_sends(following, clock):
    """Less than a run in each pause, but more and more; then nothing."""
    following.progress.server_time_us = 60_000_000
    put(following, 1, committed_s=1)
    assert not form(following)
    for number in (2, 3, 4):
        clock.after(0.19, put, following, number, committed_s=1)
        assert not form(following)
    assert form(following)
    assert following.pop().transactions == 4


def test_a_stream_that_has_caught_up_is_not_waited_for(following, clock):
    """Forming took some seconds, and what came meanwhile is recent: it joins, and nothing else is waited for."""
    following.progress.server_time_us = 60_000_000
    put(following, 1, committed_s=50)
    assert not form(following)
    clock.after(0.5, put, following, 2)
    following.queue.put(recent := Transaction(3, Lsn(292), 59_500_000, Lsn(300)))
    assert recent.commit_time_us == 59_500_000
    assert form(following)
    assert following.pop().transactions == 2


def test_a_keepalive_after_the_last_transaction_ends_the_wait(following, clock):
    """The server has sent all, however old it is: nothing is to come."""
    following.progress.server_time_us = 60_000_000
    put(following, 1, committed_s=1)
    following.progress.transaction(Lsn(100))
    assert not form(following)
    following.progress.keepalive(Lsn(150), in_transaction=False)
    waited_since_s = clock.now_s
    assert form(following)
    assert clock.now_s == waited_since_s


def test_what_is_there_joins_before_it_is_closed(following):
    put(following, 1)
    assert not form(following)
    put(following, 2)
    put(following, 3)
    assert form(following)
    assert following.pop().transactions == 3
    assert not following.there


def test_a_stream_far_behind_is_not_waited_for_for_ever(following, clock):
    put(following, 1)
    following.form(following.take(0.0, applied=None))
    clock.now_s += 29.0
    assert not following.complete(waited_for=True)
    clock.now_s += 1.0
    assert following.complete(waited_for=True)
    assert not following.complete(waited_for=False)


def test_a_batch_that_is_applied_ends_the_wait(following, clock):
    put(following, 1)
    ended: list[str] = []
    clock.after(0.1, ended.append, "the batch before")
    assert following.take(60.0, applied=lambda: bool(ended)) == []
    assert clock.now_s == pytest.approx(1000.1)


def test_a_message_outside_of_transactions_has_no_age(following, clock):
    """Nor has a transaction whose time is not known: it is not taken for one of the year 2000."""
    following.progress.server_time_us = 10**15
    put(following, 1)
    assert not form(following)
    assert form(following)
    assert clock.now_s == 1000.0


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

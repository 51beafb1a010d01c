"""Batches are whole transactions in order, within their limits; nothing is lost, whatever ends or stalls."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.track.progress import Progress
from pgbridge.protocol.bulk.message_array import ChunkedMessages, MessageArray
from pgbridge.protocol.codec.messages import LogicalMessage
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction, TransactionRun
from tests.protocol.singled import singles

if TYPE_CHECKING:
    from collections.abc import Sequence

MANY = 1 << 40
SOON_S = 0.05
"""Long enough to see that something does not happen."""

PATIENCE_S = 10.0
"""How long a thread may take to do what it will do; never waited for when it works."""

AT_ONCE = BatchLimits(MANY, MANY, 0)
WHEN_FULL_2 = BatchLimits(2, MANY, PATIENCE_S)
NO_LIMITS = BatchLimits(MANY, MANY, PATIENCE_S)


def transaction(number: int, rows: int = 1, row_bytes: int = 10) -> Transaction:
    """The number-th transaction of a stream; it ends at 100 times its number."""
    end_lsn = Lsn(100 * number)
    return Transaction(number, Lsn(end_lsn - 8), 0, end_lsn, ChunkedMessages([bytes(row_bytes)] * rows))


def queue_of(*transactions: Transaction, max_bytes: int = MANY) -> TransactionQueue:
    queue = TransactionQueue(max_bytes)
    for item in transactions:
        queue.put(item)
    return queue


def numbers(items: Sequence[Transaction | TransactionRun]) -> list[int]:
    return [t.xid for item in items for t in singles(item)]


def taken(found: tuple[Sequence[Transaction | TransactionRun], bool]) -> tuple[list[int], bool]:
    """What `take_until` returned, with numbers for transactions."""
    items, complete = found
    return numbers(items), complete


def later(action, *arguments, after_s: float = SOON_S) -> threading.Timer:
    """Do something in another thread, soon."""
    timer = threading.Timer(after_s, action, arguments)
    timer.start()
    return timer


# --- limits -----------------------------------------------------------------------------------------------------------


def test_nothing_in_time():
    started_s = time.monotonic()
    assert queue_of().take(AT_ONCE, SOON_S) == []
    assert time.monotonic() - started_s >= SOON_S


def test_batch_ends_with_the_transaction_that_reaches_the_rows():
    queue = queue_of(transaction(1, rows=3), transaction(2, rows=3), transaction(3, rows=1))
    limits = BatchLimits(5, MANY, 0)
    assert numbers(queue.take(limits, 0)) == [1, 2]
    assert numbers(queue.take(limits, 0)) == [3]


def test_batch_ends_with_the_transaction_that_reaches_the_bytes():
    queue = queue_of(*(transaction(n, rows=1, row_bytes=1000) for n in range(1, 5)))
    limits = BatchLimits(MANY, 2500, 0)
    assert numbers(queue.take(limits, 0)) == [1, 2, 3]
    assert numbers(queue.take(limits, 0)) == [4]


def test_exact_limit_is_full():
    queue = queue_of(transaction(1, rows=2), transaction(2, rows=2))
    assert numbers(queue.take(WHEN_FULL_2, 0)) == [1]
    assert numbers(queue.take(WHEN_FULL_2, 0)) == [2]


def test_transaction_larger_than_every_limit_passes_alone():
    queue = queue_of(transaction(1, rows=1000), transaction(2), max_bytes=100)
    assert numbers(queue.take(BatchLimits(10, 100, PATIENCE_S), 0)) == [1]


def test_waits_for_a_full_batch():
    """With lag a batch is as large as its limits, not as small as what happens to be there."""
    queue = queue_of(transaction(1))
    timer = later(queue.put, transaction(2))
    assert numbers(queue.take(WHEN_FULL_2, PATIENCE_S)) == [1, 2]
    timer.join()


def test_age_ends_the_wait():
    """A lone transaction is taken once it is old enough, long before the timeout, and not earlier."""
    queue = queue_of(transaction(1))
    started_s = time.monotonic()
    assert numbers(queue.take(BatchLimits(MANY, MANY, SOON_S), PATIENCE_S)) == [1]
    assert SOON_S * 0.8 <= time.monotonic() - started_s < PATIENCE_S / 2


def test_age_counts_from_the_first_transaction():
    """A trickle of others does not put it off."""
    queue = queue_of(transaction(1))
    time.sleep(SOON_S)
    queue.put(transaction(2))
    assert numbers(queue.take(BatchLimits(MANY, MANY, SOON_S), 0)) == [1, 2]


def test_young_transaction_stays_when_the_timeout_ends_first():
    queue = queue_of(transaction(1))
    limits = BatchLimits(MANY, MANY, PATIENCE_S)
    assert queue.take(limits, 0.01) == []
    assert numbers(queue.take(AT_ONCE, 0)) == [1]


def test_full_only_goes_on_growing():
    """While a batch is applied the next one is formed only when it cannot grow: age does not matter."""
    queue = queue_of(transaction(1))
    assert queue.take(BatchLimits(2, MANY, 0), 0.01, full_only=True) == []
    queue.put(transaction(2))
    assert numbers(queue.take(BatchLimits(2, MANY, 0), 0.01, full_only=True)) == [1, 2]


def test_full_queue_is_a_full_batch():
    """Or the receiver would wait for room and the applier for more, both for ever."""
    queue = queue_of(transaction(1, row_bytes=1000), transaction(2, row_bytes=1000), max_bytes=2000)
    assert not queue.wait_for_room(0)
    assert numbers(queue.take(BatchLimits(MANY, MANY, PATIENCE_S), 0, full_only=True)) == [1, 2]


def test_empty_transactions_fill_the_queue_as_well():
    """Transactions whose tables are truncated, or only messages, have no rows; a million of them have a weight."""
    queue = TransactionQueue(max_bytes=10_000)
    put = 0
    while queue.wait_for_room(0):
        put += 1
        queue.put(transaction(put, rows=0))
        assert put < 1000
    assert len(queue.take(BatchLimits(MANY, MANY, PATIENCE_S), 0)) == put
    assert queue.wait_for_room(0)


@settings(deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), max_size=30),
    max_rows=st.integers(1, 10),
    max_bytes=st.integers(1, 1500),
)
def test_batches_partition_the_stream(sizes, max_rows, max_bytes):
    """All of it in order, and each batch is the shortest that reaches a limit, or the rest."""
    transactions = [transaction(n, rows, size) for n, (rows, size) in enumerate(sizes, 1)]
    queue = queue_of(*transactions)
    batches = []
    while batch := queue.take(BatchLimits(max_rows, max_bytes, 0), 0):
        batches.append(batch)
    assert [item for batch in batches for item in batch] == transactions
    for number, batch in enumerate(batches, 1):
        totals = [
            (sum(len(item.rows) for item in batch[:count]), sum(item.rows_bytes for item in batch[:count]))
            for count in range(len(batch) + 1)
        ]
        assert all(rows < max_rows and size < max_bytes for rows, size in totals[:-1])
        assert number == len(batches) or totals[-1][0] >= max_rows or totals[-1][1] >= max_bytes


# --- backpressure -----------------------------------------------------------------------------------------------------


def test_logical_messages_fill_the_queue_and_the_batch():
    """By what they hold."""
    large = [
        Transaction.of_message(LogicalMessage(transactional=False, lsn=Lsn(n), prefix="p", content=b"c" * 1000))
        for n in range(1, 6)
    ]
    assert queue_of(*large, max_bytes=10_000).wait_for_room(0)
    queue = queue_of(*large, max_bytes=5000)
    assert not queue.wait_for_room(0)
    assert queue.take(BatchLimits(1000, 2000, 0), 0) == large[:2]


def test_room_comes_back_with_taking():
    queue = queue_of(transaction(1, row_bytes=1000), max_bytes=1000)
    assert not queue.wait_for_room(0)
    timer = later(queue.take, AT_ONCE, 0)
    assert queue.wait_for_room(PATIENCE_S)
    timer.join()


def test_room_comes_back_with_take_until():
    queue = queue_of(transaction(1, row_bytes=1000), max_bytes=1000)
    timer = later(queue.take_until, Lsn(100), lambda: Lsn(100), NO_LIMITS, 0)
    assert queue.wait_for_room(PATIENCE_S)
    timer.join()


def test_put_never_blocks():
    """A receiver that holds a transaction in its hands must be able to put it down."""
    queue = queue_of(transaction(1), max_bytes=1)
    queue.put(transaction(2))
    assert numbers(queue.take(AT_ONCE, 0)) == [1, 2]


def test_two_threads_lose_nothing():
    """A receiver that waits for room and an applier that takes: all arrives, in order, and the queue stays bounded."""
    queue = TransactionQueue(max_bytes=20_000)
    count = 3000
    held: list[int] = []

    def receive() -> None:
        for n in range(1, count + 1):
            while not queue.wait_for_room(PATIENCE_S):
                pass
            queue.put(transaction(n, rows=n % 3))
            held.append(queue._bytes)
        queue.fail(PublisherError("the end"))

    thread = threading.Thread(target=receive)
    thread.start()
    taken: list[Transaction | TransactionRun] = []

    def apply() -> None:
        while True:
            taken.extend(queue.take(BatchLimits(50, 5000, 0.001), PATIENCE_S))

    with pytest.raises(PublisherError, match="the end"):
        apply()
    thread.join()
    assert numbers(taken) == list(range(1, count + 1))
    assert max(held) < 20_000 + 1000
    assert queue._bytes == 0


# --- failure ----------------------------------------------------------------------------------------------------------


def test_failure_comes_after_what_was_received():
    queue = queue_of(transaction(1), transaction(2))
    queue.fail(PublisherError("the stream was lost"))
    limits = BatchLimits(1, MANY, PATIENCE_S)
    assert numbers(queue.take(limits, 0)) == [1]
    assert numbers(queue.take(limits, 0)) == [2]
    for _ in range(2):
        with pytest.raises(PublisherError, match="the stream was lost"):
            queue.take(limits, PATIENCE_S)


def test_failure_while_a_batch_is_applied():
    """The rest is not a full batch: it waits for its time, and the failure comes after it."""
    queue = queue_of(transaction(1))
    queue.fail(PublisherError("the stream was lost"))
    assert queue.take(WHEN_FULL_2, 0.01, full_only=True) == []
    assert numbers(queue.take(WHEN_FULL_2, 0)) == [1]


def test_failure_ends_the_wait_for_more():
    """No more can come: what is there is a batch, however young and small."""
    queue = queue_of(transaction(1))
    timer = later(queue.fail, PublisherError("the stream was lost"))
    assert numbers(queue.take(WHEN_FULL_2, PATIENCE_S)) == [1]
    timer.join()


def test_failure_wakes_a_waiting_take():
    queue = queue_of()
    timer = later(queue.fail, PublisherError("the stream was lost"))
    started_s = time.monotonic()
    with pytest.raises(PublisherError):
        queue.take(AT_ONCE, PATIENCE_S)
    assert time.monotonic() - started_s < PATIENCE_S / 2
    timer.join()


# --- a batch whose boundaries are recorded ----------------------------------------------------------------------------


def test_take_until_takes_up_to_the_end():
    """The transaction that ends there is in the batch, the next is not."""
    queue = queue_of(*(transaction(n, rows=1000) for n in (1, 2, 3)))
    assert taken(queue.take_until(Lsn(200), lambda: Lsn(300), NO_LIMITS, 0)) == ([1, 2], True)
    assert numbers(queue.take(AT_ONCE, 0)) == [3]


@pytest.mark.parametrize("in_run", [False, True])
def test_take_until_goes_by_where_a_commit_begins(in_run):
    """As the server does: a stream from the end on would not have the second one, whose record is from 192 to 200."""
    queue = queue_of(*([run(1, 1, 1, 1)] if in_run else map(transaction, (1, 2, 3))))
    for end, expected in ((192, [1]), (193, [2]), (200, []), (300, [3])):
        assert taken(queue.take_until(Lsn(end), lambda: Lsn(300), NO_LIMITS, 0)) == (expected, True)


def test_take_until_waits_for_the_rest():
    """The stream is not there yet: nothing is taken, and what was put stays in its place."""
    queue = queue_of(transaction(1))
    assert queue.take_until(Lsn(200), lambda: Lsn(100), NO_LIMITS, 0.01) == ([], False)
    assert numbers(queue.take(AT_ONCE, 0)) == [1]


def test_take_until_sees_the_rest_come():
    """As the receiver does it: the transaction first, then the position, which a keepalive's `wake` makes seen."""
    queue = queue_of(transaction(1))
    progress = Progress(Lsn(50))
    progress.transaction(Lsn(100))

    def receive() -> None:
        queue.put(transaction(2))
        progress.transaction(Lsn(200))
        queue.wake()

    timer = later(receive)
    started_s = time.monotonic()
    found = queue.take_until(Lsn(200), lambda: progress.passed_lsn, NO_LIMITS, PATIENCE_S)
    assert taken(found) == ([1, 2], True)
    assert time.monotonic() - started_s < PATIENCE_S / 2
    timer.join()


def test_take_until_when_the_stream_no_longer_has_them():
    """They were confirmed before the crash, or their publication is gone: a keepalive passes the end, nothing comes."""
    queue = queue_of()
    progress = Progress(Lsn(50))
    assert queue.take_until(Lsn(200), lambda: progress.passed_lsn, NO_LIMITS, 0.01) == ([], False)
    progress.keepalive(Lsn(250), in_transaction=False)
    queue.wake()
    assert queue.take_until(Lsn(200), lambda: progress.passed_lsn, NO_LIMITS, 0.01) == ([], True)


def test_take_until_fails_only_when_more_is_needed():
    queue = queue_of(transaction(1), transaction(2))
    queue.fail(PublisherError("the stream was lost"))
    assert taken(queue.take_until(Lsn(100), lambda: Lsn(200), NO_LIMITS, 0)) == ([1], True)
    with pytest.raises(PublisherError, match="the stream was lost"):
        queue.take_until(Lsn(300), lambda: Lsn(200), NO_LIMITS, PATIENCE_S)
    assert numbers(queue.take(AT_ONCE, 0)) == [2]


def test_take_until_of_a_batch_larger_than_the_queue():
    """Or than the limits: it comes in parts, so that the queue has room for the rest."""
    queue = queue_of(transaction(1, row_bytes=1000), max_bytes=1000)
    assert not queue.wait_for_room(0)
    assert taken(queue.take_until(Lsn(200), lambda: Lsn(100), NO_LIMITS, 0.01)) == ([1], False)
    assert queue.wait_for_room(0)
    queue.put(transaction(2, row_bytes=1000))
    queue.put(transaction(3, row_bytes=1000))
    assert taken(queue.take_until(Lsn(200), lambda: Lsn(300), WHEN_FULL_2, 0)) == ([2], True)
    assert not queue.wait_for_room(0)


def test_take_until_in_parts_up_to_the_limits():
    """The same parts as `take` makes of the same stream."""
    queue = queue_of(*(transaction(n, rows=2) for n in range(1, 6)))
    limits = BatchLimits(3, MANY, 0)
    assert taken(queue.take_until(Lsn(500), lambda: Lsn(300), limits, 0)) == ([1, 2], False)
    assert taken(queue.take_until(Lsn(500), lambda: Lsn(500), limits, 0)) == ([3, 4], False)
    assert taken(queue.take_until(Lsn(500), lambda: Lsn(500), limits, 0)) == ([5], True)


def test_a_wait_ends_when_it_is_told():
    """A batch that was applied ends the wait for the next one to be full."""
    queue = queue_of(transaction(1))
    told = threading.Event()

    def tell() -> None:
        told.set()
        queue.wake()

    timer = later(tell)
    started_s = time.monotonic()
    assert queue.take(WHEN_FULL_2, PATIENCE_S, full_only=True, until=told.is_set) == []
    assert time.monotonic() - started_s < PATIENCE_S / 2
    timer.join()


# --- runs of transactions ---------------------------------------------------------------------------------------------


def run(first: int, *rows: int) -> TransactionRun:
    """Transactions `first`, `first + 1`, … of a stream, as one run; the number-th ends at 100 times its number."""
    numbers_ = np.arange(first, first + len(rows))
    return TransactionRun(
        numbers_,
        (100 * numbers_ - 8).astype(np.uint64),
        (100 * numbers_).astype(np.uint64),
        np.zeros(len(rows), np.int64),
        MessageArray.of([bytes(10)] * sum(rows)),
        np.cumsum([0, *rows]),
        np.cumsum([10] * sum(rows)),
    )


def test_a_batch_ends_within_a_run():
    """With the transaction that reaches the limit; the rest of the run is the next batch's beginning."""
    queue = TransactionQueue(MANY)
    queue.put(run(1, 2, 0, 3, 1))
    queue.put(transaction(5))
    limits = BatchLimits(3, MANY, 0)
    assert numbers(queue.take(limits, SOON_S)) == [1, 2, 3]
    assert numbers(queue.take(limits, SOON_S)) == [4, 5]
    assert queue.take(limits, SOON_S) == []
    assert (queue._rows, queue._bytes, queue._memory_bytes) == (0, 0, 0)


def test_a_recorded_batch_ends_within_a_run():
    queue = TransactionQueue(MANY)
    queue.put(run(1, 1, 1, 1, 1))
    passed = Lsn(400)
    assert taken(queue.take_until(Lsn(250), lambda: passed, NO_LIMITS, 0)) == ([1, 2], True)
    assert taken(queue.take_until(Lsn(300), lambda: passed, NO_LIMITS, 0)) == ([3], True)
    assert taken(queue.take_until(Lsn(350), lambda: passed, NO_LIMITS, 0)) == ([], True)
    assert numbers(queue.take(AT_ONCE, SOON_S)) == [4]

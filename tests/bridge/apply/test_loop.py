"""The loop over batches: with scripted parts, so that each decision is seen alone."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from bridge import log
from bridge.apply.loop import ApplyLoop, Stream
from bridge.errors import PublisherError
from bridge.receive.queue import BatchLimits, TransactionQueue
from bridge.track.catalog import BatchIntent, Catalog, catalog_path
from bridge.track.progress import Progress
from protocol.lsn import Lsn
from protocol.transactions import Transaction

LIMITS = BatchLimits(max_rows=10, max_bytes=1 << 20, max_age_s=0.0)


class Parts:
    """A loop whose former and applier only write down what they are given."""

    def __init__(self, tmp_path, *, remote_lsn=100, hurry=False):
        self.catalog = Catalog(catalog_path(tmp_path))
        self.catalog.register("sub", enabled=True)
        self.catalog.create_origin("sub", Lsn(remote_lsn), "inc", [])
        self.queue = TransactionQueue(1 << 20)
        self.progress = Progress(Lsn(remote_lsn))
        self.applied = []
        self.asked = 0
        self.in_a_hurry = hurry
        self.until = Lsn(0)
        self.apply_gate = threading.Event()
        self.apply_gate.set()
        self.failure = None
        self.progress_count = 0

    def put(self, end_lsn, rows=1):
        """What the receiver does with a transaction."""
        transaction = Transaction(end_lsn, Lsn(end_lsn - 1), 0, Lsn(end_lsn), rows=[b"x"] * rows, rows_bytes=rows)
        self.queue.put(transaction)
        self.progress.transaction(transaction.end_lsn)

    # Control
    def going_on(self, progress):
        return progress.durable_lsn < self.until

    def report(self, _progress):
        return True

    def progressed(self):
        self.progress_count += 1

    # BatchFormer, BatchApplier, WalReceiver
    def form(self, transactions, start_lsn, end_lsn=None):
        end_lsn = end_lsn or transactions[-1].end_lsn
        ends = [int(transaction.end_lsn) for transaction in transactions]
        return SimpleNamespace(
            start_lsn=start_lsn, end_lsn=end_lsn, ends=ends, transactions=len(ends), rows=len(ends), tables=[]
        )

    def apply(self, batch):
        self.apply_gate.wait(10)
        if self.failure is not None:
            raise self.failure
        self.catalog.begin_batch("sub", BatchIntent(batch.start_lsn, batch.end_lsn))
        self.applied.append((int(batch.start_lsn), int(batch.end_lsn), batch.ends))
        self.catalog.finish_batch("sub", batch.end_lsn)

    def ask_for_position(self):
        self.asked += 1

    def run(self, until):
        self.until = Lsn(until)
        parts: Any = self  # stands in for the receiver, the former and the applier
        stream = Stream(parts, self.queue, self.progress)
        loop = ApplyLoop("sub", stream, parts, parts, self.catalog, limits=LIMITS, control=parts, log=log.get("sub"))
        loop.run()


@pytest.fixture
def parts(tmp_path):
    """Parts at LSN 100."""
    made = Parts(tmp_path)
    yield made
    made.catalog.close()


def test_batches_follow_each_other_without_a_gap(parts):
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn, rows=8)
    parts.run(until=130)
    assert parts.applied[0][0] == 100
    assert [end for _, end, _ in parts.applied] == [start for start, _, _ in parts.applied[1:]] + [130]
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110, 120, 130]
    assert parts.catalog.remote_lsn("sub") == parts.progress.durable_lsn == 130


def test_a_keepalive_moves_the_origin_when_there_is_nothing_to_apply(parts):
    parts.put(110)
    parts.progress.keepalive(Lsn(500), in_transaction=False)
    parts.run(until=500)
    assert parts.applied == [(100, 110, [110])]
    assert parts.catalog.remote_lsn("sub") == 500


def test_the_next_batch_begins_where_a_keepalive_moved_to(parts):
    parts.progress.keepalive(Lsn(500), in_transaction=False)
    parts.run(until=500)
    parts.put(600)
    parts.run(until=600)
    assert parts.applied == [(500, 600, [600])]


def test_a_begun_batch_is_formed_again_with_its_boundaries(parts):
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn)
    parts.run(until=130)
    assert parts.applied == [(100, 120, [110, 120]), (120, 130, [130])]


def test_a_begun_batch_ends_even_if_its_last_transaction_is_no_longer_sent(parts):
    """The publication changed meanwhile: what is left of the batch is applied, and its end is kept."""
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
    parts.put(110)
    parts.put(130)
    parts.run(until=130)
    assert parts.applied == [(100, 120, [110]), (120, 130, [130])]


def test_a_failed_stream_is_raised_after_what_came_before_it(parts):
    parts.put(110)
    parts.queue.fail(PublisherError("gone", retry=True))
    with pytest.raises(PublisherError, match="gone"):
        parts.run(until=200)
    assert parts.applied == [(100, 110, [110])]


def test_a_failed_batch_is_raised_and_nothing_after_it_is_applied(parts):
    parts.failure = RuntimeError("no")
    parts.put(110)
    parts.put(120)
    with pytest.raises(RuntimeError, match="no"):
        parts.run(until=120)
    assert parts.catalog.remote_lsn("sub") == 100
    assert parts.progress.durable_lsn == 100


def test_a_full_batch_is_formed_while_another_is_applied(parts):
    parts.apply_gate.clear()
    formed = threading.Event()
    form = parts.form

    def watched(transactions, *arguments):
        if transactions[0].end_lsn == 120:
            formed.set()
        return form(transactions, *arguments)

    parts.form = watched
    parts.put(110, rows=10)
    parts.put(120, rows=10)
    runner = threading.Thread(target=parts.run, args=(120,))
    runner.start()
    assert formed.wait(5), "the second batch waited for the first to be applied"
    assert parts.applied == []
    parts.apply_gate.set()
    runner.join(5)
    assert [end for _, end, _ in parts.applied] == [110, 120]


def test_the_server_is_asked_only_in_a_hurry(tmp_path):
    parts = Parts(tmp_path, hurry=True)
    threading.Timer(0.4, lambda: parts.progress.keepalive(Lsn(200), in_transaction=False)).start()
    parts.run(until=200)
    assert parts.asked >= 1
    parts.catalog.close()

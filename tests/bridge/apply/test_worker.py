"""The loop over batches: with scripted parts, so that each decision is seen alone."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from bridge import log
from bridge.apply import next_batch
from bridge.apply.batch.batch import Batch
from bridge.apply.batch.table_changes import TableChanges
from bridge.apply.next_batch import Growth
from bridge.apply.target.target import Target, TargetColumn, target_schema
from bridge.apply.worker import ApplyWorker, Stream
from bridge.errors import ApplyContext, ApplyError, OutcomeUnknown, PublisherError
from bridge.receive.queue import BatchLimits, TransactionQueue
from bridge.track import catalog as catalog_module
from bridge.track.catalog import Catalog, catalog_path
from bridge.track.catalog_rows import BatchIntent
from bridge.track.progress import Progress
from protocol.lsn import Lsn
from protocol.message_array import ChunkedMessages
from protocol.transactions import Transaction
from protocol.values.types import resolve

LIMITS = BatchLimits(max_rows=10, max_bytes=1 << 20, max_age_s=0.0)
TARGET = Target("public", "t", "/t", target_schema([("id", pa.int64())]))
COLUMNS = (TargetColumn("id", resolve(20, -1)),)


SCHEMA = pa.schema([("seq", pa.int64()), ("op", pa.int16()), ("old", pa.int16()), ("new_0", pa.int64())])


def changes_of(ends):
    """An INSERT for each transaction."""
    rows = [{"seq": n, "op": ord("I"), "old": 0, "new_0": end} for n, end in enumerate(ends)]
    return TableChanges(TARGET, COLUMNS, (0,), pa.Table.from_pylist(rows, schema=SCHEMA))


@dataclass(slots=True)
class MadeBatch(Batch):
    """A batch that knows which of its transactions change columns."""

    altering: Any = ()

    @property
    def alters(self):
        return any(self.start_lsn < end <= self.end_lsn for end in self.altering)


class Parts:
    """A loop whose batcher and applier only write down what they are given."""

    def __init__(self, tmp_path, *, remote_lsn=100, hurry=False):
        self.catalog = Catalog(catalog_path(tmp_path))
        self.catalog.register("sub", enabled=True)
        self.catalog.create_origin("sub", Lsn(remote_lsn), "inc", [])
        self.queue = TransactionQueue(1 << 20)
        self.progress = Progress(Lsn(remote_lsn))
        self.applied = []
        self.ends = {}
        self.attempts = []
        self.rewound = []
        self.skipped = []
        self.undone = self.fenced = 0
        self.undecodable = set()  # by the ends of transactions
        self.unappliable = set()
        self.without_changes = set()
        self.altering = set()
        self.passed_over = []
        self.opened_again = 0
        self.asked = 0
        self.wants_keepalive = hurry
        self.until = Lsn(0)
        self.growth = Growth()
        self.apply_gate = threading.Event()
        self.apply_gate.set()
        self.failure = None
        self.progress_count = 0
        self.reports = []  # answers to come; then it is always to go on

    def put(self, end_lsn, rows=1):
        """What the receiver does with a transaction."""
        transaction = Transaction(end_lsn, Lsn(end_lsn - 1), 0, Lsn(end_lsn), rows=ChunkedMessages([b"x"] * rows))
        self.ends[end_lsn] = None
        self.queue.put(transaction)
        self.progress.transaction(transaction.end_lsn)

    # Control
    def should_continue(self, progress):
        return progress.durable_lsn < self.until

    def report(self, _progress):
        return self.reports.pop(0) if self.reports else True

    def origin_advanced(self):
        self.progress_count += 1

    # Batcher, Applier, WalReceiver
    def attempt(self, transactions, start_lsn, end_lsn=None):
        batch = MadeBatch.of(transactions, start_lsn, end_lsn)
        batch.altering = self.altering
        ends = [int(transaction.end_lsn) for transaction in transactions]
        if changing := [end for end in ends if end not in self.without_changes]:
            batch.tables = [changes_of(changing)]
        if bad := next((t for t in transactions if int(t.end_lsn) in self.undecodable), None):
            batch.error = ApplyError("undecodable", ApplyContext("o", bad.commit_lsn, bad.xid))
        return batch

    def ends_of(self, batch):
        """The ends of a batch's transactions."""
        return [end for end in self.ends if batch.start_lsn < end <= batch.end_lsn]

    def rewind(self, batch):
        self.rewound.append(int(batch.start_lsn))

    def forget_plan(self, batch):
        self.passed_over.append(int(batch.start_lsn))

    def reload(self):
        self.opened_again += 1

    def apply(self, batch, *, clear_skip_lsn=None):
        self.apply_gate.wait(10)
        ends = self.ends_of(batch)
        self.attempts.append(ends)
        if self.failure is not None:
            raise self.failure
        self.catalog.begin_batch("sub", BatchIntent(batch.start_lsn, batch.end_lsn))
        if self.unappliable.intersection(ends):
            self.undo()
            xid = ends[0] if len(ends) == 1 else None
            raise ApplyError("unappliable", ApplyContext("o", batch.finish_lsn, xid))
        self.applied.append((int(batch.start_lsn), int(batch.end_lsn), ends))
        self.catalog.finish_batch("sub", batch.end_lsn, clear_skip_lsn=clear_skip_lsn)

    def skip(self, batch, skip_lsn, folder):
        assert self.catalog.batch("sub") is None
        self.skipped.append(self.ends_of(batch))
        self.catalog.finish_batch("sub", batch.end_lsn, clear_skip_lsn=skip_lsn)
        return folder

    def undo(self, *, fence=False):
        if self.catalog.batch("sub") is not None:
            self.undone += 1
            self.fenced += fence
            self.catalog.begin_undo("sub")
            self.catalog.finish_undo("sub")

    def request_keepalive(self):
        self.asked += 1

    def run(self, until):
        self.until = Lsn(until)
        parts: Any = self  # stands in for the receiver, the batcher and the applier
        stream = Stream(parts, self.queue, self.progress, self.growth)
        loop = ApplyWorker("sub", stream, parts, parts, self.catalog, limits=LIMITS, control=parts, log=log.get("sub"))
        return loop.run()


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


def test_a_stop_before_all_of_a_begun_batch_has_come_leaves_it_standing(parts):
    """Whatever has come: the rest of it is not applied as another batch, and the next life applies it as it was."""
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
    parts.reports = [False]  # DISABLE, which is seen once; the turn after it would go on
    parts.put(110)
    parts.run(until=110)
    assert parts.applied == []
    assert parts.catalog.batch("sub") == BatchIntent(Lsn(100), Lsn(120))
    assert parts.progress.durable_lsn == parts.catalog.remote_lsn("sub") == 100
    parts.put(120)
    parts.run(until=120)
    assert parts.applied == [(100, 120, [110, 120])]


def test_nothing_is_confirmed_that_the_catalog_has_not_stored(parts):
    """An intent that stands keeps the origin where it is, whatever the server says."""
    parts.progress.keepalive(Lsn(500), in_transaction=False)
    parts.catalog.advance_origin = lambda *_: parts.reports.append(False)  # stores nothing, and has the loop end
    parts.run(until=500)
    assert parts.progress.durable_lsn == 100
    assert parts.progress_count == 0


def test_a_failed_stream_is_raised_after_what_came_before_it(parts):
    parts.put(110)
    parts.queue.fail(PublisherError("gone", retry=True))
    with pytest.raises(PublisherError, match="gone"):
        parts.run(until=200)
    assert parts.applied == [(100, 110, [110])]


def test_what_the_server_had_told_before_the_stream_failed_is_recorded(parts):
    """The next stream begins there: perhaps beyond what ended this one."""
    parts.put(110)
    parts.progress.streamed(Lsn(150))
    parts.queue.fail(PublisherError("gone", retry=True))
    with pytest.raises(PublisherError, match="gone"):
        parts.run(until=200)
    assert parts.applied == [(100, 110, [110])]
    assert parts.catalog.remote_lsn("sub") == parts.progress.durable_lsn == 150


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
    attempt = parts.attempt

    def watched(transactions, *arguments):
        if transactions[0].end_lsn == 120:
            formed.set()
        return attempt(transactions, *arguments)

    parts.attempt = watched
    parts.put(110, rows=10)
    parts.put(120, rows=10)
    runner = threading.Thread(target=parts.run, args=(120,))
    runner.start()
    assert formed.wait(5), "the second batch waited for the first to be applied"
    assert parts.applied == []
    parts.apply_gate.set()
    runner.join(5)
    assert [end for _, end, _ in parts.applied] == [110, 120]


def test_a_keepalive_is_requested_only_if_it_is_wanted(tmp_path):
    parts = Parts(tmp_path, hurry=True)
    threading.Timer(0.4, lambda: parts.progress.keepalive(Lsn(200), in_transaction=False)).start()
    parts.run(until=200)
    assert parts.asked >= 1
    parts.catalog.close()


# --- what cannot be applied -------------------------------------------------------------------------------------------

ENDS = tuple(range(110, 210, 10))


@pytest.mark.parametrize("bad", ENDS)
@pytest.mark.parametrize("kind", ["undecodable", "unappliable"])
def test_what_comes_before_a_bad_transaction_is_applied_and_it_is_named(parts, kind, bad):
    """Wherever it stands; nothing after it is applied, nothing before it is applied twice."""
    getattr(parts, kind).add(bad)
    for end_lsn in ENDS:
        parts.put(end_lsn)
    with pytest.raises(ApplyError) as raised:
        parts.run(until=ENDS[-1])
    assert raised.value.context.finish_lsn == bad - 1
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [end for end in ENDS if end < bad]
    assert parts.catalog.batch("sub") is None
    assert parts.catalog.remote_lsn("sub") == parts.progress.durable_lsn == bad - 10
    assert len(parts.attempts) <= 9  # and not one for each transaction


def test_a_batch_that_fails_once_is_applied_in_parts(parts):
    """Whatever it was: all of it lands, in order."""
    attempts = iter([ApplyError("once", ApplyContext("o", Lsn(199)))])
    apply = parts.apply

    def first_fails(batch, **arguments):
        error = next(attempts, None)
        if error is not None:
            raise error
        apply(batch, **arguments)

    parts.apply = first_fails
    for end_lsn in ENDS:
        parts.put(end_lsn)
    parts.run(until=ENDS[-1])
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == list(ENDS)
    assert [len(ends) for _, _, ends in parts.applied] == [5, 5]


def test_what_was_formed_behind_a_failed_batch_is_formed_again(parts):
    """In its place, and under the relations of that place."""
    parts.unappliable.add(130)
    parts.apply_gate.clear()
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn, rows=3)
    parts.put(140, rows=10)
    parts.put(150, rows=10)
    threading.Timer(0.6, parts.apply_gate.set).start()
    with pytest.raises(ApplyError):
        parts.run(until=150)
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110, 120]
    assert parts.rewound[:2] == [140, 100]
    parts.unappliable.clear()
    parts.applied.clear()
    for end_lsn in (130, 140, 150):  # the next life's stream
        parts.put(end_lsn, rows=3)
    parts.progress.durable_lsn = parts.catalog.remote_lsn("sub")
    parts.run(until=150)
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [130, 140, 150]


def test_after_an_error_the_next_transaction_is_tried_alone(parts):
    """Others are not applied and undone again and again with it."""
    parts.catalog.record_error("sub", "no", counter="apply", finish_lsn=Lsn(109))
    parts.unappliable.add(110)
    for end_lsn in ENDS:
        parts.put(end_lsn)
    with pytest.raises(ApplyError):
        parts.run(until=ENDS[-1])
    assert parts.attempts == [[110]]
    assert parts.undone == 1


def test_a_batch_of_unknown_outcome_is_left_as_it_is(parts):
    parts.failure = OutcomeUnknown("gone", ApplyContext("o", Lsn(119)))
    for end_lsn in (110, 120):
        parts.put(end_lsn)
    with pytest.raises(OutcomeUnknown):
        parts.run(until=120)
    assert parts.attempts == [[110, 120]]
    assert parts.undone == 0


def test_an_undo_that_was_begun_is_ended_first(parts):
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
    parts.catalog.begin_undo("sub")
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn)
    parts.run(until=130)
    assert (parts.undone, parts.fenced) == (1, 1)
    assert parts.opened_again == 1
    assert parts.applied == [(100, 130, [110, 120, 130])]


def test_a_batch_that_changes_columns_is_undone_and_formed_anew(parts):
    """Whether it did when it was begun, or only does now."""
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120), alters=True))
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn)
    parts.run(until=130)
    assert (parts.undone, parts.opened_again) == (1, 1)
    assert parts.applied == [(100, 130, [110, 120, 130])]
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(130), Lsn(150)))
    parts.altering.add(150)
    for end_lsn in (140, 150):
        parts.put(end_lsn)
    parts.run(until=150)
    assert (parts.undone, parts.opened_again) == (2, 1)
    assert parts.applied[1:] == [(130, 150, [140, 150])]


# --- batches that join ------------------------------------------------------------------------------------------------


def behind(parts, first, *others, rows=10, then=lambda: None):
    """Put a transaction, a full run; and, while it is applied, others. When all are formed, `then`, and it ends."""
    parts.put(first, rows=rows)
    parts.apply_gate.clear()
    formed: list[int] = []
    attempt, apply = parts.attempt, parts.apply

    def watched(transactions, *arguments):
        formed.extend(int(t.end_lsn) for t in transactions)
        if len(formed) == 1 + len(others):
            then()
            threading.Timer(0.05, parts.apply_gate.set).start()
        return attempt(transactions, *arguments)

    def begun(batch, **arguments):
        parts.attempt, parts.apply = watched, apply
        for end_lsn in others:
            parts.put(end_lsn, rows=rows)
        formed.append(first)
        apply(batch, **arguments)

    parts.apply = begun


@pytest.fixture
def few_rows(monkeypatch):
    """A run has ten rows, as `behind` puts them; a batch's limit is far away."""
    monkeypatch.setattr(next_batch, "_RUN_ROWS", 10)
    monkeypatch.setattr("tests.bridge.apply.test_worker.LIMITS", BatchLimits(10_000, 1 << 20, 0.0))


def test_what_comes_while_a_batch_is_applied_joins_one_batch(parts, few_rows):
    behind(parts, 110, 120, 130, 140)
    assert parts.run(until=140) is False
    assert [ends for _, _, ends in parts.applied] == [[110], [120, 130, 140]]


def test_a_batch_does_not_grow_beyond_its_limit(parts, few_rows, monkeypatch):
    monkeypatch.setattr("tests.bridge.apply.test_worker.LIMITS", BatchLimits(2, 1 << 20, 0.0))
    for end_lsn in ENDS:
        parts.put(end_lsn, rows=2)
    parts.run(until=ENDS[-1])
    assert all(len(ends) <= 2 for _, _, ends in parts.applied)
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == list(ENDS)


@pytest.mark.parametrize("bad", [120, 130, 140])
def test_a_joined_batch_that_fails_is_received_again_and_applied_in_parts(parts, few_rows, bad):
    """It has no transactions to be divided by; the stream ends, and the next one's batches do not join."""
    parts.unappliable.add(bad)
    behind(parts, 110, 120, 130, 140)
    assert parts.run(until=140) is True
    assert parts.catalog.remote_lsn("sub") == 110
    assert parts.catalog.batch("sub") is None
    assert parts.growth.apart_until_lsn == 140
    parts.queue = TransactionQueue(1 << 20)
    for end_lsn in (120, 130, 140):
        parts.put(end_lsn, rows=10)
    with pytest.raises(ApplyError) as raised:
        parts.run(until=140)
    assert raised.value.context.finish_lsn == bad - 1
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [end for end in (110, 120, 130, 140) if end < bad]
    assert len(parts.attempts[1]) == 3
    assert all(len(ends) == 1 for ends in parts.attempts[2:])


def test_batches_join_again_once_the_failed_one_is_passed(parts, few_rows):
    parts.growth.apart(Lsn(120))
    behind(parts, 110, 120, 130, 140, 150)
    threading.Timer(0.3, parts.apply_gate.set).start()  # the second one waits, so the others are not formed
    parts.run(until=150)
    assert [ends for _, _, ends in parts.applied] == [[110], [120], [130, 140, 150]]
    assert parts.growth.apart_until_lsn is None


def test_a_skip_lsn_that_comes_while_a_batch_grows(parts, few_rows):
    """The transaction is in the joined batch: it is received again, alone."""
    behind(parts, 110, 120, 130, 140)
    finish_batch = parts.catalog.finish_batch

    def and_set_skip_lsn(*arguments, **options):
        finish_batch(*arguments, **options)
        parts.catalog.set_skip_lsn("sub", Lsn(119))

    parts.catalog.finish_batch = and_set_skip_lsn
    assert parts.run(until=140) is True
    parts.catalog.finish_batch = finish_batch
    parts.queue = TransactionQueue(1 << 20)
    for end_lsn in (120, 130, 140):
        parts.put(end_lsn, rows=10)
    parts.run(until=140)
    assert parts.skipped == [[120]]
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110, 130, 140]


def test_a_begun_batch_that_had_joined_is_formed_again_in_parts(parts, few_rows):
    """With the same boundaries; what comes after it is another batch."""
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(130)))
    for end_lsn in (110, 120, 130, 140):
        parts.put(end_lsn, rows=10)
    parts.run(until=140)
    assert parts.applied == [(100, 130, [110, 120, 130]), (130, 140, [140])]


def test_a_begun_batch_whose_parts_no_longer_join_is_undone(parts, few_rows):
    """The publisher's catalog has changed since: it can no longer be decoded, say."""
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(130)))
    parts.undecodable.add(120)
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn, rows=10)
    assert parts.run(until=130) is True
    assert (parts.undone, parts.fenced) == (1, 1)
    assert parts.catalog.batch("sub") is None
    assert parts.applied == []


def test_a_failed_stream_is_raised_after_what_was_formed_is_applied(parts, few_rows):
    behind(parts, 110, 120, 130, then=lambda: parts.queue.fail(PublisherError("gone", retry=True)))
    with pytest.raises(PublisherError, match="gone"):
        parts.run(until=200)
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110, 120, 130]


def test_an_effect_that_does_not_say_it_all_is_not_tried(parts, few_rows):
    """Updates of rows that the batch has inserted, but for an unpublished DELETE and INSERT in between."""
    attempt = parts.attempt

    def updates_first(transactions, *arguments):
        batch = attempt(transactions, *arguments)
        op = "U" if transactions[0].end_lsn == 120 else "I"
        rows = [{"seq": 0, "op": ord(op), "old": 0, "new_0": 1}]
        batch.tables = [replace(batch.tables[0], changes=pa.Table.from_pylist(rows, schema=SCHEMA))]
        return batch

    parts.attempt = updates_first
    behind(parts, 110, 120, 130)
    assert parts.run(until=130) is True
    assert parts.attempts == [[110]]
    assert parts.growth.apart_until_lsn == 130


def test_what_is_divided_when_the_stream_is_lost_is_still_applied(parts):
    """So the good prefix lands, and the transaction at fault is named, whatever ended the stream behind it."""
    parts.unappliable.add(130)
    for end_lsn in (110, 120, 130, 140):
        parts.put(end_lsn)
    parts.queue.fail(PublisherError("gone", retry=True))
    with pytest.raises(ApplyError) as raised:
        parts.run(until=200)
    assert raised.value.context.finish_lsn == 129
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110, 120]


def test_a_lost_stream_is_told_even_if_a_joined_batch_fails(parts, few_rows):
    parts.unappliable.add(120)
    behind(parts, 110, 120, 130, then=lambda: parts.queue.fail(PublisherError("gone", retry=True)))
    with pytest.raises(PublisherError, match="gone"):
        parts.run(until=200)
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110]
    assert parts.growth.apart_until_lsn == 130


# --- SKIP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["undecodable", "unappliable", "without_changes"])
def test_the_transaction_that_finishes_there_is_skipped(parts, kind):
    """Whatever is wrong with it, and if it is the next one that changes anything."""
    getattr(parts, kind).add(120)
    parts.without_changes.add(110)
    parts.catalog.set_skip_lsn("sub", Lsn(119))
    for end_lsn in ENDS:
        parts.put(end_lsn)
    parts.run(until=ENDS[-1])
    assert parts.skipped == [[120]]
    assert parts.passed_over == [110]
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110, *ENDS[2:]]
    assert parts.catalog.skip_lsn("sub") is None


@pytest.mark.parametrize("lsn", [119, 115, 9999])
def test_it_is_cleared_when_another_transaction_was_applied(parts, lsn):
    """As in PostgreSQL, also when it would have matched a later one."""
    parts.catalog.set_skip_lsn("sub", Lsn(lsn))
    for end_lsn in ENDS:
        parts.put(end_lsn)
    parts.run(until=ENDS[-1])
    assert parts.skipped == []
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == list(ENDS)
    assert parts.attempts[0] == [110]
    assert parts.catalog.skip_lsn("sub") is None


def test_a_batch_from_before_a_power_cut_is_undone_and_formed_anew(parts, monkeypatch, tmp_path):
    """Its commits may be in Delta's log, by which Delta would leave them out, without their data on disk."""
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
    assert not parts.catalog.batch("sub").rebooted
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another\n")
    monkeypatch.setattr(catalog_module, "_BOOT_ID", boot_id)
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn)
    parts.run(until=130)
    assert parts.undone == 1
    assert parts.applied == [(100, 130, [110, 120, 130])]


def test_a_batch_whose_flush_was_begun_is_undone_and_formed_anew(parts):
    """If the flush failed, its files may not be on disk, and another flush of them would succeed."""
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
    parts.catalog.begin_flush("sub")
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn)
    parts.run(until=130)
    assert (parts.undone, parts.fenced, parts.opened_again) == (1, 1, 1)
    assert parts.applied == [(100, 130, [110, 120, 130])]


@pytest.mark.parametrize("transactions", [(120,), (110, 120)])
def test_a_begun_batch_is_undone_before_anything_of_it_is_skipped(parts, transactions):
    """A life before this one may have committed a part of it."""
    parts.catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
    parts.catalog.set_skip_lsn("sub", Lsn(transactions[0] - 1))
    for end_lsn in (*transactions, 130):
        parts.put(end_lsn)
    parts.run(until=130)
    assert (parts.undone, parts.fenced) == (1, 1)
    assert parts.skipped == [[transactions[0]]]
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [*transactions[1:], 130]

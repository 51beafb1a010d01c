"""The loop over batches: with scripted parts, so that each decision is seen alone."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pgbridge.bridge.apply import worker
from pgbridge.bridge.apply.suspects import Suspects
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.receive.stream.queue import TransactionQueue
from pgbridge.bridge.runtime.errors import (
    ApplyContext,
    ApplyError,
    EndsSpark,
    OutcomeUnknown,
    PublisherError,
    TargetError,
)
from pgbridge.bridge.runtime.observer import Observer
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_worker import ENDS, Parts, changes_of


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
    assert formed.wait(60), "the second batch waited for the first to be applied"
    assert parts.applied == []
    parts.apply_gate.set()
    runner.join(5)
    assert [end for _, end, _ in parts.applied] == [110, 120]


def test_batches_begin_an_interval_apart_unless_they_are_full(parts, monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def applied(number):
        end_s = time.monotonic() + 10
        while len(parts.applied) < number and time.monotonic() < end_s:
            time.sleep(0.01)
        return parts.applied[number - 1 :]

    runs = threading.Thread(target=lambda: parts.run(until=160, commit_interval_s=15.0))
    runs.start()
    parts.put(110)
    assert applied(1) == [(100, 110, [110])]
    for end_lsn in (120, 130, 140):
        parts.put(end_lsn)
        time.sleep(0.3)
    assert applied(1) == [(100, 110, [110])]
    now_s[0] += 15.0
    assert applied(2) == [(110, 140, [120, 130, 140])]
    parts.put(150, rows=10)
    parts.put(160, rows=10)
    runs.join(10)
    assert parts.applied[2:] == [(140, 150, [150]), (150, 160, [160])]


def test_a_lost_stream_is_noticed_before_the_next_batch_may_begin(parts):
    ended = []

    def run():
        try:
            parts.run(until=999, commit_interval_s=600.0)
        except PublisherError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    for end_lsn in (110, 120):
        parts.put(end_lsn)
        time.sleep(0.5)
    assert [end for _, end, _ in parts.applied] == [110]
    parts.queue.fail(PublisherError("gone"))
    thread.join(10)
    assert ended == ["gone"]
    assert [end for _, end, _ in parts.applied] == [110, 120]


def test_a_keepalive_is_requested_only_if_it_is_wanted(tmp_path):
    parts = Parts(tmp_path, hurry=True)
    threading.Timer(0.4, lambda: parts.progress.keepalive(Lsn(200), in_transaction=False)).start()
    parts.run(until=200)
    assert parts.asked >= 1
    parts.catalog.close()


# --- what cannot be applied -------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("step", ["form", "apply"])
def test_what_ends_spark_is_an_error_with_table_size_and_setting(parts, monkeypatch, step):
    """Also before it is decoded: the row's relation is one of the catalog's."""

    @contextmanager
    def under_way(work, *, describe, **_):
        if work.step == step:
            raise EndsSpark(f"it has ended Spark's JVM; {describe()}", hint='set "spark.driver.memory"')
        yield

    monkeypatch.setattr(Suspects, "under_way", lambda _, work, **options: under_way(work, **options))
    parts.catalog.put_rel("sub", RelRow("public", "big", "r", Lsn(1), "/lake/public/big", 7))
    row = bytes(HEADER_BYTES) + b"I" + (7).to_bytes(4) + bytes(3 << 20)
    parts.put(110, row=row)
    with pytest.raises(ApplyError) as raised:
        parts.run(until=110)
    assert raised.value.context.relation == "public.big"
    assert raised.value.context.finish_lsn == 109
    assert raised.value.message.endswith("its largest row has 3 MB")
    parts.catalog.set_skip_lsn("sub", raised.value.context.finish_lsn)
    parts.put(110, row=row)  # as the next stream has it
    parts.run(until=110)
    assert parts.skipped == [[110]], "it is not begun, and skipped all the same"


def test_a_batch_that_fails_once_is_applied_in_parts(parts):
    """Whatever it was: all of it lands, in order."""
    attempts = iter([ApplyError("once", ApplyContext("o", Lsn(199)))])
    apply = parts.apply

    def first_fails(batch, **arguments):
        error = next(attempts, None)
        if error is not None:
            raise error
        return apply(batch, **arguments)

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


def test_what_tables_have_of_a_transaction_is_taken_back_before_it_is_skipped(parts):
    """It is skipped as a whole; the tables' columns may be others then, so the stream begins again."""
    parts.ahead = True
    parts.catalog.set_skip_lsn("sub", Lsn(119))
    for end_lsn in (110, 120, 130):
        parts.put(end_lsn)
    parts.without_changes.add(110)
    assert parts.run(until=130) is True
    assert (parts.brought_back, parts.skipped) == (1, [])
    assert parts.catalog.skip_lsn("sub") == 119
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110]
    parts.queue = TransactionQueue(1 << 20)
    for end_lsn in (120, 130):
        parts.put(end_lsn)
    assert parts.run(until=130) is False
    assert (parts.brought_back, parts.skipped) == (1, [[120]])
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110, 130]


# --- behind a table that has more -------------------------------------------------------------------------------------


def test_the_origin_waits_for_the_end_of_what_a_table_has(parts):
    """Until then what the table has can be taken back, and comes again."""
    parts.kept_until = 130
    parts.catalog.set_skip_lsn("sub", Lsn(109))
    parts.without_changes.add(110)
    confirmed: list[int] = []

    def noted(batch, **arguments):
        confirmed.append(int(parts.progress.durable_lsn))
        return apply(batch, **arguments)

    apply, parts.apply = parts.apply, noted
    parts.catalog.set_skip_lsn("sub", None)
    parts.catalog.record_error("sub", "no", counter="apply", finish_lsn=Lsn(109))  # so each is a batch
    for end_lsn in (110, 120, 130, 140):
        parts.put(end_lsn)
    parts.run(until=140)
    assert [lsn for _, _, ends in parts.applied for lsn in ends] == [110, 120, 130, 140]
    assert confirmed[:3] == [100, 100, 100]
    assert parts.catalog.remote_lsn("sub") == parts.progress.durable_lsn == 140
    assert parts.confirmed[0] == 130


def test_the_origin_waits_no_longer_than_for_what_the_server_sends(parts):
    """The publications may be others by now: no batch ends where the table is."""
    parts.kept_until = 130
    parts.put(110)
    parts.progress.keepalive(Lsn(129), in_transaction=False)
    threading.Timer(0.5, lambda: parts.progress.keepalive(Lsn(150), in_transaction=False)).start()
    parts.run(until=150)
    assert parts.applied == [(100, 110, [110])]
    assert parts.confirmed[0] == 110, "not before the server had passed 130"
    assert parts.catalog.remote_lsn("sub") == parts.progress.durable_lsn == 150


def test_what_is_held_when_the_stream_ends_is_not_durable(parts):
    parts.kept_until = 130
    parts.put(110)
    parts.queue.fail(PublisherError("gone", retry=True))
    with pytest.raises(PublisherError, match="gone"):
        parts.run(until=200)
    assert parts.applied == [(100, 110, [110])]
    assert (parts.catalog.remote_lsn("sub"), parts.progress.durable_lsn, parts.confirmed) == (100, 100, [])


def test_the_timeline_is_noted_before_anything_is_recorded(parts):
    """Of a batch, of a transaction that is skipped, and of WAL without changes."""
    seen: list[int] = []
    parts.certify = lambda: seen.append(int(parts.catalog.remote_lsn("sub")))
    parts.catalog.set_skip_lsn("sub", Lsn(109))
    for end_lsn in (110, 120):
        parts.put(end_lsn)
    parts.progress.keepalive(Lsn(150), in_transaction=False)
    parts.run(until=150)
    assert (parts.skipped, [end for _, end, _ in parts.applied]) == ([[110]], [120])
    assert seen[:2] == [100, 110]
    assert 120 in seen


def test_without_its_timeline_nothing_is_recorded(parts):
    """A standby that is gone, say."""

    def gone():
        raise PublisherError("gone", retry=True)

    parts.certify = gone
    parts.put(110)
    with pytest.raises(PublisherError, match="gone"):
        parts.run(until=110)
    assert (parts.applied, parts.catalog.batch("sub"), parts.catalog.remote_lsn("sub")) == ([], None, 100)


class MadeMaintenance:
    """Something is due as often as it is told; records the lag, and which batches were applied by then."""

    def __init__(self, parts: Parts, *, times: int, idle_only: bool = False) -> None:
        self.parts, self.times, self.idle_only = parts, times, idle_only
        self.runs: list[tuple[float | None, int]] = []
        self.commits: list[str] = []
        self.failure: Exception | None = None

    def committed(self, paths, commit_s):
        assert commit_s >= 0.0
        self.commits.extend(paths)

    def due(self, behind_s):
        return len(self.runs) < self.times and (behind_s is None or not self.idle_only)

    def run_one(self, behind_s):
        assert self.parts.catalog.batch("sub") is None
        self.runs.append((behind_s, len(self.parts.applied)))
        if self.failure is not None:
            raise self.failure


def test_tables_are_maintained_before_a_batch_if_they_need_it_more(parts):
    parts.maintenance = MadeMaintenance(parts, times=2)
    parts.put(110)
    parts.run(until=110)
    assert parts.maintenance.runs == [(0.0, 0), (0.0, 0)]
    assert [ends for _, _, ends in parts.applied] == [[110]]
    assert parts.maintenance.commits == [changes_of([110]).target.path]


def test_tables_are_maintained_when_the_stream_is_idle(parts):
    parts.maintenance = MadeMaintenance(parts, times=1, idle_only=True)
    parts.put(110)
    threading.Timer(0.6, lambda: parts.put(120)).start()
    parts.run(until=120)
    assert parts.maintenance.runs == [(None, 1)]
    assert len(parts.applied) == 2


def test_nothing_is_applied_on_top_of_maintenance_that_is_to_be_undone(parts):
    parts.maintenance = MadeMaintenance(parts, times=1)
    parts.maintenance.failure = TargetError("cannot be undone")
    parts.put(110)
    with pytest.raises(TargetError, match="cannot be undone"):
        parts.run(until=110)
    assert parts.applied == []


def test_the_heart_beats_while_nothing_is_under_way(parts, monkeypatch):
    """A commit that hangs does not let it beat, although the loop goes on beside it; its end does."""
    parts.apply_gate.clear()
    begun, entered, apply = parts.heartbeat.at_s, threading.Event(), parts.apply

    def enter(*arguments, **options):
        entered.set()
        return apply(*arguments, **options)

    monkeypatch.setattr(parts, "apply", enter)
    threading.Timer(0.5, parts.put, (110,)).start()
    found: list[float] = []

    def look() -> None:
        entered.wait(60)
        found.append(parts.heartbeat.at_s)
        time.sleep(0.7)
        found.append(parts.heartbeat.at_s)
        parts.apply_gate.set()

    looking = threading.Thread(target=look)
    looking.start()
    parts.run(until=110)
    looking.join()
    assert begun < found[0] == found[1] < parts.heartbeat.at_s


def test_an_observer_is_told_what_is_durable(parts):
    """In this order, with the seconds of each phase; what the server confirms follows what is durable."""
    told: list[tuple[str, int]] = []

    class Recording(Observer):
        def durable(self, end_lsn):
            told.append(("durable", int(end_lsn)))

        def applied(self, report):
            assert report.seconds.keys() == {"form", "commit", "flush", "record"}
            assert report.seconds["form"] > 0
            told.append(("applied", int(report.end_lsn)))

    parts.observer = Recording()
    parts.put(110)
    parts.run(until=110)
    assert told == [("durable", 110), ("applied", 110)]
    assert parts.confirmed == [110]

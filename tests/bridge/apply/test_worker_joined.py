"""The loop over batches that join: with scripted parts, so that each decision is seen alone."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from pgbridge.bridge.apply import next_batch
from pgbridge.bridge.receive.stream.queue import BatchLimits, TransactionQueue
from pgbridge.bridge.runtime.errors import ApplyError, PublisherError
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_worker import ENDS, SCHEMA


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
        return apply(batch, **arguments)

    parts.apply = begun


@pytest.fixture
def few_rows(monkeypatch):
    """A run has ten rows, as `behind` puts them; a batch's limit is far away."""
    monkeypatch.setattr(next_batch, "_RUN_ROWS", 10)
    monkeypatch.setattr("tests.bridge.apply.made_worker.LIMITS", BatchLimits(10_000, 1 << 20, 0.0))


def test_what_comes_while_a_batch_is_applied_joins_one_batch(parts, few_rows):
    behind(parts, 110, 120, 130, 140)
    assert parts.run(until=140) is False
    assert [ends for _, _, ends in parts.applied] == [[110], [120, 130, 140]]


def test_a_batch_does_not_grow_beyond_its_limit(parts, few_rows, monkeypatch):
    monkeypatch.setattr("tests.bridge.apply.made_worker.LIMITS", BatchLimits(2, 1 << 20, 0.0))
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

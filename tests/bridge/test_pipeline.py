"""When a stream does without `streaming`; all else of a stream is tested with the workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from bridge import log, pipeline
from bridge.errors import StreamError
from bridge.observer import Observer
from bridge.pipeline import StreamHistory
from bridge.receive.streaming_fallback import REPEATS
from bridge.track.progress import Progress
from protocol.lsn import Lsn
from protocol.message_array import MessageArray
from protocol.transactions import Transaction, TransactionRun


def test_a_stream_that_is_broken_off_again_and_again_goes_without_streaming(monkeypatch):
    """For one connection, until the server's WAL of then is behind; nothing else ends it."""
    asked: list[bool] = []
    progress = Progress(Lsn(100))

    def attempt(*_, control, **__):
        asked.append(control.streaming)
        if control.streaming and progress.durable_lsn < 500:
            raise StreamError("could not map filenumber", retry=True)
        while control.should_continue(progress):
            progress.durable(Lsn(progress.durable_lsn + 100))
        assert not control.should_continue(progress), "asked again while a batch is waited for"

    def should_continue(at):
        return at.durable_lsn < 900

    monkeypatch.setattr(pipeline, "_stream", attempt)
    publisher = SimpleNamespace(flush_lsn=lambda: Lsn(500))
    published = SimpleNamespace(subscription=SimpleNamespace(name="s", streaming="on"), publisher=publisher)
    catalog = SimpleNamespace(remote_lsn=lambda _: progress.durable_lsn)
    control = SimpleNamespace(should_continue=should_continue, origin_advanced=None, report=None)
    others: Any = {"control": control, "log": log.get(), "ignored": None, "history": StreamHistory()}
    positional: Any = (published, {}, None, catalog)

    def stream():
        return pipeline.stream(*positional, **others)

    for _ in range(REPEATS):
        with pytest.raises(StreamError):
            stream()
    with capture_logs() as events:
        assert stream()
        assert not stream()
    assert asked == [True] * REPEATS + [False, True]
    assert progress.durable_lsn == 900
    assert [(event["log_level"], event["event"].split(",")[0].split(":")[0]) for event in events] == [
        ("warning", "streaming is off for now"),
        ("info", "streaming is on again"),
    ]


def test_an_observer_is_told_the_first_commit_of_what_is_received():
    """Of a run, with the last one's end: the lag is that of the oldest transaction."""
    told: list[tuple[int, int]] = []

    class Recording(Observer):
        def received(self, commit_time_us, end_lsn):
            told.append((commit_time_us, int(end_lsn)))

    number = np.arange(3)
    nothing = MessageArray.packed(bytes(64), np.zeros(0, np.int64))
    run = TransactionRun(number, 100 + number, 200 + number, 7 + number, nothing, np.zeros(4, np.int64), number[:0])
    pipeline._received(Recording(), run)
    pipeline._received(Recording(), Transaction(1, Lsn(300), 9, Lsn(301)))
    assert told == [(7, 202), (9, 301)]

"""When a stream does without `streaming`, and what comes before it; all else is tested with the workers."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.apply import stream as pipeline
from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.apply.stream import StreamHistory, recover
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent
from pgbridge.bridge.catalog.held import fence_lsn
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.stream.pgoutput_options import REPEATS
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import StreamError
from pgbridge.bridge.runtime.observer import Observer
from pgbridge.bridge.track.progress import Progress
from pgbridge.protocol.bulk.message_array import MessageArray
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.stream.transactions import Transaction, TransactionRun


def test_a_stream_that_is_broken_off_again_and_again_goes_without_streaming(monkeypatch):
    """For one connection, until the server's WAL of then is behind; nothing else ends it."""
    asked: list[bool] = []
    progress = Progress(Lsn(100))

    def attempt(*_, control, **__):
        asked.append(control.streaming)
        if control.streaming and progress.durable_lsn < 500:
            raise StreamError("could not map filenumber", "XX000", Lsn(100), retry=True)
        while control.should_continue(progress):
            progress.durable(Lsn(progress.durable_lsn + 100))
        assert not control.should_continue(progress), "asked again while a batch is waited for"

    def should_continue(at):
        return at.durable_lsn < 900

    monkeypatch.setattr(pipeline, "_stream", attempt)
    publisher = SimpleNamespace(flush_lsn=lambda: Lsn(500))
    published: Any = SimpleNamespace(subscription=SimpleNamespace(name="s", streams=True), publisher=publisher)
    catalog: Any = SimpleNamespace(remote_lsn=lambda _: progress.durable_lsn)
    control = SimpleNamespace(should_continue=should_continue, origin_advanced=None, report=None)
    others: Any = {"check": None, "control": control}
    positional: Any = (
        Context(published.subscription, cast("Any", None), catalog, log.get()),
        published,
        {},
        StreamHistory(),
    )

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


class Undo:
    """Stands for `BatchUndo`: says what it was asked for while there was a batch, and drops the batch."""

    asked: list[str]

    def __init__(self, context, messages_path, _local):
        assert messages_path is None
        self._has_batch = lambda: context.catalog.batch(context.name) is not None
        self._drop = lambda: context.catalog.drop_batch(context.name)

    def undo(self):
        self.asked.append("undo")
        self._drop()

    def keep(self):
        self.asked.append("keep" if self._has_batch() else "keep what is ahead")
        self._drop()


def _skip(catalog, _monkeypatch):
    catalog.set_skip_lsn("sub", Lsn(119))


@pytest.mark.parametrize(
    ("alters", "meanwhile", "asked"),
    [
        (False, lambda *_: None, "keep"),
        (True, lambda *_: None, "undo"),
        (False, lambda catalog, _: catalog.begin_undo("sub"), "undo"),
        (False, lambda catalog, _: catalog.begin_flush("sub"), "undo"),
        (False, _skip, "undo"),  # a transaction is skipped as a whole
    ],
)
def test_a_batch_that_was_cut_short_is_settled_before_the_stream_begins(
    tmp_path, monkeypatch, alters, meanwhile, asked
):
    """Kept, unless what its tables have of it is uncertain, or is not to be there. What was undone is applied apart."""
    monkeypatch.setattr(Undo, "asked", [], raising=False)
    monkeypatch.setattr(pipeline, "BatchUndo", Undo)
    subscription = Subscription(name="sub", connection="", publications=("p",), warehouse="/lake")
    history, spark = StreamHistory(), cast("Any", None)
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        catalog.create_origin("sub", Lsn(100), "inc", [])
        recover(Context(subscription, spark, catalog, log.get()), history)
        assert Undo.asked == ["keep what is ahead"]
        Undo.asked.clear()
        catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120), alters=alters))
        meanwhile(catalog, monkeypatch)
        for _ in range(2):
            recover(Context(subscription, spark, catalog, log.get()), history)
        assert Undo.asked[0] == asked
        assert set(Undo.asked[1:]) == {"keep what is ahead"}
        assert catalog.batch("sub") is None
        assert catalog.remote_lsn("sub") == 100
    assert history.growth.apart_until_lsn == (120 if asked == "undo" else None)


def test_the_machine_loses_power(tmp_path, monkeypatch):
    """Its commits may be in Delta's logs, by which the tables would keep them, without their data on disk."""
    monkeypatch.setattr(Undo, "asked", [], raising=False)
    monkeypatch.setattr(pipeline, "BatchUndo", Undo)
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another\n")
    subscription = Subscription(name="sub", connection="", publications=("p",), warehouse="/lake")
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        catalog.create_origin("sub", Lsn(100), "inc", [])
        catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
        monkeypatch.setattr("pgbridge.bridge.catalog.catalog._BOOT_ID", boot_id)
        recover(Context(subscription, cast("Any", None), catalog, log.get()), StreamHistory())
    assert Undo.asked[0] == "undo"


def test_a_handlers_batch_becomes_a_fence(tmp_path):
    """What the function has written is not known here; its transactions come again, and no batch goes over its end."""
    subscription = Subscription(name="sub", connection="", publications=("p",), warehouse="handler")
    handling: Any = SimpleNamespace()
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        catalog.create_origin("sub", Lsn(100), "inc", [])
        catalog.begin_batch("sub", BatchIntent(Lsn(100), Lsn(120)))
        catalog.begin_undo("sub")
        history = StreamHistory(handler=handling)
        recover(Context(subscription, cast("Any", None), catalog, log.get()), history)
        assert (catalog.batch("sub"), fence_lsn(catalog, "sub")) == (None, 120)
        row = catalog.subscription("sub")
        assert row is not None
        assert row.epoch == 0

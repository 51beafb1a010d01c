"""A worker tries again after errors, as long as its kind says; what an operator does ends its pauses."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from pgbridge.bridge.apply import stream_worker
from pgbridge.bridge.apply.stream_worker import StreamWorker
from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import PublisherError, SyncError, TargetError
from pgbridge.protocol.lsn import Lsn
from tests.bridge.apply.made_worker import SUBSCRIPTION
from tests.bridge.configurations import altered

NO_SPARK: Any = None


class Scripted(StreamWorker):
    """Its attempts raise errors, one after the other; then it is done."""

    wants_keepalive = False

    def __init__(self, catalog, *errors, **options):
        subscription = altered(SUBSCRIPTION, workers__retry_max_s=0.02, **options)
        super().__init__(subscription, NO_SPARK, catalog, log.get("sub"), thread_name="scripted")
        self.errors = list(errors)
        self.recorded: list[str] = []
        self.disabled: list[bool] = []
        self.limit = 99
        self.ended: Any = "not run"

    def _run(self):
        self.ended = self._attempts()

    def _attempt(self):
        if self.errors:
            raise self.errors.pop(0)
        return False

    def _is_no_failure(self, error):
        return isinstance(error, SyncError)

    def _record(self, error, pause_s):
        assert 0 <= pause_s <= 2 * self.subscription.workers.retry_max_s  # a random part is added
        self.recorded.append(error.message)

    def _gives_up(self, error, *, disabled):
        self.disabled.append(disabled)
        return disabled or self._failures >= self.limit

    def _ends_pause(self, before, wanted):
        return None if wanted == before else not wanted[0]

    def should_continue(self, progress):
        raise NotImplementedError

    def report(self, progress):
        raise NotImplementedError

    def origin_advanced(self):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def catalog(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_worker, "_LOOK_INTERVAL_S", 0.01)
    with closing(Catalog(catalog_path(tmp_path))) as made:
        made.register("sub", enabled=True)
        yield made


def away(text="away"):
    return PublisherError(text, retry=True)


def test_it_tries_again_until_an_attempt_is_through(catalog):
    worker = Scripted(catalog, away("one"), away("two"))
    worker.thread.start()
    worker.thread.join(30)
    assert (worker.ended, worker.recorded, worker.errors) == (None, ["one", "two"], [])


def test_it_gives_up_by_its_own_rule(catalog):
    worker = Scripted(catalog, away("one"), last := away("two"), away("three"))
    worker.limit = 2
    assert worker._attempts() is last
    assert worker.recorded == ["one", "two"]


def test_what_is_no_failure_ends_it_and_is_not_recorded(catalog):
    worker = Scripted(catalog, cut := SyncError("cut short"))
    assert worker._attempts() is cut
    assert (worker.recorded, worker._failures) == ([], 0)


def test_an_error_of_its_own_disables_it_where_that_is_wanted(catalog):
    worker = Scripted(catalog, away(), own := TargetError("no room"), disable_on_error=True)
    assert worker._attempts() is own
    assert worker.disabled == [False, True]
    row = catalog.subscription("sub")
    assert row is not None
    assert not row.enabled


def test_stopped_or_disabled_it_begins_no_attempt(catalog):
    worker = Scripted(catalog, away())
    catalog.set_enabled("sub", enabled=False)
    assert worker._attempts() is None
    catalog.set_enabled("sub", enabled=True)
    worker._stop.set()
    assert worker._attempts() is None
    assert worker.recorded == []


@pytest.mark.parametrize(
    ("asked", "again"),
    [
        (lambda catalog: catalog.set_skip_lsn("sub", Lsn(7)), True),
        (lambda catalog: refresh.ask(catalog, "sub", [None], copy_data=True), False),
    ],
    ids=["skip", "refresh"],
)
def test_what_an_operator_asks_for_ends_a_pause(catalog, monkeypatch, asked, again):
    """The worker's kind says how; the heart beats meanwhile."""
    worker = Scripted(catalog)
    begun_s = worker.heartbeat.at_s
    beat = worker.heartbeat.beat

    def beats():
        beat()
        asked(catalog)

    monkeypatch.setattr(worker.heartbeat, "beat", beats)
    assert worker._pause(60) is again
    assert worker.heartbeat.at_s > begun_s


def test_a_reload_ends_a_pause(catalog, monkeypatch):
    """Also one that comes while an attempt still fails; but not the next pause."""
    worker = Scripted(catalog)
    worker.retry_soon()
    assert worker._pause(60)
    monkeypatch.setattr(worker.heartbeat, "beat", worker.retry_soon)
    begun_s = time.monotonic()
    assert worker._pause(60)
    assert time.monotonic() - begun_s < 30
    monkeypatch.setattr(worker.heartbeat, "beat", lambda: None)
    begun_s = time.monotonic()
    assert worker._pause(0.5)
    assert time.monotonic() - begun_s >= 0.5

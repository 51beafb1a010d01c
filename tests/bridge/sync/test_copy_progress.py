"""How far a copy is, of what is seen of its statements from time to time, and where that goes."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from functools import partial

import psycopg
import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.catalog import notes
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import SyncError
from pgbridge.bridge.sync import copy_progress as module
from pgbridge.bridge.sync.copy_progress import CopyLimit, CopyMonitor, CopyProgress, Sent
from pgbridge.bridge.sync.table_reading import CopySize


class Copies:
    """Threads that take a turn each, and end it when told; `order` has their names as they came to it."""

    def __init__(self, limit: CopyLimit) -> None:
        self.limit = limit
        self.order: list[str] = []
        self.may_end = {name: threading.Event() for name in "abcdef"}
        self.threads: list[threading.Thread] = []

    def start(self, name: str) -> None:
        before = len(self.limit._waiting) + self.limit._under_way
        thread = threading.Thread(target=self._copy, args=(name,))
        self.threads.append(thread)
        thread.start()
        wait_until(lambda: len(self.limit._waiting) + self.limit._under_way == before + 1)

    def _copy(self, name: str) -> None:
        with self.limit.turn():
            self.order.append(name)
            self.may_end[name].wait(30)

    def end(self) -> None:
        for event in self.may_end.values():
            event.set()
        for thread in self.threads:
            thread.join(30)


def wait_until(condition):
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)


def test_in_the_order_in_which_they_came():
    copies = Copies(CopyLimit(2))
    for name in "abcdef":
        copies.start(name)
    wait_until(lambda: len(copies.order) == 2)
    copies.may_end["b"].set()
    wait_until(lambda: len(copies.order) == 3)
    assert copies.order == ["a", "b", "c"]
    assert copies.limit._under_way == 2
    copies.end()
    assert sorted(copies.order) == list("abcdef")
    assert copies.limit._under_way == 0


def test_without_a_limit():
    copies = Copies(CopyLimit())
    for name in "abcdef":
        copies.start(name)
    wait_until(lambda: len(copies.order) == 6)
    copies.end()


def test_who_is_to_stop_leaves_the_line():
    turns = CopyLimit(1)
    with turns.turn(), pytest.raises(SyncError, match="stopped while it waited"), turns.turn(lambda: True):
        pass
    with turns.turn(lambda: True):
        assert turns._under_way == 1


def test_a_copy_that_fails_gives_its_turn_back():
    turns = CopyLimit(1)
    with pytest.raises(ValueError, match="no"), turns.turn():
        raise ValueError("no")
    with turns.turn():
        pass


def test_another_limit_while_copies_run():
    """A higher one lets those go on that wait; a lower one lets those end that run."""
    copies = Copies(CopyLimit(1))
    for name in "abc":
        copies.start(name)
    copies.limit.change(3)
    wait_until(lambda: len(copies.order) == 3)
    copies.limit.change(1)
    copies.start("d")
    copies.may_end["a"].set()
    copies.may_end["b"].set()
    wait_until(lambda: copies.limit._under_way == 1)
    assert len(copies.order) == 3
    copies.may_end["c"].set()
    wait_until(lambda: len(copies.order) == 4)
    copies.end()


def seen(*looks, size=None):
    """The row after looks of a second each, each with (rows, bytes) by process."""
    copy = CopyProgress("public", "t", size or CopySize(10_000, 50), 100.0)
    for second, look in enumerate(looks, 101):
        copy.see({pid: Sent(*sent) for pid, sent in look.items()}, float(second))
    return copy.row


def test_nothing_is_known_at_first():
    row = seen()
    assert (row.qualified_name, row.rows, row.bytes, row.total_bytes_estimate) == ("public.t", 0, 0, 500_000)
    assert (row.rows_per_s, row.seconds_left) == (None, None)


def test_statements_add_up():
    row = seen({1: (500, 20_000)}, {1: (1000, 40_000), 2: (1000, 40_000)})
    assert (row.rows, row.bytes) == (2000, 80_000)
    assert row.total_bytes_estimate == 400_000, "by the size that rows have, not the planner's"
    assert (row.rows_per_s, row.seconds_left) == (1000, 8)


@pytest.mark.parametrize("next_pid", [1, 2], ids=["the same process id", "another"])
def test_what_ended_counts_with_half_an_interval_more(next_pid):
    row = seen({1: (500, 5000)}, {1: (900, 9000)}, {next_pid: (100, 1000)}, {next_pid: (150, 1500)})
    assert (row.rows, row.bytes) == (900 + 200 + 150, 9000 + 2000 + 1500)


def test_a_copy_that_is_larger_than_estimated():
    row = seen({1: (20_000, 60)})
    assert (row.total_bytes_estimate, row.seconds_left) == (60, 0)


def test_the_rate_is_the_last_half_minutes():
    slow = [{1: (n, n)} for n in range(100)]
    fast = [{1: (100 * n, n)} for n in range(1, 41)]
    assert seen(*slow, *fast).rows_per_s == pytest.approx(100)


def test_a_copy_is_seen_in_the_catalog_and_the_log(publisher, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    monkeypatch.setattr(module, "_LOGGED_S", 0.3)
    publisher.execute("CREATE TABLE t AS SELECT g AS id FROM generate_series(1, 100000) g")
    with (
        closing(Catalog(catalog_path(tmp_path))) as catalog,
        closing(connect(publisher.conninfo, application_name="it")) as connection,
        capture_logs() as events,
    ):
        catalog.register("sub", enabled=True)
        advanced: list[int] = []
        told = partial(advanced.append, 1)
        with CopyMonitor(publisher.conninfo, "sub", catalog, log.get("sub"), advanced=told) as monitor:
            with monitor.watching("it", "public", "t", CopySize(100_000, 10)):
                statement = "COPY (SELECT id, pg_sleep(0.0001) FROM public.t) TO STDOUT (FORMAT binary)"
                with connection.cursor().copy(statement) as copy:
                    deadline = time.monotonic() + 20
                    while not (events and any(row.rows_per_s for row in notes.copies(catalog, "sub"))):
                        assert time.monotonic() < deadline
                        copy.read()
                    (found,) = notes.copies(catalog, "sub")
                    assert found.qualified_name == "public.t"
                    assert found.bytes > found.rows * 10 > 0
                    assert len(advanced) > 1
                    connection.cancel()
                    with pytest.raises(psycopg.errors.QueryCanceled):
                        list(copy)
                time.sleep(0.2)
                before = len(advanced)
                time.sleep(0.3)
                assert len(advanced) == before, "nothing is copied now"
            time.sleep(0.2)
            assert notes.copies(catalog, "sub") == []
    assert events[0]["event"] == "table copy progress"
    assert (events[0]["relation"], events[0]["rows"] > 0) == ("public.t", True)


def test_a_server_that_does_not_answer_fails_no_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_POLL_S", 0.02)
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        with (
            CopyMonitor("host=/nonexistent dbname=x", "sub", catalog, log.get("sub")) as monitor,
            monitor.watching("it", "public", "t", CopySize(1, 1)),
        ):
            time.sleep(0.1)
        assert notes.copies(catalog, "sub") == []

"""When a tablesync worker is started, when its tables are taken over, and when the subscription's stream ends for them.

What such a worker does is tested with it; all together in tests/oracle.
"""

from __future__ import annotations

import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow, sync_name
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import SyncError, counts_in_copy
from pgbridge.bridge.sync import added_tables
from pgbridge.bridge.sync.added_tables import AddedTables
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import INVALID, Lsn
from tests.bridge.every_error import POLICY, name

FOLLOWS = RelRow("public", "a", "r", Lsn(0x100), "/lake/public/a")
NEW = RelRow("public", "b", "d", Lsn(0), "/lake/public/b")
SERVER = ServerHistory("7", 2, Lsn(0x900), left={1: Lsn(0x110)})


class Worker:
    """Stands for a tablesync worker: alive until it is told to end."""

    made: list[Worker]

    def __init__(self, *_: object, **__: object) -> None:
        self.alive = False
        self.within_reach = threading.Event()
        self.gave_up = False
        self.error: Exception | None = None
        self.thread: Any = SimpleNamespace(
            start=lambda: setattr(self, "alive", True), is_alive=lambda: self.alive, join=lambda _: None
        )
        self.made.append(self)

    @staticmethod
    def needed(catalog: Catalog, subscription: str) -> bool:
        return catalog.subscription(sync_name(subscription)) is not None

    def end_at(self, _lsn: Lsn, _giving_up: threading.Event) -> None:
        self.stop()

    def stop(self) -> None:
        self.alive = False


@pytest.fixture
def workers(monkeypatch):
    """The workers that were made."""
    monkeypatch.setattr(Worker, "made", [], raising=False)
    monkeypatch.setattr(added_tables, "TableSyncWorker", Worker)
    monkeypatch.setattr("pgbridge.bridge.spark.session.fork", lambda spark: spark)
    return Worker.made


@pytest.fixture
def shop(tmp_path, workers):
    """(catalog, added tables) of the subscription `shop`, whose origin is at 0/100."""
    subscription = Subscription(name="shop", connection="", publications=("p",), warehouse="/lake")
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("shop", enabled=True)
        catalog.create_origin("shop", Lsn(0x100), "abc", [FOLLOWS])
        spark: Any = None
        yield catalog, AddedTables(subscription, spark, catalog, log.get())


def synchronized(catalog, lsn, timeline=None, *, position=INVALID):
    """The tablesync worker has copied its tables and applied their changes up to an LSN."""
    name = sync_name("shop")
    catalog.create_origin(name, lsn, "def", [], timeline)
    catalog.put_rel(name, RelRow("public", "b", "s", lsn, NEW.path, position=position, timeline=timeline))


def test_without_added_tables_nothing_happens(shop, workers):
    _, added = shop
    added.take_over(threading.Event(), lambda: SERVER)
    assert workers == []
    assert (added.syncing, added.outstanding, added.stream_should_end()) == (False, False, False)
    added.stop()


def test_a_worker_is_started_once(shop, workers):
    catalog, added = shop
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW], follow=(), remove=())
    for _ in range(2):
        added.take_over(threading.Event(), lambda: SERVER)
    (worker,) = workers
    assert worker.alive
    assert added.syncing
    assert added.outstanding
    assert not added.stream_should_end()
    added.stop()
    assert not worker.alive


def test_tables_within_reach_are_taken_over_between_two_streams(shop, workers):
    catalog, added = shop
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW], follow=(), remove=())
    added.take_over(threading.Event(), lambda: SERVER)
    synchronized(catalog, Lsn(0x120))
    workers[0].within_reach.set()
    assert added.stream_should_end()
    added.take_over(threading.Event(), lambda: SERVER)
    assert {rel.name: rel.state for rel in catalog.rels("shop")} == {"a": "r", "b": "s"}
    assert not workers[0].alive


@pytest.mark.parametrize(
    ("lsn", "timeline", "position"),
    [(0x111, 1, INVALID), (0x901, 2, INVALID), (0x901, None, INVALID), (0x120, 2, Lsn(0x901)), (0x120, 3, INVALID)],
)
def test_tables_with_more_than_the_server_has_are_left_to_the_worker(shop, workers, lsn, timeline, position):
    """It copies them afresh; in the subscription's stream they would keep what the server lost."""
    catalog, added = shop
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW], follow=(), remove=())
    synchronized(catalog, Lsn(lsn), timeline, position=position)
    added.take_over(threading.Event(), lambda: SERVER)
    assert [rel.name for rel in catalog.rels("shop")] == ["a"]
    assert len(workers) == 1
    assert workers[0].alive


def test_tables_on_an_earlier_timeline_of_the_servers_history_join(shop):
    catalog, added = shop
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW], follow=(), remove=())
    synchronized(catalog, Lsn(0x110), 1, position=Lsn(0x108))
    added.take_over(threading.Event(), lambda: SERVER)
    (joined,) = (rel for rel in catalog.rels("shop") if rel.name == "b")
    assert (joined.state, joined.lsn, joined.position, joined.timeline) == ("s", 0x110, 0x108, 1)


def test_requests_wait_for_a_worker_and_for_a_batch(shop, workers):
    catalog, added = shop
    refresh.ask(catalog, "shop", [None], copy_data=True)
    assert len(added.requests()) == 1
    assert added.stream_should_end()
    catalog.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x120)))
    assert added.requests() == []
    catalog.finish_batch("shop", Lsn(0x120))
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW], follow=(), remove=())
    added.take_over(threading.Event(), lambda: SERVER)
    assert added.requests() == []
    workers[0].stop()
    assert len(added.requests()) == 1


def test_a_worker_that_gave_up_has_no_successor(shop, workers):
    """`run --until-caught-up` then reports its error."""
    catalog, added = shop
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW], follow=(), remove=())
    added.take_over(threading.Event(), lambda: SERVER)
    workers[0].gave_up, workers[0].error, workers[0].alive = True, SyncError("no room"), False
    added.take_over(threading.Event(), lambda: SERVER)
    assert len(workers) == 1
    assert str(added.error) == "no room"
    assert added.syncing
    assert not added.outstanding


@pytest.mark.parametrize(("error", "own", "retry"), POLICY, ids=name)
def test_a_table_that_was_not_copied_is_set_apart(shop, workers, error, own, retry):
    """A server or a store that is away is not counted; a server that refuses is, as the subscription's own error."""
    catalog, added = shop
    catalog.put_rel("shop", NEW)
    added.set_apart({NEW: error}, threading.Event(), lambda: SERVER)
    assert [rel.name for rel in catalog.rels("shop")] == ["a"]
    assert [rel.name for rel in catalog.rels(sync_name("shop"))] == ["b"]
    assert catalog.last_error(sync_name("shop")).message == str(error)
    assert catalog.subscription("shop").sync_error_count == int(counts_in_copy(error))
    assert len(workers) == 1

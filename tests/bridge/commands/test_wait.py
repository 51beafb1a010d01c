"""What was committed before the command is in the tables when it returns; else it says what is missing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import psycopg
import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.commands import wait as module
from pgbridge.bridge.commands.state import State
from pgbridge.bridge.commands.wait import wait
from pgbridge.bridge.runtime.errors import BridgeError, InvalidLsn, PublisherError, PublisherWentBack, StateError
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import Lsn
from tests.bridge.monitor.registered import registered
from tests.bridge.subscribed import end
from tests.fix_bridge import config_of

COMMITS = 200


def test_one_reads_what_one_has_written(publisher, memory_pipeline):
    """Also what was committed without waiting for the disk, and where nothing follows that is published."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE t")
    bridge = memory_pipeline(batch__commit_interval_s=0)
    state = State(config_of(bridge), bridge.catalog, running=False)
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()
    try:
        for number in range(COMMITS):
            off = "SET LOCAL synchronous_commit = off; " if number % 2 else ""
            publisher.execute(f"BEGIN; {off}INSERT INTO t VALUES ({number}); COMMIT")
            said = wait(state, bridge.subscription, None, 60)
            assert {"id": number} in bridge.rows("t")
            if number % 10 == 0:
                publisher.execute(f"INSERT INTO other SELECT generate_series(1, {number})")
        assert "Delta has every transaction up to" in said
        ((lsn,),) = publisher.query("SELECT pg_current_wal_flush_lsn()::text")
        assert lsn in wait(state, bridge.subscription, lsn, 60)
    finally:
        end(worker)


@pytest.mark.soak
def test_one_reads_what_one_has_written_in_delta(publisher, pipeline):
    """Eight clients write and wait at the same time, each reads its own row: a thousand times in all."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    bridge = pipeline()
    state = State(config_of(bridge), bridge.catalog, running=False)
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()

    def client(first: int) -> int:
        seen = 0
        with psycopg.connect(publisher.conninfo, autocommit=True) as connection:
            for number in range(first, 1000, 8):
                connection.execute("INSERT INTO t VALUES (%s)", (number,))
                wait(state, bridge.subscription, None, 60)
                seen += {"id": number} in bridge.rows("t")
        return seen

    try:
        with ThreadPoolExecutor(8) as clients:
            assert sum(clients.map(client, range(8))) == 1000
    finally:
        end(worker)


@pytest.fixture
def shop(tmp_path):
    """A state: the origin stands at 0/100, and no server answers."""
    with registered(tmp_path) as (settings, catalog):
        yield State(settings, catalog, running=False)


def streaming(shop, *rels):
    shop.catalog.create_origin("shop", Lsn(0x100), "abc", list(rels))


def waited(shop, text, timeout_s=0.0):
    return wait(shop, shop.config.subscription["shop"], text, timeout_s)


def test_an_origin_that_moves_meanwhile(shop):
    streaming(shop, RelRow("public", "t", "r", Lsn(0x80), "/lake/public/t"))
    assert "up to 0/100" in waited(shop, "0/100")
    timer = threading.Timer(0.2, lambda: shop.catalog.advance_origin("shop", Lsn(0x200)))
    timer.start()
    assert "up to 0/1FF" in waited(shop, "0/1FF", 30)
    timer.join()


@pytest.mark.parametrize(
    ("rels", "text", "words"),
    [
        (None, "0/1", "it has never streamed"),
        ((), "0/101", "Delta has the transactions up to 0/100, not up to 0/101"),
        ((RelRow("public", "t", "d", Lsn(0), "/t"),), "0/100", "table public.t is being copied"),
    ],
)
def test_what_is_missing_is_told(shop, rels, text, words):
    if rels is not None:
        streaming(shop, *rels)
    with pytest.raises(StateError, match=f'"shop": after 0 s .*{words}') as caught:
        waited(shop, text)
    assert caught.value.hint == "no daemon runs; run: pgbridge run"


def test_a_table_that_needs_somebody_is_not_waited_for(shop):
    """Unless somebody has asked for its copy."""
    rel = RelRow("public", "t", "r", Lsn(1), "/t")
    streaming(shop, rel)
    refresh.have_wait(shop.catalog, "shop", [("public", "t")], "its rows are gone\nHINT:  copy it", 0.0)
    with pytest.raises(
        StateError, match=r'"shop": table public\.t waits for its resync: its rows are gone\nHINT:  copy it$'
    ) as caught:
        waited(shop, "0/1", 60)
    assert caught.value.hint == "copy it"
    refresh.ask(shop.catalog, "shop", [("public", "t")], copy_data=True)
    with pytest.raises(StateError, match="a refresh that was asked for"):
        waited(shop, "0/1")


def test_tables_that_are_added_are_waited_for(shop):
    """From the `refresh` on, until they have been handed over to the subscription's stream."""
    streaming(shop)
    refresh.ask(shop.catalog, "shop", [None], copy_data=True)
    with pytest.raises(StateError, match="a refresh that was asked for"):
        waited(shop, "0/100")
    (request,) = refresh.asked(shop.catalog, "shop")
    added = RelRow("public", "new", "i", Lsn(0), "/new")
    refresh.take_up(shop.catalog, "shop", request.number, bring_in=[added], follow=(), remove=())
    for state in "ifs":
        shop.catalog.put_rel("shop:sync", replace(added, state=state, lsn=Lsn(0x90)))
        with pytest.raises(StateError, match=r"table public\.new is being copied"):
            waited(shop, "0/100")


def test_why_it_may_be_late_is_told(shop):
    streaming(shop)
    with locked(shop.config.state_dir):
        with pytest.raises(StateError) as caught:
            waited(shop, "0/101")
        assert "a greater --timeout" in caught.value.hint
        shop.catalog.record_error("shop", "no room", counter="apply")
        with pytest.raises(StateError) as caught:
            waited(shop, "0/101")
        assert "its last error: no room" in caught.value.hint
    shop.catalog.set_enabled("shop", enabled=False)
    with pytest.raises(StateError, match="is disabled, and Delta has") as caught:
        waited(shop, "0/101", 60)
    assert caught.value.hint == "run: pgbridge enable shop"
    assert "up to 0/100" in waited(shop, "0/100"), "what is there is there"


def test_bad_input(shop):
    streaming(shop)
    with pytest.raises(InvalidLsn, match="invalid WAL location"):
        waited(shop, "now")
    with pytest.raises(BridgeError, match="cannot connect"):
        waited(shop, None)


class Server(SimpleNamespace):
    """What the command asks, as a publisher and as a walsender."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def committed(shop, monkeypatch, insert_lsn, history):
    server = Server(insert_lsn=lambda: Lsn.parse(insert_lsn), started_us=lambda: 1, history=lambda: history)
    for name in ("Publisher", "ReplicationConnection"):
        monkeypatch.setattr(module, name, lambda *_, **__: server)
    return str(module._committed(shop.config.subscription["shop"], shop.catalog))


@pytest.mark.parametrize(
    ("insert_lsn", "lsn"), [("1/2018", "1/2000"), ("1/28", "1/0"), ("1/2019", "1/2019"), ("1/2000", "1/2000")]
)
def test_the_header_of_a_page_is_not_waited_for(shop, monkeypatch, insert_lsn, lsn):
    assert committed(shop, monkeypatch, insert_lsn, SimpleNamespace(started_us=1)) == lsn


def test_a_server_that_went_back_says_nothing(shop, monkeypatch):
    """Its LSN is below the origin's, but Delta does not have what was committed there."""
    streaming(shop)
    shop.catalog.set_slot("shop", slot_name="s", slot_state="ready", system_identifier="1")
    same = ServerHistory("1", 1, Lsn(0x120), False, {}, 1)
    assert committed(shop, monkeypatch, "0/120", same) == "0/120"
    with pytest.raises(PublisherWentBack, match="durable"):
        committed(shop, monkeypatch, "0/90", replace(same, flush_lsn=Lsn(0x90)))
    with pytest.raises(PublisherError, match="two servers"):
        committed(shop, monkeypatch, "0/90", replace(same, started_us=2))

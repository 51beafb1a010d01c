"""A publisher that pg_upgrade has replaced, in the catalog; `tests/faults/test_reset.py` has the whole of it."""

from __future__ import annotations

from contextlib import closing

import pytest

from pgbridge.bridge.catalog import held, refresh, reset
from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, PreparedRow, RelRow, sync_name
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import Lsn

ORDERS = RelRow("public", "orders", "s", Lsn(0x10), "/lake/orders", 7, Lsn(0x20), 1)
WAITS = RelRow("public", "waits", "r", Lsn(0x10), "/lake/waits", 8, Lsn(0x10), 1, "why", 1.0)
NEW = RelRow("public", "new", "f", Lsn(0x18), "/lake/new", 9)
SERVER = ServerHistory("2", 1, Lsn(0x9000))


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(tmp_path / "catalog.sqlite")) as opened:
        opened.register("shop", enabled=True)
        opened.set_slot("shop", slot_name="slot", slot_state="ready", system_identifier="1")
        opened.create_origin("shop", Lsn(0x20), "inc", [ORDERS, WAITS], 3)
        held.note_timeline(opened, "shop", ServerHistory("1", 3, Lsn(0x20), left={2: Lsn(0x8)}))
        yield opened


def test_positions_are_those_of_the_new_server(catalog):
    catalog.set_skip_lsn("shop", Lsn(0x30))
    reset.check_finished(catalog, "shop")
    reset.follow(catalog, "shop", SERVER, Lsn(0x8000))
    positions = held.held(catalog, "shop")
    assert positions is not None
    assert (positions.origin.system_identifier, positions.origin.timeline, positions.origin.lsn) == ("2", 1, 0x8000)
    assert positions.skip is None
    assert all(SERVER.missing(at) is None for at in (positions.origin, *positions.tables.values()))
    orders, waits = catalog.rels("shop")
    assert (orders.state, orders.since_lsn, orders.timeline) == ("r", 0, None)
    assert (waits.waits, waits.follows) == ("why", False)


def test_tables_that_were_being_added_are_copied_again(catalog):
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW], follow=(), remove=())
    reset.follow(catalog, "shop", SERVER, Lsn(0x8000))
    assert [(rel.name, rel.state) for rel in catalog.rels(sync_name("shop"))] == [("new", "d")]
    worker = catalog.subscription(sync_name("shop"))
    assert (worker.slot_state, worker.system_identifier) == (refresh.DROPPING, "2")


@pytest.mark.parametrize(
    ("begin", "what"),
    [
        (lambda catalog: catalog.begin_batch("shop", BatchIntent(Lsn(0x20), Lsn(0x30))), "a batch that was begun"),
        (lambda catalog: catalog.put_rel("shop", RelRow("n", "t", "r", Lsn(1), "/t", 5, Lsn(0x30), 3)), "a table with"),
        (
            lambda catalog: catalog.finish_batch("shop", Lsn(0x30), [PreparedRow("5.1", "gid", 5, Lsn(0x30))]),
            "a prepared transaction",
        ),
    ],
    ids=["batch", "table", "prepared"],
)
def test_what_is_under_way(catalog, begin, what):
    begin(catalog)
    with pytest.raises(StateError, match=what):
        reset.check_finished(catalog, "shop")

"""An origin is shown as it is, and moves by hand only forward, with nothing half done."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.commands.origin import advance, collect, render
from pgbridge.bridge.runtime.errors import SkipError, StateError
from pgbridge.protocol.lsn import Lsn
from tests.bridge.monitor.registered import registered


@pytest.fixture
def shop(tmp_path):
    """(configuration, catalog, subscription): the origin stands at 0/100, and no server answers."""
    with registered(tmp_path) as (settings, catalog):
        catalog.create_origin("shop", Lsn(0x100), "abc", [RelRow("public", "t", "s", Lsn(0x180), "/lake/public/t")])
        yield settings, catalog, settings.subscription["shop"]


def shown(catalog, subscription):
    stream = io.StringIO()
    Console(file=stream, width=120).print(render(collect([subscription], catalog)))
    return [line.split() for line in stream.getvalue().splitlines()]


def moved(shop, text):
    settings, catalog, subscription = shop
    return advance(settings, catalog, subscription, text)


def test_a_batch_under_way_is_shown(shop):
    _, catalog, subscription = shop
    catalog.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x120)))
    assert shown(catalog, subscription)[1] == ["shop", "pgbridge_shop", "0/100", "0/100", "to", "0/120"]
    catalog.begin_undo("shop")
    assert shown(catalog, subscription)[1][-2:] == ["(being", "undone)"]
    assert collect([subscription], catalog)["origins"][0]["batch"] == {
        "start_lsn": "0/100",
        "end_lsn": "0/120",
        "undoing": True,
    }


def test_forward(shop):
    """A table whose copy the origin has passed is ready then."""
    text = moved(shop, "0/180")
    assert text == 'origin "pgbridge_shop": 0/100 -> 0/180; transactions that end in between are never applied'
    assert shop[1].remote_lsn("shop") == 0x180
    assert shop[1].rels("shop")[0].state == "r"
    moved(shop, "0/180")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/FF", "the origin is already at 0/100: going back to 0/FF would apply changes"),
        ("later", "invalid WAL location"),
    ],
)
def test_not_back_and_not_anywhere(shop, text, message):
    with pytest.raises((StateError, SkipError), match=message):
        moved(shop, text)
    assert shop[1].remote_lsn("shop") == 0x100


def test_not_while_the_daemon_runs(shop):
    with locked(shop[0].state_dir), pytest.raises(StateError, match='origin "pgbridge_shop": '):
        moved(shop, "0/180")


def test_not_with_a_batch_half_done(shop):
    shop[1].begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x120)))
    with pytest.raises(StateError, match="a batch up to 0/120 was begun and not finished\nHINT:  run the daemon"):
        moved(shop, "0/180")


def test_not_before_the_first_start(shop):
    settings, catalog, subscription = shop
    catalog.register("new", enabled=True)
    with pytest.raises(StateError, match='subscription "new" has no origin yet'):
        advance(settings, catalog, subscription.model_copy(update={"name": "new"}), "0/1")


def test_not_beyond_what_the_server_has(shop, publisher):
    """What it has not written yet would be lost."""
    settings, catalog, subscription = shop
    reachable = subscription.model_copy(update={"connection": publisher.conninfo})
    with pytest.raises(SkipError, match="LSN FF/0 is ahead of the publisher's flush position"):
        advance(settings, catalog, reachable, "FF/0")

"""The subscription's tables and their columns."""

from __future__ import annotations

import sqlite3

import pytest

from pgbridge.bridge.catalog.catalog_rows import AppliedBatch, BatchIntent, ColumnRow, RelRow
from pgbridge.protocol.lsn import Lsn
from tests.bridge.track.made_catalog import T1


def test_tables_by_name(catalog):
    """Names are told apart as the server does: case, spaces, quotes and scripts are part of them."""
    names = [("a", "b"), ("A", "b"), ("a", 'b "c" d'), ("a.b", "c"), ("a", "b.c"), ("büro", "ключ")]
    rels = [RelRow(namespace, name, "i", Lsn(n), f"/lake/{n}") for n, (namespace, name) in enumerate(names)]
    for rel in rels:
        catalog.put_rel("shop", rel)
    assert catalog.rels("shop") == sorted(rels, key=lambda rel: (rel.namespace, rel.name))
    assert rels[2].qualified_name == 'a.b "c" d'


def test_table_is_written_over(catalog):
    catalog.put_rel("shop", T1)
    changed = RelRow("public", "t1", "s", Lsn(0x300), "/lake/public/t1")
    catalog.put_rel("shop", changed)
    assert catalog.rels("shop") == [changed]


@pytest.mark.parametrize("by", ["finish_batch", "advance_origin"])
def test_synchronised_table_becomes_ready(started, by):
    """Once the origin has reached its snapshot, from either side, and not before; other states stay."""
    others = [RelRow("public", f"x{state}", state, Lsn(1), f"/lake/x{state}") for state in "idfr"]
    for rel in others:
        started.put_rel("shop", rel)

    def states() -> dict[str, str]:
        return {rel.name: rel.state for rel in started.rels("shop")}

    move = getattr(started, by)
    move("shop", Lsn(0x1FF))
    assert states() == {"t1": "i", "t2": "s", **{f"x{state}": state for state in "idfr"}}
    move("shop", Lsn(0x200))
    assert states() == {"t1": "i", "t2": "r", **{f"x{state}": state for state in "idfr"}}


def test_unknown_state_is_refused(catalog):
    with pytest.raises(sqlite3.IntegrityError):
        catalog.put_rel("shop", RelRow("public", "t1", "x", Lsn(0), "/lake/public/t1"))


def test_tables_need_their_subscription(catalog):
    with pytest.raises(sqlite3.IntegrityError):
        catalog.put_rel("nobody", T1)


def test_a_table_is_one_subscriptions(started):
    """Two subscriptions that write to one Delta table would undo each other's work, and may begin at once."""
    started.register("other", enabled=True)
    assert started.claim("other", ["/lake/y", "/lake/public/t1"]) == ("/lake/public/t1", "shop")
    assert started.claim("shop", ["/lake/public/t1", "/lake/y"]) is None
    assert started.claim("other", ["/link/y"], lambda path: path.replace("link", "lake")) == ("/link/y", "shop")
    assert started.claim("shop:sync", ["/lake/public/t1"]) is None, "tables move between a subscription and its worker"
    started.release("shop:sync")
    started.release("shop")
    assert started.claim("other", ["/lake/y"]) is None


def test_columns_of_published_tables_move_with_the_origin(catalog):
    """They are written with a copy, and later with the batch in which they changed."""
    catalog.register("shop", enabled=True)
    catalog.create_origin("shop", Lsn(10), "inc", [])
    one, two = ColumnRow(1, "id", 23, -1), ColumnRow(2, "c", 25, -1, "hidden")
    catalog.put_columns("shop", 7, [two, one])
    catalog.put_columns("shop", 8, [one])
    assert catalog.columns("shop") == {7: (one, two), 8: (one,)}
    gone = ColumnRow(2, "c", 25, -1, "gone")
    catalog.begin_batch("shop", BatchIntent(Lsn(10), Lsn(20), alters=True))
    assert catalog.batch("shop") == BatchIntent(Lsn(10), Lsn(20), alters=True)
    applied = AppliedBatch("o", Lsn(10), 1, 2, 1, ())
    catalog.finish_batch("shop", Lsn(20), columns={7: (one, gone)}, applied=applied)
    assert catalog.columns("shop") == {7: (one, gone), 8: (one,)}
    assert catalog.columns("other") == {}

"""The durable positions, as they stand in a catalog's file."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog import refresh, reset
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import AppliedBatch, BatchIntent, sync_name
from pgbridge.bridge.catalog.held import ahead_of_origin, fence_lsn, give_up_batch, held, note_timeline, timeline_begins
from pgbridge.bridge.track.position import Held, Position
from pgbridge.protocol.lsn import INVALID, Lsn
from tests.bridge.track.made_catalog import T1, T2, server_on

TABLES = {("public", "t1"): Position("7", None, Lsn(0)), ("public", "t2"): Position("7", None, Lsn(0x200))}


def at(lsn: int, timeline: int | None = 2) -> Position:
    """A position of a timeline; where 3 and 5 begin is known, as soon as they are noted."""
    return Position("7", timeline, Lsn(lsn), Lsn(0) if timeline in {3, 5} else None)


@pytest.fixture
def shop(catalog):
    """`started`, with the identifier of its server, and on timeline 2."""
    catalog.set_slot("shop", slot_name="shop", slot_state="creating", system_identifier="7")
    catalog.create_origin("shop", Lsn(0x100), "abc", [T1, T2], 2)
    return catalog


def test_before_there_is_an_origin(catalog):
    assert held(catalog, "shop") is None
    assert held(catalog, "other") is None


def test_an_origin_and_its_tables(shop):
    assert held(shop, "shop") == Held(at(0x100), None, TABLES)


def test_a_tables_position_is_where_it_joined_or_what_its_log_has(shop):
    shop.put_rel("shop", replace(T2, position=Lsn(0x250), timeline=1))
    shop.put_rel("shop", replace(T1, lsn=Lsn(0x90), position=Lsn(0x80), timeline=2))
    positions = held(shop, "shop")
    assert positions is not None
    assert positions.tables == {("public", "t1"): at(0x90, 2), ("public", "t2"): at(0x250, 1)}


def test_the_batch_under_way_and_the_transaction_to_skip(shop):
    shop.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    shop.set_skip_lsn("shop", Lsn(0x140))
    note_timeline(shop, "shop", server_on(3))
    assert held(shop, "shop") == Held(at(0x100, 3), at(0x150), TABLES, at(0x140))
    shop.finish_batch("shop", Lsn(0x150), clear_skip_lsn=Lsn(0x140))
    assert held(shop, "shop") == Held(at(0x150, 3), None, TABLES)


def test_the_fence_until_the_origin_has_reached_it(shop):
    shop.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    give_up_batch(shop, "shop")
    note_timeline(shop, "shop", server_on(3))
    assert held(shop, "shop") == Held(at(0x100, 3), None, TABLES, fence=at(0x150))
    shop.finish_batch("shop", Lsn(0x140))
    positions = held(shop, "shop")
    assert positions is not None
    assert positions.fence == at(0x150)
    shop.finish_batch("shop", Lsn(0x150))
    assert held(shop, "shop") == Held(at(0x150, 3), None, TABLES)


def test_a_lower_fence_keeps_the_timeline_of_the_higher_one(shop):
    shop.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x150)))
    give_up_batch(shop, "shop")
    note_timeline(shop, "shop", server_on(3))
    shop.begin_batch("shop", BatchIntent(Lsn(0x100), Lsn(0x120)))
    give_up_batch(shop, "shop")
    positions = held(shop, "shop")
    assert positions is not None
    assert positions.fence == at(0x150, 2)


def test_a_tablesync_worker_has_its_own(shop):
    name = sync_name("shop")
    refresh.take_up(shop, "shop", 0, bring_in=[replace(T1, state="d")], follow=(), remove=())
    assert held(shop, name) is None
    shop.create_origin(name, Lsn(0x300), "def", [], 4)
    worker = held(shop, name)
    assert worker is not None
    assert (worker.origin.timeline, worker.origin.lsn, list(worker.tables)) == (4, 0x300, [("public", "t1")])
    main = held(shop, "shop")
    assert main is not None
    assert (main.origin, list(main.tables)) == (at(0x100), [("public", "t2")])


def test_a_timeline_is_noted_with_the_one_before(shop, path):
    assert [note_timeline(shop, "shop", server_on(timeline)) for timeline in (2, 3, 3, 5)] == [2, 2, 3, 3]
    with closing(Catalog(path)) as reopened:
        positions = held(reopened, "shop")
        assert positions is not None
        assert positions.origin == at(0x100, 5)


def test_where_a_timeline_begins(shop, path):
    """Noted with it, once: two servers may have timelines of the same number."""
    assert timeline_begins(shop, "shop") == {}
    note_timeline(shop, "shop", server_on(2, begin=0x80))
    note_timeline(shop, "shop", server_on(3, begin=0x100))
    shop.put_rel("shop", replace(T2, timeline=2))
    with closing(Catalog(path)) as reopened:
        assert timeline_begins(reopened, "shop") == {2: 0x80, 3: 0x100}
        positions = held(reopened, "shop")
        assert positions is not None
        assert positions.origin == Position("7", 3, Lsn(0x100), Lsn(0x100))
        assert positions.tables[T2.namespace, T2.name] == Position("7", 2, Lsn(0x200), Lsn(0x80))
        assert positions.tables[T1.namespace, T1.name] == Position("7", None, Lsn(0))


def test_where_timelines_begin_ends_with_a_subscriptions_life(shop):
    note_timeline(shop, "shop", server_on(2, begin=0x80))
    reset.start_afresh(shop, "shop", {("public", "t1")})
    assert timeline_begins(shop, "shop") == {}
    name = sync_name("shop")
    refresh.take_up(shop, "shop", 0, bring_in=[replace(T1, state="d")], follow=(), remove=())
    shop.create_origin(name, Lsn(0x300), "def", [], 4)
    note_timeline(shop, name, server_on(4, begin=0x80))
    refresh.begin_anew(shop, "shop")
    assert timeline_begins(shop, name) == {}


def test_the_first_timeline_of_an_earlier_versions_catalog(started):
    """It did not know one."""
    assert note_timeline(started, "shop", server_on(3)) is None
    assert note_timeline(started, "shop", server_on(3)) == 3


def test_without_an_origin_nothing_is_noted(catalog):
    assert note_timeline(catalog, "shop", server_on(3)) is None
    assert held(catalog, "shop") is None


def test_of_other_subscriptions_nothing_is_noted(shop):
    shop.register("other", enabled=True)
    shop.create_origin("other", Lsn(0x100), "abc", [], 1)
    note_timeline(shop, "shop", server_on(3))
    other = held(shop, "other")
    assert other is not None
    assert other.origin.timeline == 1


def test_what_was_committed_keeps_its_timeline(shop):
    """Promoted since: the origin is on the new one, the table that had no changes is not."""
    shop.put_rel("shop", replace(T1, state="r"))
    shop.finish_batch("shop", Lsn(0x150), applied=AppliedBatch("o", Lsn(0x100), 1, 2, 1, (), (T1.path,)))
    note_timeline(shop, "shop", server_on(3))
    shop.finish_batch("shop", Lsn(0x250), applied=AppliedBatch("o", Lsn(0x150), 1, 2, 1, (), (T2.path,)))
    assert held(shop, "shop") == Held(
        at(0x250, 3), None, {("public", "t1"): at(0x150, 2), ("public", "t2"): at(0x250, 3)}
    )


@pytest.mark.parametrize(
    ("lsn", "position", "ahead"),
    [(0x80, 0x101, True), (0x80, 0x100, False), (0x80, 0, False), (0x180, 0x180, False), (0x180, 0x181, True)],
)
def test_tables_ahead_of_the_origin_by_a_batch(shop, lsn, position, ahead):
    """Not by a copy: that is never taken back."""
    rel = replace(T2, lsn=Lsn(lsn), position=Lsn(position))
    shop.put_rel("shop", rel)
    assert ahead_of_origin(shop, "shop") == ([rel] if ahead else [])
    assert ahead_of_origin(shop, "other") == []


def test_it_outlives_the_intent_and_never_goes_back(tmp_path):
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        assert fence_lsn(catalog, "sub") == INVALID
        catalog.create_origin("sub", Lsn(10), "inc", [])
        assert give_up_batch(catalog, "sub") is None
        for end_lsn in (40, 30):
            catalog.begin_batch("sub", BatchIntent(Lsn(10), Lsn(end_lsn)))
            assert give_up_batch(catalog, "sub") == Lsn(end_lsn)
            assert catalog.batch("sub") is None
        assert fence_lsn(catalog, "sub") == Lsn(40)
        row = catalog.subscription("sub")
        assert row is not None
        assert row.epoch == 0, "another application id would let Delta take the batch twice"
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        assert fence_lsn(catalog, "sub") == Lsn(40)

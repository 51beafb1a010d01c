"""Each table is of one stream at any moment, and changes hands only where nothing is lost and nothing comes twice."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog import commits, notes, refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, ColumnRow, PreparedRow, RelRow, owner_of, sync_name
from pgbridge.bridge.catalog.held import held, note_timeline
from pgbridge.protocol.lsn import Lsn
from tests.bridge.track.made_catalog import server_on

OLD = RelRow("public", "old", "r", Lsn(0x50), "/lake/public/old")
NEW = RelRow("public", "new", "i", Lsn(0), "/lake/public/new")
OTHER = RelRow("public", "other", "i", Lsn(0), "/lake/public/other")
SYNC = sync_name("shop")


@pytest.fixture
def catalog(tmp_path):
    """The subscription `shop` with the table `old`, its origin at 0/100."""
    with closing(Catalog(catalog_path(tmp_path / "state"))) as opened:
        opened.register("shop", enabled=True)
        opened.create_origin("shop", Lsn(0x100), "abc", [OLD])
        yield opened


def bring_in(catalog, *rels, at=None):
    """Take tables up; with `at`, they are copied at that LSN, and their own stream is there."""
    refresh.take_up(catalog, "shop", 0, bring_in=rels, follow=(), remove=())
    if at is not None:
        catalog.create_origin(SYNC, Lsn(at), "def", [])
        for rel in catalog.rels(SYNC):
            catalog.put_rel(SYNC, RelRow(rel.namespace, rel.name, "f", Lsn(at), rel.path))


def states(catalog, name="shop"):
    return {rel.name: (rel.state, rel.lsn) for rel in catalog.rels(name)}


def test_requests_are_taken_in_order_and_once(catalog):
    """Also the same request again: requests after the ones taken up stay."""
    refresh.ask(catalog, "shop", [None], copy_data=True)
    refresh.ask(catalog, "shop", [("public", "a"), ("s", "b.c")], copy_data=False)
    first = refresh.asked(catalog, "shop")
    assert [(row.table, row.copy_data) for row in first] == [
        (None, True),
        (("public", "a"), False),
        (("s", "b.c"), False),
    ]
    refresh.ask(catalog, "shop", [None], copy_data=True)
    refresh.take_up(catalog, "shop", first[-1].number, bring_in=(), follow=(), remove=())
    assert [row.table for row in refresh.asked(catalog, "shop")] == [None]
    catalog.register("hr", enabled=True)
    assert refresh.asked(catalog, "hr") == []


def test_a_table_is_asked_to_join_once(catalog):
    """Not if it is asked for anyhow."""
    a, b = ("public", "a"), ("s", "b.c")
    assert refresh.ask_to_join(catalog, "shop", [a], copy_data=False) == [a]
    assert refresh.ask_to_join(catalog, "shop", [a, b], copy_data=True) == [b]
    rows = [(row.table, row.copy_data, row.unpublished, row.joins) for row in refresh.asked(catalog, "shop")]
    assert rows == [(a, False, False, True), (b, True, False, True)]
    refresh.ask(catalog, "shop", [None], copy_data=True)
    assert refresh.ask_to_join(catalog, "shop", [("public", "c")], copy_data=True) == []


def test_tables_that_are_taken_up(catalog):
    afresh = RelRow("public", "old", "d", Lsn(0), OLD.path)
    follow = RelRow("public", "other", "r", Lsn(0), OTHER.path)
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW, afresh], follow=[follow], remove=())
    assert states(catalog) == {"other": ("r", 0)}
    assert states(catalog, SYNC) == {"new": ("i", 0), "old": ("d", 0)}
    refresh.take_up(catalog, "shop", 0, bring_in=(), follow=(), remove=[("public", "other"), ("public", "new")])
    assert states(catalog) == {}
    assert states(catalog, SYNC) == {"old": ("d", 0)}


def test_without_tables_to_bring_in_there_are_no_rows(catalog):
    refresh.take_up(catalog, "shop", 0, bring_in=(), follow=[OTHER], remove=[("public", "old")])
    assert catalog.subscription(SYNC) is None


@pytest.mark.parametrize(("at", "state"), [(0x100, "r"), (0x180, "s")])
def test_hand_over_where_the_origins_meet(catalog, at, state):
    """Its own stream may be ahead: all changes before that are in the table."""
    bring_in(catalog, NEW, at=at)
    for name in ("shop", SYNC):
        notes.count_conflicts(catalog, name, {"update_missing": 2})
    assert refresh.hand_over(catalog, "shop") == [RelRow("public", "new", state, Lsn(at), NEW.path)]
    assert states(catalog) == {"old": ("r", 0x50), "new": (state, at)}
    assert catalog.remote_lsn(SYNC) is None
    assert catalog.subscription(SYNC).slot_state == refresh.DROPPING
    refresh.slot_dropped(catalog, "shop")
    assert catalog.subscription(SYNC) is None
    assert (notes.conflicts(catalog, "shop"), notes.conflicts(catalog, SYNC)) == ({"update_missing": 4}, {})
    catalog.advance_origin("shop", Lsn(0x180))
    assert states(catalog)["new"] == ("r", at)


def test_a_copy_that_is_ahead_of_its_own_stream(catalog):
    """The second copy of one that was cut short has a later snapshot."""
    bring_in(catalog, NEW, at=0x100)
    catalog.put_rel(SYNC, RelRow("public", "new", "s", Lsn(0x200), NEW.path))
    (given,) = refresh.hand_over(catalog, "shop")
    assert (given.state, given.lsn) == ("s", 0x200)


@pytest.mark.parametrize(("position", "state"), [(0x90, "r"), (0x100, "r")])
def test_a_table_keeps_the_position_of_its_own_log(catalog, position, state):
    """It joins where the worker's stream was, on the worker's timeline."""
    bring_in(catalog, NEW, at=0x100)
    catalog.put_rel(SYNC, RelRow("public", "new", "s", Lsn(0x80), NEW.path, position=Lsn(position), timeline=1))
    note_timeline(catalog, SYNC, server_on(3))
    (given,) = refresh.hand_over(catalog, "shop")
    assert given == RelRow("public", "new", state, Lsn(0x100), NEW.path, position=Lsn(position), timeline=3)
    assert given in catalog.rels("shop")


def test_a_table_that_is_ahead_of_the_others_is_not_handed_over(catalog):
    """Of a batch that was cut short; the others get there first."""
    bring_in(catalog, NEW, at=0x100)
    catalog.put_rel(SYNC, RelRow("public", "new", "s", Lsn(0x80), NEW.path, position=Lsn(0x180), timeline=1))
    assert refresh.hand_over(catalog, "shop") == []


@pytest.mark.parametrize("state", ["s", "r"])
def test_a_table_of_the_stream_is_copied_afresh_beside_it(catalog, state):
    """By the tablesync worker, while the others go on."""
    lost = RelRow("public", "lost", state, Lsn(0x80), "/lake/lost", 7, position=Lsn(0x250), timeline=2)
    catalog.put_rel("shop", lost)
    before = states(catalog, "shop")
    refresh.copy_afresh(catalog, "shop", ("public", "lost"))
    assert before.pop("lost") == (state, 0x80)
    assert states(catalog, "shop") == before
    assert catalog.rels(SYNC) == [RelRow("public", "lost", "d", Lsn(0), "/lake/lost", 7)]


@pytest.mark.parametrize(("name", "state"), [("shop", "f"), (SYNC, "f"), (SYNC, "s"), (SYNC, "r")])
def test_a_table_that_does_not_follow_the_stream_yet_is_copied_afresh_where_it_is(catalog, name, state):
    bring_in(catalog, NEW, at=0x100)
    lost = RelRow("public", "lost", state, Lsn(0x80), "/lake/lost", 7, position=Lsn(0x250), timeline=2)
    catalog.put_rel(name, lost)
    refresh.copy_afresh(catalog, name, ("public", "lost"))
    assert RelRow("public", "lost", "d", Lsn(0), "/lake/lost", 7) in catalog.rels(name)


def test_what_is_known_of_columns_goes_along(catalog):
    """They replace the columns known before the table was copied afresh, unless the copy is void."""
    before, after, other = (ColumnRow(number, "id", 23, -1) for number in (1, 2, 3))
    catalog.put_columns("shop", 7, [before])
    catalog.put_columns("shop", 8, [other])
    bring_in(catalog, NEW, at=0x100)
    catalog.put_columns(SYNC, 7, [after])
    refresh.hand_over(catalog, "shop")
    assert catalog.columns("shop") == {7: (after,), 8: (other,)}
    assert catalog.columns(SYNC) == {}
    catalog.put_columns(SYNC, 7, [before])
    refresh.begin_anew(catalog, "shop")
    assert catalog.columns(SYNC) == {}
    assert owner_of(SYNC) == owner_of("shop") == "shop"


def test_no_hand_over_while_changes_are_missing(catalog):
    """The stream has passed the table; a batch is unfinished; nothing is copied; no stream exists yet."""
    bring_in(catalog, NEW)
    assert refresh.hand_over(catalog, "shop") == []
    catalog.create_origin(SYNC, Lsn(0xFF), "def", [])
    assert refresh.hand_over(catalog, "shop") == []
    catalog.put_rel(SYNC, RelRow("public", "new", "s", Lsn(0xF0), NEW.path))
    assert refresh.hand_over(catalog, "shop") == []
    catalog.begin_batch(SYNC, BatchIntent(Lsn(0xFF), Lsn(0x120)))
    assert refresh.hand_over(catalog, "shop") == []
    catalog.finish_batch(SYNC, Lsn(0x120))
    assert [rel.name for rel in refresh.hand_over(catalog, "shop")] == ["new"]


def test_a_table_that_is_not_copied_begins_anew(catalog):
    """It does not keep the others back."""
    bring_in(catalog, NEW, OTHER, at=0x100)
    catalog.put_rel(SYNC, RelRow("public", "other", "d", Lsn(0), OTHER.path))
    assert [rel.name for rel in refresh.hand_over(catalog, "shop")] == ["new"]
    refresh.slot_dropped(catalog, "shop")
    assert states(catalog, SYNC) == {"other": ("d", 0)}
    assert catalog.subscription(SYNC).slot_state is None


def test_begin_anew(catalog):
    bring_in(catalog, NEW, at=0x100)
    catalog.put_rel(SYNC, RelRow("public", "new", "s", Lsn(0x100), NEW.path, position=Lsn(0x110)))
    catalog.begin_batch(SYNC, BatchIntent(Lsn(0x100), Lsn(0x120)))
    catalog.finish_batch(SYNC, Lsn(0x120), [PreparedRow("1.1", "gid", 1, Lsn(0x110))])
    refresh.begin_anew(catalog, "shop")
    assert states(catalog, SYNC) == {"new": ("d", 0)}
    assert [rel.since_lsn for rel in catalog.rels(SYNC)] == [0]
    assert (catalog.remote_lsn(SYNC), catalog.batch(SYNC), catalog.prepared(SYNC)) == (None, None, [])


def test_errors_count_as_the_subscriptions(catalog):
    refresh.count_sync_error(catalog, "shop")
    assert catalog.subscription("shop").sync_error_count == 1


def test_a_table_that_waits_leaves_the_batches_and_joins_them_after_its_copy(catalog):
    """Nothing else of it changes, and a hand-over, or the end of a copy's slot, does not lose the mark of another."""
    recorded = catalog.rows("SELECT count(*) FROM commit_record")[0][0]
    refresh.have_wait(catalog, "shop", [("public", "old")], "x\nHINT:  y", 5.0)
    refresh.have_wait(catalog, "shop", [("public", "old")], "x\nHINT:  y", 5.0)
    (rel,) = refresh.waiting(catalog, "shop")
    assert rel == replace(OLD, waits="x\nHINT:  y", waits_since_s=5.0)
    assert not rel.follows
    catalog.put_rel("shop", rel)
    commits.join_again(catalog, "shop")
    bring_in(catalog, NEW, at=0x100)
    refresh.have_wait(catalog, SYNC, [("public", "new")], "z", 6.0)
    assert [rel.name for rel in refresh.waiting(catalog, "shop")] == ["old", "new"]
    assert [(rel.state, rel.waits) for rel in refresh.hand_over(catalog, "shop")] == [("r", "z")]
    refresh.copy_afresh(catalog, "shop", ("public", "old"))
    assert [rel.name for rel in refresh.waiting(catalog, "shop")] == ["new"]
    bring_in(catalog, replace(OLD, state="d"), at=0x100)
    refresh.hand_over(catalog, "shop")
    kinds = catalog.rows("SELECT kind, json_extract(tables, '$[0][1]') FROM commit_record ORDER BY number")
    assert kinds[recorded:] == [("left", "old"), ("joined", "old")]
    positions = held(catalog, "shop")
    assert positions is not None
    assert positions.tables.keys() == {("public", "old")}
    refresh.have_wait(catalog, "shop", [("public", "old")], "x", 5.0)
    refresh.take_up(catalog, "shop", 0, bring_in=(), follow=(), remove=[("public", "old"), ("public", "new")])
    assert refresh.waiting(catalog, "shop") == []

"""The ranges of a table's copy: what is read of them, and what is known of them once the table follows the stream."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog import copied_ranges, manifest, refresh, reset
from pgbridge.bridge.catalog.catalog_rows import RelRow, sync_name
from pgbridge.bridge.catalog.copied_ranges import CopiedRange, RangedCopy
from pgbridge.bridge.catalog.held import ahead_of_origin
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.protocol.lsn import Lsn
from tests.bridge.track.made_catalog import T1

KEY = ("public", "t1")
COPY = RangedCopy("id", "digest", (CopiedRange(0, None, "10"), CopiedRange(1, "10", "20"), CopiedRange(2, "20", None)))


def read(catalog, *lsns, name="shop"):
    """A copy, whose ranges are read in this order."""
    copied_ranges.begin(catalog, name, KEY, COPY)
    for number, lsn in enumerate(lsns):
        copied_ranges.done(catalog, name, KEY, number, Lsn(lsn), [f"file {number}"])


def bounds(catalog, name="shop"):
    copy = copied_ranges.read(catalog, name, KEY)
    return None if copy is None else [(each.lower, each.upper, each.lsn, each.files) for each in copy.ranges]


def test_what_is_read_is_kept(started):
    assert copied_ranges.read(started, "shop", KEY) is None
    read(started, 0x200)
    copy = copied_ranges.read(started, "shop", KEY)
    assert copy == replace(COPY, ranges=(replace(COPY.ranges[0], lsn=Lsn(0x200), files=("file 0",)), *COPY.ranges[1:]))
    assert [each.number for each in copy.missing] == [1, 2]
    assert copied_ranges.lsns(started, "shop", T1) == [0x200]
    copied_ranges.begin(started, "shop", KEY, COPY)
    assert copied_ranges.read(started, "shop", KEY) == COPY


def test_ranges_of_one_snapshot_are_forgotten(started):
    read(started, 0x200, 0x200, 0x200)
    copied_ranges.finish(started, "shop", KEY)
    assert copied_ranges.read(started, "shop", KEY) is None


def test_ranges_of_several_snapshots_are_joined(started):
    read(started, 0x200, 0x200, 0x300)
    copied_ranges.finish(started, "shop", KEY)
    assert bounds(started) == [(None, "20", 0x200, ()), ("20", None, 0x300, ())]


def test_they_are_forgotten_once_the_origin_has_passed_them(started):
    read(started, 0x200, 0x300, 0x300)
    copied_ranges.finish(started, "shop", KEY)
    rel = replace(T1, state="r", lsn=Lsn(0x300), position=Lsn(0x200), first_lsn=Lsn(0x200))
    started.put_rel("shop", rel)  # as a recovery puts it back
    assert started.advance_origin("shop", Lsn(0x240))
    assert bounds(started) is not None
    started.put_rel("shop", replace(rel, state="s"))
    assert started.advance_origin("shop", Lsn(0x250))
    assert bounds(started) is not None
    assert started.advance_origin("shop", Lsn(0x300))
    assert bounds(started) is None
    assert started.rels_by_name("shop")[KEY] == replace(rel, first_lsn=Lsn(0))


def test_a_table_is_ahead_from_its_first_snapshot_on(started):
    """Also for the command that moves the origin."""
    for position, ahead in ((0x200, False), (0x250, True)):
        rel = replace(T1, state="s", lsn=Lsn(0x300), position=Lsn(position), first_lsn=Lsn(0x200))
        started.put_rel("shop", rel)
        assert [rel.name for rel in ahead_of_origin(started, "shop")] == ["t1"] * ahead
        assert rel.whole_lsn == position
        with pytest.raises(StateError, match="tables have changes up to 0/250") if ahead else nullcontext():
            started.set_origin("shop", Lsn(0x210))


def test_a_copy_that_another_one_has_replaced(started):
    read(started, 0x200)
    with started.transaction() as db:
        copied_ranges.forget(db, "shop", [KEY])
    with pytest.raises(StateError, match="were forgotten while it was copied"):
        copied_ranges.done(started, "shop", KEY, 1, Lsn(0x300), [])


def test_they_move_with_the_table_and_go_with_it(started):
    sync = sync_name("shop")
    anew = RelRow(*KEY, "d", Lsn(0), T1.path, T1.relid)
    read(started, 0x200)
    refresh.take_up(started, "shop", 0, bring_in=[anew], follow=(), remove=())
    assert bounds(started) is None, "the copy is another one, of another slot"
    started.set_slot(sync, slot_name="s", slot_state="ready", system_identifier="7")
    started.create_origin(sync, Lsn(0x200), "abc", [], 2)
    read(started, 0x200, 0x300, 0x300, name=sync)
    copied_ranges.finish(started, sync, KEY)
    started.put_rel(sync, replace(anew, state="s", lsn=Lsn(0x300), position=Lsn(0x250), first_lsn=Lsn(0x200)))
    started.advance_origin(sync, Lsn(0x250))
    started.put_rel(sync, RelRow("public", "other", "d", Lsn(0), "/other"))
    copied_ranges.begin(started, sync, ("public", "other"), COPY)
    assert copied_ranges.are_read(started, sync) is False
    copied_ranges.done(started, sync, ("public", "other"), 0, Lsn(0x260), ["a file"])
    assert copied_ranges.are_read(started, sync)
    (given,) = refresh.hand_over(started, "shop")
    assert (given.lsn, given.first_lsn, given.whole_lsn) == (0x300, 0x250, 0x250)
    assert bounds(started, sync) is None
    assert bounds(started) == [(None, "10", 0x250, ()), ("10", None, 0x300, ())]
    assert copied_ranges.read(started, "shop", ("public", "other")) is None, "it is copied again"
    refresh.copy_afresh(started, "shop", KEY)
    assert bounds(started) is bounds(started, sync) is None


def test_the_manifest_has_them_once_the_copy_is_done(started):
    def rows():
        document = manifest.due(started, "shop", "boot")
        assert document is not None
        return manifest.Manifest.of(document.document).tables["copied_range"]

    read(started, 0x200, 0x300)
    assert rows() == []
    copied_ranges.done(started, "shop", KEY, 2, Lsn(0x300), [])
    copied_ranges.finish(started, "shop", KEY)
    assert [row[4:] for row in rows()] == [["id", None, "10", "digest", 0x200], ["id", "10", None, "digest", 0x300]]


def test_a_recovery_puts_them_back(started, catalog):
    read(started, 0x200, 0x300, 0x300)
    copied_ranges.finish(started, "shop", KEY)
    started.put_rel("shop", replace(T1, state="s", lsn=Lsn(0x300), position=Lsn(0x200), first_lsn=Lsn(0x200)))
    document = manifest.due(started, "shop", "boot")
    assert document is not None
    known = manifest.Manifest.of(document.document)
    assert {rel.name: rel.first_lsn for rel in known.rels("shop")} == {"t1": 0x200, "t2": 0}
    before = bounds(started)
    reset.forget_rows(catalog, "shop")
    with catalog.transaction() as db:
        manifest.put_back(db, "shop", known, {"shop": (Lsn(0x100), 1)}, 1)
    assert bounds(catalog) == before
    assert {rel.name: rel.first_lsn for rel in catalog.rels("shop")} == {"t1": 0x200, "t2": 0}

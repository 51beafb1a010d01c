"""Pictures and differences in the state catalog."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog import followed, refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.publication.catalog_picture import Partition, TablePicture
from pgbridge.bridge.publication.differences import Comparison, Difference
from pgbridge.bridge.publication.routing_then import Former
from pgbridge.protocol.lsn import Lsn

T, U = ("public", "t"), ("public", "u")
GAP, GONE = Difference("gap", T, "", "a gap", "resync"), Difference("dropped", U, "", "dropped", "refresh")
PICTURE = TablePicture(1, T, "d")


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(catalog_path(tmp_path))) as opened:
        opened.register("shop", enabled=True)
        opened.create_origin("shop", Lsn(1), "abc", [RelRow(*name, "r", Lsn(1), f"/lake/{name[1]}") for name in (T, U)])
        yield opened


def test_a_difference_keeps_the_time_when_it_was_first_seen(catalog):
    first = followed.record(catalog, "shop", Comparison((GAP,), (), {T: PICTURE}), 1.0)
    again = followed.record(catalog, "shop", Comparison((GAP, GONE), (), {}), 2.0)
    assert (first.new, first.over, again.new, again.over) == ([GAP], [], [GONE], [])
    assert [(one.difference, one.since_s) for one in followed.seen(catalog, "shop")] == [(GAP, 1.0), (GONE, 2.0)]
    last = followed.record(catalog, "shop", Comparison((GONE,), (), {}), 3.0)
    assert (last.new, last.over) == ([], [GAP])
    assert followed.pictures(catalog, "shop") == {T: PICTURE}


def test_a_copy_and_a_removal_end_what_is_known(catalog):
    followed.record(catalog, "shop", Comparison((GAP, GONE), (), {T: PICTURE, U: PICTURE}), 1.0)
    followed.copied(catalog, "shop", T, None)
    assert [one.difference for one in followed.seen(catalog, "shop")] == [GONE]
    refresh.take_up(catalog, "shop", 0, bring_in=(), follow=(), remove=[U])
    assert followed.seen(catalog, "shop") == []
    assert followed.pictures(catalog, "shop") == {}
    assert set(refresh.removed(catalog, "shop")) == {U}
    refresh.take_up(catalog, "shop", 0, bring_in=[RelRow(*U, "d", Lsn(0), "/lake/u")], follow=(), remove=())
    assert refresh.removed(catalog, "shop") == {}


def test_what_looks_have_seen_of_partitions(catalog):
    """The earliest first; what was seen last may still be so."""
    leaf = Partition(5, "public.l", 1, is_leaf=True, attached=False, has_rows=False, xid="9")
    picture = replace(PICTURE, partitions=(leaf,), formers=(Former(5, 3, 7, 60), Former(5, 2, 6, 50)))
    followed.record(catalog, "shop", Comparison((), (), {T: picture}), 1.0)
    assert followed.formers(catalog, "shop") == {5: [Former(5, 2, 6, 50), Former(5, 3, 7, 60), Former(5, 1, 9)]}

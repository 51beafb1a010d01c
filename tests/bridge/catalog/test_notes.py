"""Conflict counters add up; copies are those recorded last."""

from __future__ import annotations

from contextlib import closing

from bridge.catalog import notes
from bridge.catalog.catalog import Catalog, catalog_path
from bridge.catalog.catalog_rows import CopyRow
from bridge.catalog.notes import left_out, put_left_out


def test_copies_are_those_that_were_put_last(started):
    one = CopyRow("public", "t1", 1, 2, 3, None, None)
    two = CopyRow("public", "t2", 10, 20, 30, 1.5, 2.5)
    notes.put_copies(started, "shop", [two, one])
    assert notes.copies(started, "shop") == [one, two]
    assert notes.copies(started, "other") == []
    notes.put_copies(started, "shop", [two])
    assert notes.copies(started, "shop") == [two]
    assert two.qualified_name == "public.t2"


def test_conflicts_are_counted_by_name(started):
    notes.count_conflicts(started, "shop", {"update_missing": 1, "delete_missing": 2})
    notes.count_conflicts(started, "shop", {"delete_missing": 3})
    assert notes.conflicts(started, "shop") == {"delete_missing": 5, "update_missing": 1}
    assert notes.conflicts(started, "other") == {}


def test_each_is_new_once(tmp_path):
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        for name in ("shop", "other"):
            catalog.register(name, enabled=True)
        reasons = {("public", "bare"): "no column", ("public", "a"): "case"}
        assert put_left_out(catalog, "shop", reasons) == [("public", "bare"), ("public", "a")]
        assert put_left_out(catalog, "other", {("public", "x"): "case"}) == [("public", "x")]
        assert put_left_out(catalog, "shop", reasons) == []
        assert list(left_out(catalog, "shop").items()) == sorted(reasons.items())
        assert put_left_out(catalog, "shop", {("public", "bare"): "case"}) == [("public", "bare")]
        assert left_out(catalog, "shop") == {("public", "bare"): "case"}
        assert put_left_out(catalog, "shop", {}) == []
        assert (left_out(catalog, "shop"), len(left_out(catalog, "other"))) == ({}, 1)

"""Tables that are left out: each time all of them are written down, and those that were not so before are told."""

from __future__ import annotations

from contextlib import closing

from bridge.track.catalog import Catalog, catalog_path
from bridge.track.left_out import left_out, put


def test_each_is_new_once(tmp_path):
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        for name in ("shop", "other"):
            catalog.register(name, enabled=True)
        reasons = {("public", "bare"): "no column", ("public", "a"): "case"}
        assert put(catalog, "shop", reasons) == [("public", "bare"), ("public", "a")]
        assert put(catalog, "other", {("public", "x"): "case"}) == [("public", "x")]
        assert put(catalog, "shop", reasons) == []
        assert list(left_out(catalog, "shop").items()) == sorted(reasons.items())
        assert put(catalog, "shop", {("public", "bare"): "case"}) == [("public", "bare")]
        assert left_out(catalog, "shop") == {("public", "bare"): "case"}
        assert put(catalog, "shop", {}) == []
        assert (left_out(catalog, "shop"), len(left_out(catalog, "other"))) == ({}, 1)

"""What was found of tables: kept as it was put, and told to the warehouse once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.catalog.verified import Begun, Equal, VerifiedRow, put, recorded, rows, unrecorded
from pgbridge.protocol.lsn import Lsn

ROW = VerifiedRow("public", "t", "/t", Lsn(10), 105.0, lsn=Lsn(20), at_s=100.0, version=3)
REL = RelRow("public", "t", "r", Lsn(10), "/t")


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(tmp_path / "catalog.sqlite")) as opened:
        opened.register("shop", enabled=True)
        yield opened


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        VerifiedRow("public", "t", "/t", Lsn(10), 105.0, differs="1 missing", differs_lsn=Lsn(30)),
        VerifiedRow(
            "public",
            "t",
            "/t",
            Lsn(10),
            105.0,
            could_not="locked",
            begun=Begun("id", "7", 20, 100.0, 3, {"missing": 2}, partly=True, left_out=True, caveat="c"),
        ),
    ],
)
def test_it_is_read_as_it_was_put(catalog, row):
    for each in (ROW, row):
        put(catalog, "shop", each)
    assert rows(catalog, "shop", [REL]) == {REL: row}
    assert rows(catalog, "other", [REL]) == {}


@pytest.mark.parametrize("change", [{"lsn": Lsn(11)}, {"lsn": Lsn(9)}, {"waits": "for its resync"}, {"state": "f"}])
def test_a_table_that_was_copied_since_is_another(catalog, change):
    put(catalog, "shop", ROW)
    assert rows(catalog, "shop", [replace(REL, **change)]) == {}


def test_the_warehouse_is_told_once(catalog):
    put(catalog, "shop", ROW)
    put(catalog, "shop", replace(ROW, name="u", path="/u"))
    put(catalog, "shop", VerifiedRow("public", "v", "/v", Lsn(10), 105.0, could_not="locked"))
    (equal,) = unrecorded(catalog, "shop")
    assert equal == Equal((("public", "t", "/t"), ("public", "u", "/u")), Lsn(20), 100.0)
    recorded(catalog, "shop", equal)
    put(catalog, "shop", replace(ROW, tried_s=200.0, could_not="locked"))
    assert unrecorded(catalog, "shop") == [], "it was not found equal again"
    put(catalog, "shop", replace(ROW, lsn=Lsn(30), at_s=300.0))
    assert unrecorded(catalog, "shop") == [Equal((("public", "t", "/t"),), Lsn(30), 300.0)]

"""What the warehouse has to know: each change of it is due once, and a catalog can be made of it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog import followed, manifest, refresh
from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import AppliedBatch, BatchIntent, ColumnRow, PreparedRow, RelRow, sync_name
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.pg_type import TypeInfo

ORDERS = RelRow("public", "orders", "r", Lsn(0x10), "/lake/orders", 7, timeline=1)
NEW = RelRow("public", "new", "d", Lsn(0), "/lake/new", 9)


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(tmp_path / "catalog.sqlite")) as opened:
        opened.register("shop", enabled=True)
        opened.set_slot("shop", slot_name="slot", slot_state="creating", system_identifier="1")
        opened.create_origin("shop", Lsn(0x10), "inc", [ORDERS], 1)
        yield opened


def due(catalog):
    """The document that is due, which is written; None for none."""
    found = manifest.due(catalog, "shop", "boot")
    if found is not None:
        manifest.written(catalog, "shop", found)
        assert manifest.due(catalog, "shop", "boot") is None
    return found


def test_a_batch_changes_nothing_of_it(catalog):
    assert due(catalog) is not None
    catalog.begin_batch("shop", BatchIntent(Lsn(0x10), Lsn(0x20)))
    catalog.finish_batch("shop", Lsn(0x20), applied=AppliedBatch("o", Lsn(0x10), 0, 0, 1, (), ("/lake/orders",)))
    catalog.set_state("shop", "streaming", received_lsn=Lsn(0x20))
    catalog.advance_origin("shop", Lsn(0x30))
    catalog.record_error("shop", "an error", counter="apply")
    (row,) = catalog.rows("SELECT changed = written FROM manifest WHERE subscription = 'shop'")
    assert row == (1,)


def test_what_says_the_same_again_is_not_due(catalog):
    due(catalog)
    catalog.put_rel("shop", ORDERS)
    catalog.set_enabled("shop", enabled=True)
    assert due(catalog) is None


CHANGES = {
    "a table waits": lambda catalog: refresh.have_wait(catalog, "shop", [("public", "orders")], "why", 1.0),
    "a table is added": lambda catalog: catalog.put_rel("shop", NEW),
    "a table is copied afresh": lambda catalog: refresh.copy_afresh(catalog, "shop", ("public", "orders")),
    "columns": lambda catalog: catalog.put_columns("shop", 7, [ColumnRow(1, "id", 23, -1)]),
    "types": lambda catalog: followed.keep_types(catalog, "shop", [TypeInfo(5, "t", "e", "E", 0, 0, 0, 0)]),
    "a table is to join": lambda catalog: refresh.ask_to_join(catalog, "shop", [("public", "t")], copy_data=False),
    "a request": lambda catalog: refresh.ask(catalog, "shop", [None], copy_data=True),
    "a later one": lambda catalog: refresh.ask(catalog, "shop", [None], copy_data=False),
    "a transaction is prepared": lambda catalog: catalog.finish_batch(
        "shop", Lsn(0x20), [PreparedRow("5.1", "gid", 5, Lsn(0x20), (7,))]
    ),
    "skip": lambda catalog: catalog.set_skip_lsn("shop", Lsn(0x40)),
    "disable": lambda catalog: catalog.set_enabled("shop", enabled=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_due(catalog, change):
    due(catalog)
    CHANGES[change](catalog)
    assert due(catalog) is not None


def test_a_catalog_is_made_of_it(catalog, tmp_path):
    for change in CHANGES.values():
        change(catalog)
    catalog.put_rel("shop", ORDERS)
    known = manifest.Manifest.of(due(catalog).document)
    assert known.origin("shop") == (0x20, 1)
    with closing(Catalog(tmp_path / "another.sqlite")) as other:
        other.register("shop", enabled=True)
        with other.transaction() as db:
            manifest.put_back(db, "shop", known, {"shop": (Lsn(0x30), 2)}, 3)
        for table in manifest._COLUMNS:
            names = ", ".join(manifest._COLUMNS[table])
            sql = f"SELECT {names} FROM {table} ORDER BY {names}"
            assert other.rows(sql) == catalog.rows(sql), table
        asked = [replace(row, number=0) for row in refresh.asked(catalog, "shop")]
        assert [replace(row, number=0) for row in refresh.asked(other, "shop")] == asked, "the last one counts"
        assert other.remote_lsn("shop") == 0x30
        assert manifest.is_written(other, "shop")
        assert (manifest.generation(other, "shop"), manifest.generation(catalog, "shop")) == (3, 0)
        assert manifest.due(other, "shop", "boot") is not None, "its origin is another one"


NOT_IN_IT = {
    "subscription": {"state", "received_lsn", "apply_error_count", "sync_error_count"},  # of the daemon that runs
    "subscription_rel": {"position", "timeline", "first_lsn"},  # the tables' logs, and the ranges, have these
    "refresh": {"id"},  # rows are in their order
    "copied_range": {"files"},  # of a copy under way
}


@pytest.mark.parametrize("table", manifest._COLUMNS)
def test_every_column_is_in_it_or_is_of_no_use_to_a_recovery(catalog, table):
    """One that came later was not: a table that was to join was taken for one that an operator had asked for."""
    known = {row[1] for row in catalog.rows(f"PRAGMA table_info({table})")}
    assert known - set(manifest._COLUMNS[table]) == NOT_IN_IT.get(table, set())


def test_a_request_of_an_earlier_version_replaces_no_rows_of_others(catalog, tmp_path):
    refresh.ask(catalog, "shop", [("public", "t")], copy_data=True)
    document = json.loads(due(catalog).document)
    document["tables"]["refresh"] = [row[:5] for row in document["tables"]["refresh"]]
    with closing(Catalog(tmp_path / "another.sqlite")) as other:
        other.register("shop", enabled=True)
        with other.transaction() as db:
            manifest.put_back(db, "shop", manifest.Manifest.of(json.dumps(document)), {}, 1)
        (row,) = refresh.asked(other, "shop")
    assert (row.table, row.copy_data, row.joins) == (("public", "t"), True, True)


def test_of_the_subscription_and_its_worker(catalog):
    refresh.take_up(catalog, "shop", 0, bring_in=[NEW], follow=(), remove=())
    known = manifest.Manifest.of(due(catalog).document)
    assert known.rels("shop") == [RelRow("public", "orders", "r", Lsn(0x10), "/lake/orders", 7)]
    assert known.rels(sync_name("shop")) == [NEW]
    assert known.subscription(sync_name("shop")) is not None
    assert known.subscription("hr") is None

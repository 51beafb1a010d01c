"""What a subscription leaves in the catalog when it ends, and when it begins afresh."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from pgbridge.bridge.catalog import maintenance, notes, refresh, reset
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.catalog.maintenance import OptimizeIntent
from pgbridge.protocol.lsn import Lsn

LSN = Lsn(0x100)


def rel(name: str, state: str) -> RelRow:
    return RelRow("public", name, state, LSN, f"/lake/public/{name}", 7)


@pytest.fixture
def catalog(tmp_path):
    """One subscription in the middle of everything, and another one."""
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        for name in ("shop", "hr"):
            catalog.register(name, enabled=True)
            catalog.set_slot(name, slot_name=name, slot_state="ready", system_identifier="7")
            catalog.create_origin(name, LSN, "first", [rel(f"{name}_{state}", state) for state in "irs"])
            maintenance.begin(catalog, name, OptimizeIntent(f"/lake/public/{name}_r", 3))
            catalog.begin_batch(name, BatchIntent(LSN, Lsn(0x200)))
            catalog.record_error(name, "failed", counter="apply")
            catalog.set_skip_lsn(name, Lsn(0x300))
            notes.count_conflicts(catalog, name, {"update_missing": 3})
            refresh.ask(catalog, name, [None], copy_data=True)
            refresh.take_up(catalog, name, 0, bring_in=[rel(f"{name}_added", "d")], follow=(), remove=())
            folder = tmp_path / "spool" / name
            folder.mkdir(parents=True)
            (folder / "1.spool").write_bytes(b"x")
        yield catalog


def everything(catalog: Catalog, name: str) -> dict[str, list[tuple[object, ...]]]:
    """All rows of a subscription and of its tablesync worker, by table; without empty ones."""
    names = catalog.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    found = {}
    for (table,) in names:
        column = "name" if table == "subscription" else "subscription"
        if any(row[1] == column for row in catalog.rows(f"PRAGMA table_info({table})")):
            rows = catalog.rows(f"SELECT * FROM {table} WHERE {column} IN (?, ?)", name, f"{name}:sync")
            if rows:
                found[table] = rows
    return found


def test_forget(catalog, tmp_path):
    before = everything(catalog, "hr")
    reset.forget(catalog, "shop")
    assert everything(catalog, "shop").keys() == {"subscription", "manifest"}
    row = catalog.subscription("shop")
    assert (row.enabled, row.slot_name, row.incarnation, row.apply_error_count) == (False, None, None, 0)
    assert everything(catalog, "hr") == before
    assert not (tmp_path / "spool" / "shop").exists()
    assert (tmp_path / "spool" / "hr").exists()


def test_a_forgotten_subscription_stays_disabled_until_somebody_enables_it(catalog):
    """Every command registers the file's subscriptions."""
    reset.forget(catalog, "shop")
    catalog.register("shop", enabled=True)
    assert not catalog.subscription("shop").enabled


def test_start_afresh(catalog):
    """Its own tables are copied whatever they hold; one that was never copied is not its own yet."""
    published = {("public", f"shop_{name}") for name in ("i", "r", "added")}
    copied = reset.start_afresh(catalog, "shop", published)
    assert copied == ["public.shop_added", "public.shop_i", "public.shop_r"]
    assert {one.name: (one.state, one.lsn) for one in catalog.rels("shop")} == {
        "shop_added": ("d", 0),
        "shop_i": ("i", 0),
        "shop_r": ("d", 0),
    }
    found = everything(catalog, "shop")
    left = {"subscription", "subscription_rel", "conflict", "optimizing", "manifest"}
    assert found.keys() == left, "what may have to be undone"
    assert len(found["subscription"]) == 1
    row = catalog.subscription("shop")
    assert (row.enabled, row.slot_state, row.incarnation, row.skip_lsn) == (True, None, None, None)


def test_start_afresh_keeps_what_the_columns_were_made_by(catalog):
    """A copy of a table of soft deletes keeps deleted rows only if they were made by the same masks and names."""
    shape = '{"masks": {"email": "null"}, "names": {"id": "number"}}'
    catalog.put_rel("shop", replace(rel("shop_r", "r"), shape=shape))
    reset.start_afresh(catalog, "shop", {("public", "shop_r")})
    assert [one.shape for one in catalog.rels("shop")] == [shape]


def test_another_life_has_another_application_id(catalog):
    """So that Delta does not ignore its commits as old ones."""
    before = catalog.subscription("shop").batch_app_id
    reset.start_afresh(catalog, "shop", set())
    catalog.set_slot("shop", slot_name="shop", slot_state="ready", system_identifier="7")
    catalog.create_origin("shop", LSN, "second", [])
    assert catalog.subscription("shop").batch_app_id != before

"""The catalog records what becomes durable, and which tables follow the stream, in the transaction that makes it so."""

from __future__ import annotations

import json
import sqlite3

import pytest

from pgbridge.bridge.catalog import commits, refresh, reset
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import AppliedBatch, RelRow, sync_name
from pgbridge.bridge.catalog.schema import STEPS
from pgbridge.protocol.lsn import Lsn


@pytest.fixture
def catalog(tmp_path):
    made = Catalog(catalog_path(tmp_path))
    made.register("sub", enabled=True)
    yield made
    made.close()


def rel(name, state, lsn=0x10):
    return RelRow("public", name, state, Lsn(lsn), f"/lake/public/{name}")


def applied(*names, transactions=2):
    tables = tuple(("public", name, f"/lake/public/{name}") for name in names)
    return AppliedBatch("pgbridge/1/sub/inc/0", Lsn(0x10), 5, 9, transactions, tables)


def found(catalog):
    return [
        (one.kind, [name for _, name, _ in one.tables], int(one.start_lsn), int(one.end_lsn))
        for one in commits.pending(catalog, "sub")
    ]


def begun(catalog, *rels):
    catalog.create_origin("sub", Lsn(0x10), "inc", list(rels))


def test_a_batch_is_recorded_with_the_origin(catalog):
    begun(catalog)
    catalog.finish_batch("sub", Lsn(0x20), applied=applied("a", "b"))
    (record,) = commits.pending(catalog, "sub")
    assert (record.kind, record.start_lsn, record.end_lsn, record.transactions) == ("batch", 0x10, 0x20, 2)
    assert (record.first_commit_us, record.last_commit_us, record.origin) == (5, 9, "pgbridge/1/sub/inc/0")
    assert record.tables[1] == ("public", "b", "/lake/public/b")
    catalog.finish_batch("sub", Lsn(0x30), applied=applied(transactions=0))  # a recorded end, and nothing came
    catalog.finish_batch("sub", Lsn(0x30))
    assert len(commits.pending(catalog, "sub")) == 1
    catalog.finish_batch("sub", Lsn(0x40), applied=applied("a"))
    assert len(commits.pending(catalog, "sub", 1)) == 1
    commits.appended(catalog, "sub", record.number)
    assert found(catalog) == [("batch", ["a"], 0x10, 0x40)]
    commits.appended(catalog, "sub", record.number + 1)
    catalog.finish_batch("sub", Lsn(0x50), applied=applied("a"))
    assert commits.pending(catalog, "sub")[0].number == record.number + 2  # never used twice


def test_a_table_joins_once_it_follows_the_stream(catalog):
    begun(catalog, rel("a", "i"), rel("b", "i"))
    for state in "dfsr":
        catalog.put_rel("sub", rel("a", state))
    assert found(catalog) == [("joined", ["a"], 0x10, 0x10)]
    catalog.put_rel("sub", rel("b", "f", 0x30))
    catalog.put_rel("sub", rel("b", "s", 0x30))  # ahead of the stream
    assert found(catalog)[1:] == [("joined", ["b"], 0x10, 0x30)]
    catalog.advance_origin("sub", Lsn(0x40))  # b becomes ready
    assert len(found(catalog)) == 2


def test_a_table_leaves_to_be_copied_afresh_and_joins_when_it_is_handed_over(catalog):
    begun(catalog, rel("a", "r"), rel("b", "r"))
    catalog.advance_origin("sub", Lsn(0x20))
    refresh.take_up(catalog, "sub", 1, bring_in=[rel("a", "d", 0)], follow=[], remove=[("public", "b")])
    assert found(catalog)[2:] == [("left", ["b"], 0x20, 0x20), ("left", ["a"], 0x20, 0x20)]
    sync = sync_name("sub")
    catalog.create_origin(sync, Lsn(0x30), "inc", [])
    catalog.put_rel(sync, rel("a", "r", 0x30))
    catalog.finish_batch(sync, Lsn(0x40), applied=applied("a"))
    assert len(found(catalog)) == 4
    assert commits.pending(catalog, sync) == []
    assert refresh.hand_over(catalog, "sub")
    assert found(catalog)[4:] == [("joined", ["a"], 0x20, 0x40)]


@pytest.mark.parametrize(
    "end",
    [
        lambda catalog: reset.forget(catalog, "sub"),
        lambda catalog: reset.start_afresh(catalog, "sub", {("public", "a")}),
    ],
)
def test_records_end_with_a_subscriptions_life(catalog, end):
    begun(catalog, rel("a", "r"))
    end(catalog)
    assert found(catalog) == []  # another life has other LSNs, perhaps of another server


def test_tables_of_an_earlier_version_join_when_the_catalog_is_migrated(tmp_path):
    path = catalog_path(tmp_path)
    with sqlite3.connect(path) as db:
        for version in range(10, 14):
            db.executescript(STEPS[version])
        db.execute("INSERT INTO subscription (name, enabled, configured_enabled) VALUES ('sub', 1, 1)")
        db.execute("INSERT INTO origin VALUES ('sub', 32)")
        for name, state in (("a", "r"), ("b", "d")):
            db.execute("INSERT INTO subscription_rel VALUES ('sub', 'public', ?, ?, 16, '/lake', NULL)", (name, state))
        db.execute("PRAGMA user_version = 13")
    migrated = Catalog(path)
    assert found(migrated) == [("joined", ["a"], 32, 32)]
    commits.join_again(migrated, "sub")
    commits.join_again(migrated, "other")
    assert len(found(migrated)) == 2
    assert json.loads(migrated.rows("SELECT tables FROM commit_record")[0][0]) == [["public", "a", "/lake"]]
    migrated.close()

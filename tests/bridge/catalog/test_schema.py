"""A catalog of any earlier version is migrated, and keeps its content."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from pgbridge.bridge.catalog import notes, schema
from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.catalog.held import held
from pgbridge.bridge.catalog.schema import SCHEMA_VERSION
from pgbridge.bridge.track.position import Held, Position
from pgbridge.protocol.lsn import Lsn


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_an_earlier_versions_catalog(tmp_path, version):
    path = tmp_path / "catalog.sqlite"
    steps = [getattr(schema, f"_SINCE_{number}") for number in range(1, SCHEMA_VERSION + 1)]
    assert len(steps) == SCHEMA_VERSION
    with closing(sqlite3.connect(path)) as db:
        for statement in (statement for step in steps[:version] for statement in step):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("INSERT INTO subscription (name, enabled, configured_enabled) VALUES ('shop', 1, 1)")
        db.execute("INSERT INTO origin (subscription, remote_lsn) VALUES ('shop', 100)")
        db.execute("INSERT INTO batch (subscription, start_lsn, end_lsn) VALUES ('shop', 100, 120)")
        db.commit()
    for _ in range(2):
        with closing(Catalog(path)) as catalog:
            assert catalog.remote_lsn("shop") == 100
            assert catalog.batch("shop") == BatchIntent(Lsn(100), Lsn(120))
            assert catalog.prepared("shop") == []
            assert notes.conflicts(catalog, "shop") == {}
            assert catalog.columns("shop") == {}
            assert notes.copies(catalog, "shop") == []


def test_what_version_17_has_of_positions(tmp_path):
    """The timeline was the subscription's. A table's own position is not known before its log is read."""
    path = tmp_path / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as db:
        for step in schema._SINCE[:16]:
            for statement in step:
                db.execute(statement)
        db.execute("PRAGMA user_version = 16")
        for name, timeline in (("shop", 3), ("old", None)):
            db.execute(
                "INSERT INTO subscription (name, enabled, configured_enabled, system_identifier, timeline, skip_lsn) "
                "VALUES (?, 1, 1, '7', ?, 140)",
                (name, timeline),
            )
            db.execute("INSERT INTO origin (subscription, remote_lsn, fence_lsn) VALUES (?, 100, 130)", (name,))
        db.execute(
            "INSERT INTO subscription_rel (subscription, namespace, name, state, lsn, path) "
            "VALUES ('shop', 'public', 't', 's', 110, '/t')"
        )
        db.execute("INSERT INTO batch (subscription, start_lsn, end_lsn) VALUES ('shop', 100, 120)")
        db.commit()

    def at(lsn, timeline=None):
        return Position("7", timeline, Lsn(lsn))

    table = RelRow("public", "t", "s", Lsn(110), "/t", timeline=3, shape='{"masks": {}, "names": {}}')
    assert table.position == 0
    for _ in range(2):
        with closing(Catalog(path)) as catalog:
            assert catalog.rels("shop") == [table]
            assert held(catalog, "shop") == Held(
                at(100, 3), at(120, 3), {("public", "t"): at(110, 3)}, at(140, 3), at(130, 3)
            )
            assert held(catalog, "old") == Held(at(100), None, {}, at(140), at(130))
            intent = catalog.batch("shop")
            assert intent is not None
            assert intent.tables is None, "any of the subscription's"

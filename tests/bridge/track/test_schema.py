"""A catalog of any earlier version is migrated, and keeps its content."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from bridge.track import schema, stats
from bridge.track.catalog import Catalog
from bridge.track.catalog_rows import BatchIntent
from bridge.track.schema import SCHEMA_VERSION
from protocol.lsn import Lsn


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
            assert stats.conflicts(catalog, "shop") == {}
            assert catalog.columns("shop") == {}
            assert stats.copies(catalog, "shop") == []

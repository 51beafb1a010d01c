"""A catalog of any earlier version is migrated, and keeps its content."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from pgbridge.bridge.catalog import notes
from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.catalog.catalog_rows import BatchIntent, RelRow
from pgbridge.bridge.catalog.held import held
from pgbridge.bridge.catalog.manifest import is_due
from pgbridge.bridge.catalog.schema import SCHEMA_VERSION, STEPS
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.track.position import Held, Position
from pgbridge.protocol.lsn import Lsn


def written_by(path, version):
    """A catalog of an earlier version, without the triggers that it had."""
    db = sqlite3.connect(path)
    for since, step in STEPS.items():
        db.executescript(step if since <= version else "")
    db.execute(f"PRAGMA user_version = {version}")
    return db


def test_each_version_has_its_step():
    assert list(STEPS) == list(range(10, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("version", list(STEPS)[:-1])
def test_an_earlier_versions_catalog(tmp_path, version):
    path = tmp_path / "catalog.sqlite"
    with closing(written_by(path, version)) as db:
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
    with closing(written_by(path, 16)) as db:
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


def test_a_catalog_that_was_written_before_the_first_release(tmp_path):
    path = tmp_path / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 9")
    with pytest.raises(StateError, match=r"written before pgbridge 0\.1\.0 \(schema 9\)"):
        Catalog(path)


def test_triggers_are_made_anew(tmp_path):
    """Also one of an earlier version that this one does not have; and what the warehouse has is written anew."""
    path, new = tmp_path / "catalog.sqlite", tmp_path / "new.sqlite"
    with closing(written_by(path, SCHEMA_VERSION - 1)) as db:
        db.execute("INSERT INTO subscription (name, enabled, configured_enabled) VALUES ('shop', 1, 1)")
        db.execute("INSERT INTO manifest (subscription, changed, written) VALUES ('shop', 7, 7)")
        db.execute("CREATE TRIGGER rel_joined AFTER INSERT ON refresh BEGIN SELECT 1; END")
        db.execute("CREATE TRIGGER former AFTER INSERT ON error BEGIN SELECT raise(ABORT, 'no'); END")
        db.commit()
    Catalog(new).close()
    with closing(Catalog(path)) as catalog:
        assert is_due(catalog, "shop")
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(new)) as fresh:
        assert triggers(db) == triggers(fresh)
        assert len(triggers(db)) > 20


def test_a_catalog_of_the_version_before_with_its_triggers(tmp_path):
    """As this code writes it, views with triggers included."""
    path = tmp_path / "catalog.sqlite"
    Catalog(path).close()
    with closing(sqlite3.connect(path)) as db:
        before = triggers(db)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION - 1}")
    Catalog(path).close()
    with closing(sqlite3.connect(path)) as db:
        assert triggers(db) == before
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def triggers(db):
    return dict(db.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchall())

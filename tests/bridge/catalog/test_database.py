"""SQLite's errors as the bridge's: what passes by itself is tried again, what does not says what to do."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from pgbridge.bridge.catalog import database
from pgbridge.bridge.catalog.database import Database
from pgbridge.bridge.runtime.errors import StateError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def opened(path):
    with closing(Database(path)) as db:
        with db.transaction() as connection:
            connection.execute("CREATE TABLE t (text TEXT UNIQUE)")
        yield db


def write(opened, size):
    with opened.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (?)", ("x" * size,))


def rows(opened):
    with opened.using() as connection:
        return connection.execute("SELECT count(*) FROM t").fetchone()[0]


def test_a_full_disk_passes_by_itself(opened):
    with opened.using() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(2):
        with pytest.raises(StateError, match=r"cannot be used: database or disk is full\nHINT:  make room") as caught:
            write(opened, 1 << 20)
        assert caught.value.retry
    assert rows(opened) == 0
    with opened.using() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    write(opened, 1 << 20)
    assert rows(opened) == 1


def test_a_lock_that_is_held_is_waited_for_once(opened, path, monkeypatch):
    """The busy timeout counts for the first that meets it; the others, who come after it, are told at once."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.6)
    with closing(Database(path)) as db, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        took = []
        for _ in range(2):
            started_s = time.monotonic()
            with pytest.raises(StateError, match=r"database is locked\nHINT:  another process") as caught:
                write(db, 1)
            took.append(time.monotonic() - started_s)
            assert caught.value.retry
        assert took[0] >= 0.5
        assert took[1] < 0.4
        assert rows(db) == 0, "who reads does not wait"
        other.execute("COMMIT")
        write(db, 1)
        with db.using() as connection:
            assert connection.execute("PRAGMA busy_timeout").fetchone() == (600,), "as before"


def test_damage_needs_a_hand(opened, path):
    write(opened, 100_000)
    with opened.using() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x7f" * (size - 4096))
    with closing(Database(path)) as db:
        with pytest.raises(StateError, match="is damaged: .*malformed") as caught:
            rows(db)
        assert not caught.value.retry


def test_our_own_mistakes_stay_what_they_are(opened):
    write(opened, 1)
    with pytest.raises(sqlite3.IntegrityError):
        write(opened, 1)


def test_only_what_recovery_does_not_need_is_not_flushed(opened, path):
    """SQLite's numbers: FULL (2) flushes at each commit, NORMAL (1) leaves it to the next FULL one."""
    found: list[int] = []
    for flush in (True, False, False, True):
        with opened.transaction(flush=flush) as connection:
            connection.execute("INSERT INTO t VALUES (?)", (str(len(found)),))
            found.append(connection.execute("PRAGMA synchronous").fetchone()[0])
    assert found == [2, 1, 1, 2]
    with closing(Database(path)) as other:
        assert rows(other) == 4

"""A transaction that memory shall not hold, by spool and scratch files: equal to the native subscriber's tables."""

from __future__ import annotations

import pytest

from pgbridge.bridge.effects.divided import Spill
from pgbridge.bridge.receive.stream import copy_both
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

SETUP = """
CREATE TABLE keyed (id int PRIMARY KEY, n int, body text);
ALTER TABLE keyed ALTER body SET STORAGE EXTERNAL;
CREATE TABLE moved (id int PRIMARY KEY, body text);
ALTER TABLE moved ALTER body SET STORAGE EXTERNAL;
CREATE TABLE emptied (id int PRIMARY KEY, body text);
CREATE TABLE log (n int, body text);
CREATE TABLE altered (id int PRIMARY KEY, a int, b int);
CREATE PUBLICATION pub FOR ALL TABLES;
INSERT INTO keyed SELECT n, n, repeat('x', 3000) FROM generate_series(1, 30) AS n;
INSERT INTO moved SELECT n, repeat('y', 3000) FROM generate_series(1, 30) AS n;
INSERT INTO emptied VALUES (1, 'gone');
INSERT INTO altered SELECT n, n, n FROM generate_series(1, 5) AS n
"""

ONE_TRANSACTION = """
BEGIN;
INSERT INTO keyed SELECT n, n, repeat('z', 200) FROM generate_series(31, 2000) AS n;
UPDATE keyed SET n = n + 1 WHERE id % 3 = 0;
SAVEPOINT s;
DELETE FROM keyed;
INSERT INTO emptied VALUES (2, 'never');
ROLLBACK TO s;
DELETE FROM keyed WHERE id % 7 = 0;
UPDATE keyed SET n = -n WHERE id <= 20;
UPDATE moved SET id = id + 100 WHERE id <= 15;
INSERT INTO moved SELECT n, 'new' FROM generate_series(1, 5) AS n;
INSERT INTO emptied SELECT n, repeat('void', 20) FROM generate_series(10, 500) AS n;
TRUNCATE emptied;
INSERT INTO emptied SELECT n, repeat('kept', 20) FROM generate_series(400, 900) AS n;
DELETE FROM emptied WHERE id > 890;
UPDATE altered SET a = 10;
INSERT INTO log SELECT n, repeat('l', 100) FROM generate_series(1, 2000) AS n;
UPDATE altered SET b = 20 WHERE id <= 3;
COMMIT
"""

TABLES = ("keyed", "moved", "emptied", "log", "altered")


@pytest.mark.soak
@pytest.mark.parametrize("streaming", ["off", "on"])
def test_large_transaction(spark, publisher, pipeline, monkeypatch, streaming):
    """Inserts, updates with unchanged TOAST, key changes with it, deletes, TRUNCATE, a rolled back savepoint."""
    put: list[int] = []
    original = Spill.table

    def counted(self, pieces):
        table = original(self, pieces)
        put.append(len(table))
        return table

    monkeypatch.setattr(Spill, "table", counted)
    # What comes with the commit in one read is never spooled; by default that may be all of these few rows.
    monkeypatch.setattr(copy_both, "_BUFFER_BYTES", 1 << 14)
    publisher.stream_everything()
    publisher.execute(SETUP)
    with NativeSubscriber(publisher.conninfo, ["pub"], options={"streaming": streaming}) as native:
        native.wait_caught_up()
        bridge = pipeline(streaming=streaming, batch__max_bytes=100_000)
        bridge.catch_up()
        publisher.execute(ONE_TRANSACTION)
        publisher.execute("INSERT INTO log VALUES (0, 'after')")
        bridge.catch_up()
        native.wait_caught_up()
        for table in TABLES:
            assert differences(spark, bridge.path(table), native, table) == []
    assert len(put) >= len(TABLES), "all of it was written to files, some in several parts"
    commits = [commit for commit in bridge.commits("keyed") if "txn" in commit]
    assert len(commits) == 2, "one for the copy, one for the transaction"
    assert list((bridge.folder / "state" / "spool" / bridge.subscription.name).iterdir()) == []

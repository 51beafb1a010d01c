"""A table that is renamed, or moved to another schema: a native subscriber stops there, and so does the bridge."""

from __future__ import annotations

import time

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.runtime.errors import ApplyError
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber
from tests.oracle.test_refresh import settled

STATEMENTS = """
CREATE SCHEMA archive;
CREATE TABLE t (id int, v text); ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE moved (id int PRIMARY KEY, v text); CREATE TABLE back (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'copied'); INSERT INTO moved VALUES (1, 'copied'); INSERT INTO back VALUES (1, 'copied');
CREATE PUBLICATION pub FOR ALL TABLES;
"""
RENAMED = """
INSERT INTO t VALUES (2, 'under the old name'); UPDATE t SET v = 'changed' WHERE id = 1;
ALTER TABLE t RENAME TO new; ALTER TABLE moved SET SCHEMA archive; ALTER TABLE back RENAME TO gone;
"""
UNDER_THE_NEW_NAME = """
BEGIN; INSERT INTO new VALUES (3, 'x'); UPDATE archive.moved SET v = 'x'; INSERT INTO gone VALUES (3, 'x'); COMMIT;
ALTER TABLE gone RENAME TO back; INSERT INTO back VALUES (4, 'as if nothing had been');
"""


def stopped(native):
    """Wait until the native subscriber's apply worker has failed."""
    deadline = time.monotonic() + 60
    while not native.query("SELECT 1 FROM pg_stat_subscription_stats WHERE apply_error_count > 0"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_table_is_renamed(publisher, memory_pipeline):
    """Also where the catalog has the new name, or the old one again, when the stream is still behind."""
    publisher.execute(STATEMENTS)
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        native.wait_caught_up()
        bridge = memory_pipeline()
        bridge.catch_up()
        publisher.execute(RENAMED)
        publisher.execute(UNDER_THE_NEW_NAME)
        with pytest.raises(ApplyError, match=r'relation "public.new" does not exist') as caught:
            bridge.catch_up()  # it has tried several times
        assert caught.value.context.command == "INSERT"
        assert bridge.remote_lsn() < caught.value.context.finish_lsn
        assert sorted(row["v"] for row in bridge.rows("t")) == ["changed", "under the old name"]
        assert [row["v"] for row in bridge.rows("moved")] == ["copied"]
        stopped(native)
    name = bridge.subscription.name
    assert f"pgbridge refresh {name}; or" in caught.value.hint
    assert caught.value.hint.endswith(f"pgbridge refresh {name} --resync public.t")
    refresh.ask(bridge.catalog, name, [None, ("public", "back")], copy_data=True)
    bridge.catch_up()
    assert settled(bridge)
    publisher.execute("UPDATE new SET v = 'follows'; INSERT INTO archive.moved VALUES (5); DELETE FROM back")
    bridge.catch_up()
    assert [rel.qualified_name for rel in bridge.catalog.rels(name)] == ["archive.moved", "public.back", "public.new"]
    for table in ("new", "archive.moved", "back"):
        assert differences(bridge.spark, bridge.path(table), publisher, table) == []

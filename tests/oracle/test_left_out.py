"""Tables that cannot be taken: the others are copied and followed, as by PostgreSQL's tablesync workers."""

from __future__ import annotations

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.monitor.document import collect
from pgbridge.bridge.runtime.errors import TargetError
from tests.fix_bridge import config_of
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

STATEMENTS = """
CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE taken (id int PRIMARY KEY, v text);
CREATE TABLE bare (); CREATE TABLE cased (id int PRIMARY KEY, "ID" int);
INSERT INTO t VALUES (1, 'copied'); INSERT INTO taken VALUES (1, 'copied');
INSERT INTO bare DEFAULT VALUES; INSERT INTO cased VALUES (1, 2);
CREATE PUBLICATION pub FOR ALL TABLES;
"""
CHANGES = """
BEGIN; INSERT INTO bare DEFAULT VALUES; INSERT INTO t VALUES (2, 'beside them'); INSERT INTO cased VALUES (3);
UPDATE t SET v = 'changed' WHERE id = 1; INSERT INTO taken VALUES (2, 'while it is not copied'); TRUNCATE cased; COMMIT
"""


def test_others_go_on(publisher, memory_pipeline):
    """Delta cannot hold two of the tables: they come when it can. The target of another has somebody's rows."""
    publisher.execute(STATEMENTS)
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        bridge = memory_pipeline()
        foreign = f"{bridge.subscription.warehouse}/public/taken"
        bridge.spark.put_foreign(foreign, {"id": pa.int32(), "v": pa.string()}, (9, "somebody's"))
        native.wait_caught_up()
        with capture_logs() as events:
            for changes in ("SELECT", CHANGES):
                publisher.execute(changes)
                with pytest.raises(TargetError, match="public/taken has rows already"):
                    bridge.catch_up()
        native.wait_caught_up()
        assert differences(bridge.spark, bridge.path("t"), native, "t") == []
        warned = [event["relation"] for event in events if event["log_level"] == "warning"]
        assert sorted(warned) == ["public.bare", "public.cased"]
        (entry,) = collect(config_of(bridge), bridge.catalog, running=False)["subscriptions"]
        assert [(table["name"], table["state"]) for table in entry["tables"]] == [
            ("public.t", "r"),
            ("public.taken", "i"),
        ]
        left_out = [problem["relation"] for problem in entry["problems"] if problem["kind"] == "left_out"]
        assert left_out == ["public.bare", "public.cased"]
        assert entry["sync_error_count"] > 0
        assert entry["last_error"] is not None
        assert "has rows already" in entry["last_error"]["message"]
        for statement in ("ALTER TABLE bare ADD n int DEFAULT 5", 'ALTER TABLE cased RENAME "ID" TO other'):
            publisher.execute(statement)
            native.execute(statement)
        del bridge.spark.lake.tables[foreign]
        refresh.ask(bridge.catalog, bridge.subscription.name, [None], copy_data=True)
        bridge.catch_up()
        publisher.execute("INSERT INTO bare VALUES (6); INSERT INTO cased VALUES (4); DELETE FROM taken WHERE id = 1")
        bridge.catch_up()
        native.wait_caught_up()
        for table in ("t", "taken", "bare", "cased"):
            assert differences(bridge.spark, bridge.path(table), native, table) == []
        (entry,) = collect(config_of(bridge), bridge.catalog, running=False)["subscriptions"]
        assert "left_out" not in {problem["kind"] for problem in entry["problems"]}

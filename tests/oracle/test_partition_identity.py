"""Partitions whose keys are unique within the partition only, published as their root: no other partition's row goes.

The bridge has a stream of the partitions and definitions; PostgreSQL's subscriber has the root's stream.
"""

from __future__ import annotations

import time

import pytest

from pgbridge.bridge.runtime.errors import ApplyError
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

SCHEMA = """
    CREATE TABLE root (id int, part text, n int) PARTITION BY LIST (part);
    CREATE TABLE a PARTITION OF root FOR VALUES IN ('a'); ALTER TABLE a ADD PRIMARY KEY (id);
    CREATE TABLE b PARTITION OF root FOR VALUES IN ('b'); ALTER TABLE b ADD PRIMARY KEY (id);
    CREATE TABLE wide (id int, part text, n int) PARTITION BY LIST (part);
    CREATE TABLE c PARTITION OF wide FOR VALUES IN ('c'); ALTER TABLE c ADD PRIMARY KEY (id, part);
    CREATE TABLE d PARTITION OF wide FOR VALUES IN ('d'); ALTER TABLE d ADD PRIMARY KEY (part, id);
    CREATE PUBLICATION pub FOR ALL TABLES;
    INSERT INTO root VALUES (1, 'a', 1); INSERT INTO wide VALUES (1, 'c', 1), (1, 'd', 1);
"""
DEFINITION = "CREATE PUBLICATION p FOR TABLE root, wide WITH (publish_via_partition_root)"


def test_a_key_that_is_unique_within_its_partition_only(publisher, memory_pipeline, tmp_path):
    """INSERTs of equal keys are no conflict. A DELETE stops PostgreSQL's subscriber, and so the bridge.

    With the partition key in it, the partitions' identity is the root's: those rows are found.
    """
    publisher.execute(SCHEMA)
    publisher.execute(DEFINITION)
    (tmp_path / "definitions.sql").write_text(DEFINITION)
    bridge = memory_pipeline(publication_definitions=str(tmp_path / "definitions.sql"))
    with NativeSubscriber(publisher.conninfo, ["p"]) as native:
        bridge.catch_up()
        publisher.execute("INSERT INTO root VALUES (1, 'b', 1)")
        native.wait_caught_up()
        publisher.execute("UPDATE c SET n = 2; UPDATE wide SET part = 'c', id = 2 WHERE part = 'd'")
        bridge.catch_up()
        assert differences(bridge.spark, bridge.path("root"), native, "root") == []
        assert differences(bridge.spark, bridge.path("wide"), publisher, "wide") == []
        publisher.execute("DELETE FROM a WHERE id = 1")
        with pytest.raises(
            ApplyError, match='"public.root" has neither REPLICA IDENTITY index nor PRIMARY KEY'
        ) as error:
            bridge.catch_up()
        assert 'DETAIL:  Partition "public.a" is published as it' in error.value.message
        assert error.value.context.command == "DELETE"
        assert sorted(row["part"] for row in bridge.rows("root")) == ["a", "b"]
        errors = "SELECT apply_error_count > 0 FROM pg_stat_subscription_stats WHERE subname = %s"
        deadline_s = time.monotonic() + 30
        while native.query(errors, (native.name,)) != [(True,)]:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert sorted(row[0] for row in native.query("SELECT part FROM root")) == ["a", "b"]

"""Tables with properties of Delta's equal the published ones, and what the properties promise holds for each commit."""

from __future__ import annotations

import pytest

from pgbridge.bridge.apply.maintenance import DeltaTables
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.table_facts import properties_now
from pgbridge.bridge.runtime.errors import ApplyError, TargetError
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows
from tests.oracle.replayed import fed, mirrored

FEED, ROW_TRACKING, COMPATIBLE = "delta.enableChangeDataFeed", "delta.enableRowTracking", "delta.enableIcebergCompatV2"
TABLES = ("keyed", "bag", "only_inserts", "iceberg")
SETUP = """
    CREATE TABLE keyed (id int PRIMARY KEY, n int, big text); ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE bag (LIKE keyed); ALTER TABLE bag REPLICA IDENTITY FULL;
    CREATE TABLE only_inserts (LIKE keyed); CREATE TABLE iceberg (LIKE keyed INCLUDING ALL);
    CREATE PUBLICATION pub FOR TABLE keyed, bag, only_inserts, iceberg
"""
ROWS = "INSERT INTO {0} SELECT g, g, repeat(g::text, 3000) FROM generate_series(1, 50) g"
CHANGES = """
    UPDATE {0} SET n = n + 1 WHERE id % 5 = 0; DELETE FROM {0} WHERE id = 3;
    UPDATE {0} SET id = id + 100 WHERE id IN (6, 7); INSERT INTO {0} VALUES (3, 0, 'again'), (60, 60, NULL)
"""
ALTERED = "ALTER TABLE {0} ADD more text DEFAULT 'm'; INSERT INTO {0} VALUES (70, 1, 'y', 'w')"
EMPTIED = "BEGIN; TRUNCATE {0}; INSERT INTO {0} VALUES (1, 1, 'x', 'y'), (2, 2, NULL, 'z'); COMMIT"


def test_a_change_data_feed_has_each_change_and_no_other(spark, publisher, pipeline):
    """Also that of an ALTER TABLE, a TRUNCATE, a batch that was taken back, OPTIMIZE, and a copy afresh."""
    publisher.execute(SETUP)
    for table in TABLES:
        publisher.execute(ROWS.format(table))
    own = Table(properties={COMPATIBLE: True, FEED: False, "delta.columnMapping.mode": "name", "team": "it's"})
    bridge = pipeline(target__properties={FEED: True, ROW_TRACKING: "true"}, tables={"public.iceberg": own})
    published = DatabaseRows(publisher.conninfo)

    def compare():
        bridge.catch_up()
        for table in TABLES:
            assert differences(spark, bridge.path(table), published, f"public.{table}") == [], table
        for table in TABLES[:3]:
            assert fed(spark, bridge.path(table)) == mirrored(spark, bridge.path(table)), table

    compare()
    properties = properties_now(spark, bridge.path("iceberg"))
    assert (properties[COMPATIBLE], properties[FEED], properties["team"]) == ("true", "false", "it's")
    assert properties["delta.enableDeletionVectors"] == "false", "pgbridge would switch them on, and Delta refuse them"
    for table in ("keyed", "bag", "iceberg"):
        publisher.execute(CHANGES.format(table))
    compare()
    version = spark.sql(f"DESCRIBE HISTORY delta.`{bridge.path('keyed')}` LIMIT 1").collect()[0].version
    publisher.execute("UPDATE keyed SET n = -1 WHERE id = 1")
    compare()
    feed = spark.read.format("delta").option("readChangeFeed", True).option("startingVersion", version + 1)
    assert sorted(row._change_type for row in feed.load(bridge.path("keyed")).collect()) == [
        "update_postimage",
        "update_preimage",
    ]
    for table in TABLES:
        publisher.execute(ALTERED.format(table))
    compare()
    publisher.execute("BEGIN; DELETE FROM keyed WHERE id = 1; INSERT INTO only_inserts VALUES (7, 1, 'n', 'w'); COMMIT")
    publisher.execute(
        "ALTER TABLE bag ADD t timestamp; BEGIN; UPDATE keyed SET n = 0; INSERT INTO only_inserts VALUES (8);"
        "INSERT INTO bag (id, t) VALUES (9, 'infinity'); COMMIT"
    )
    with pytest.raises(ApplyError, match="infinity") as raised:
        bridge.catch_up()
    bridge.catalog.set_skip_lsn(bridge.subscription.name, raised.value.context.finish_lsn)
    bridge.catch_up()
    for table in TABLES[:3]:
        assert fed(spark, bridge.path(table)) == mirrored(spark, bridge.path(table)), table
    for table in TABLES:
        DeltaTables(spark, LocalTables(lambda path: path)).optimize(bridge.path(table))
        publisher.execute("ALTER TABLE bag DROP IF EXISTS t;" + EMPTIED.format(table))
    compare()


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"delta.enableChangeDataFee": True}, "delta.enableChangeDataFee"),
        ({FEED: "perhaps"}, "perhaps"),
        ({COMPATIBLE: True, "delta.enableDeletionVectors": True}, "[Dd]eletion"),
        ({"delta.universalFormat.enabledFormats": "iceberg"}, "[Ii]ceberg"),
        ({"delta.feature.catalogManaged": "supported"}, "Creating a catalog-managed table using delta is unsupported"),
    ],
)
def test_what_delta_refuses_is_refused_before_a_slot_is_created(publisher, pipeline, properties, why):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    bridge = pipeline(tables={"public.t": Table(properties=properties)})
    with pytest.raises(TargetError, match=f"Delta creates no table with the properties .*{why}"):
        bridge.catch_up()
    assert publisher.query("SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_properties_of_columns_and_of_a_layout(publisher, spark, pipeline):
    """Statistics of the columns that cluster a table are collected, whatever the user's own properties say."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE u (id int PRIMARY KEY, n int)")
    publisher.execute("INSERT INTO t VALUES (1, 1); CREATE PUBLICATION pub FOR TABLE t, u")
    clustered = Table(cluster_by=("n",), properties={"delta.dataSkippingNumIndexedCols": 0})
    statistics = Table(properties={"delta.dataSkippingStatsColumns": "n"})
    bridge = pipeline(tables={"public.t": clustered, "public.u": statistics})
    bridge.catch_up()
    assert properties_now(spark, bridge.path("t"))["delta.dataSkippingNumIndexedCols"] == "2"
    assert properties_now(spark, bridge.path("u"))["delta.dataSkippingStatsColumns"] == "n"
    assert bridge.rows("t") == [{"id": 1, "n": 1}]

"""Partitioned and clustered tables equal the published ones, whatever moves their rows, and keep their layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.apply.maintenance import DeltaTables
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.lake.location import layout_of
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import Layout
from pgbridge.protocol.lsn import Lsn
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows
from tests.oracle.replayed import as_of, mirrored

MIRRORS = ("parts", "bag", "clusters")
ALL = (*MIRRORS, "versions")
SETUP = """
    CREATE TABLE parts (id int PRIMARY KEY, region text, day date, n int, big text);
    ALTER TABLE parts ALTER big SET STORAGE EXTERNAL;
    CREATE TABLE bag (LIKE parts); ALTER TABLE bag REPLICA IDENTITY FULL;
    CREATE TABLE clusters (LIKE parts INCLUDING ALL); CREATE TABLE versions (LIKE parts INCLUDING ALL);
    CREATE PUBLICATION pub FOR TABLE parts, bag, clusters, versions
"""
LAYOUTS = {
    "parts": Layout(partition_by=("region", "day")),
    "bag": Layout(partition_by=("region",)),
    "clusters": Layout(cluster_by=("day", "n")),  # of the table that is adopted
    "versions": Layout(partition_by=("region",)),
}
ROWS = """
    INSERT INTO {0} SELECT g, (ARRAY['north', 'a/b=c %', ' ', NULL])[g % 4 + 1], date '1500-02-28' + g % 3, g,
    repeat(g::text, 3000) FROM generate_series(1, 20) g
"""
CHANGES = """
    UPDATE {0} SET region = 'south', n = n + 1 WHERE id % 5 = 0; DELETE FROM {0} WHERE id = 3;
    UPDATE {0} SET day = NULL, region = NULL WHERE id IN (2, 4); UPDATE {0} SET id = id + 100 WHERE id IN (6, 7);
    UPDATE {0} SET id = id + 200, region = 'far' WHERE id IN (5, 8); INSERT INTO {0} VALUES (5, 'new', NULL, 1, 'x')
"""
ALTERED = """
    ALTER TABLE {0} RENAME region TO area; ALTER TABLE {0} DROP day; ALTER TABLE {0} ADD zone text DEFAULT 'z';
    INSERT INTO {0} VALUES (500, 'east', 1, 'y', 'w'); UPDATE {0} SET area = 'west', id = id + 900 WHERE id IN (1, 10)
"""
EMPTIED = "TRUNCATE {0}; INSERT INTO {0} VALUES (1, 'again', 2, 'y', 'z'), (2, NULL, 2, 'y', 'z')"
COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
FROM_HERE = 1 << 62


def copied_afresh(bridge, table):
    """As `pgbridge refresh --resync` asks for it."""
    name = bridge.subscription.name
    rel = next(rel for rel in bridge.catalog.rels(name) if rel.name == table)
    bridge.catalog.put_rel(name, replace(rel, state="d", lsn=Lsn(0)))


def test_layouts(spark, publisher, pipeline):
    """Rows move between partitions; a partition column is renamed, dropped on the server, and at last replaced."""
    publisher.execute(SETUP)
    for table in ALL:
        publisher.execute(ROWS.format(table))
    tables = {f"public.{name}": Table(**_keys(layout)) for name, layout in LAYOUTS.items()}
    tables["public.clusters"] = Table(partition_by=("region",))
    tables["public.versions"] = Table(mode="history", **_keys(LAYOUTS["versions"]))
    bridge = pipeline(tables=tables, target__adopt=True)
    adopted = f"{bridge.subscription.warehouse}/public/clusters"
    columns = "id int, region string, day date, n bigint, big string"
    spark.sql(f"CREATE TABLE delta.`{adopted}` ({columns}) USING delta CLUSTER BY (day, n)")
    published, layouts = DatabaseRows(publisher.conninfo), dict(LAYOUTS)

    def compare(*, history=True):
        bridge.catch_up()
        for table in MIRRORS:
            columns = [name for (name,) in publisher.query(COLUMNS, (table,))]
            assert differences(spark, bridge.path(table), published, table, columns) == [], table
        if history:
            assert as_of(spark, bridge.path("versions"), FROM_HERE) == mirrored(spark, bridge.path("bag"))
        assert {name: layout_of(spark, bridge.path(name)) for name in layouts} == layouts

    def execute(statements, tables=ALL):
        for table in tables:
            publisher.execute(statements.format(table))

    bridge.catch_up()
    execute(CHANGES)
    compare()
    for table in ("parts", "clusters"):
        DeltaTables(spark, LocalTables(lambda path: path)).optimize(bridge.path(table))
    copied_afresh(bridge, "clusters")
    execute(ALTERED)
    layouts |= {name: Layout(partition_by=("area", *layouts[name].partition_by[1:])) for name in ("parts", "bag")}
    layouts |= {"versions": Layout(partition_by=("area",)), "clusters": Layout(cluster_by=("n",))}
    compare()
    execute(EMPTIED, MIRRORS)
    execute("ALTER TABLE {0} ALTER n TYPE text USING 'n' || n", ["parts"])
    copied_afresh(bridge, "parts")
    layouts |= {"parts": Layout(partition_by=("area",))}
    compare(history=False)


def _keys(layout):
    return {key: value for key, value in layout._asdict().items() if value}


def test_what_cannot_be_laid_out_is_refused_before_a_slot_is_created(publisher, pipeline):
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, doc bytea); CREATE PUBLICATION pub FOR TABLE t")
    for column, why in (("docs", 'it has no column "docs"'), ("doc", 'its column "doc" is binary')):
        bridge = pipeline(tables={"public.t": Table(cluster_by=(column,))})
        with pytest.raises(TargetError, match=f"cannot be laid out by cluster_by: {why}"):
            bridge.catch_up()
    assert publisher.query("SELECT count(*) FROM pg_replication_slots") == [(0,)]

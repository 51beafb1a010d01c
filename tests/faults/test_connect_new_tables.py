"""Layouts and VARIANT with a Spark Connect server, whose client makes other frames of the same rows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pgbridge.bridge.lake.location import layout_of
from pgbridge.bridge.runtime.warehouse import Layout
from tests.bridge.made_daemon import wait_until
from tests.faults.test_connect import caught_up
from tests.fix_bridge import ROOT

SETUP = """
CREATE TABLE parts (id int PRIMARY KEY, region text, doc jsonb);
INSERT INTO parts SELECT i, 'r' || i % 2, jsonb_build_object('n', i) FROM generate_series(1, 5) i;
CREATE TABLE bag AS SELECT * FROM parts; ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE versions (LIKE parts INCLUDING ALL); INSERT INTO versions SELECT * FROM parts;
CREATE PUBLICATION pub FOR TABLE parts, bag, versions;
"""
CHANGES = """
UPDATE {0} SET region = 'x', doc = '[1.5]' WHERE id = 1; DELETE FROM {0} WHERE id = 2;
INSERT INTO {0} VALUES (9, NULL, 'null')
"""
LAST = """
TRUNCATE parts, bag; ALTER TABLE bag ADD more jsonb DEFAULT '[0]'; INSERT INTO parts VALUES (1, 'a', '1');
INSERT INTO bag VALUES (1, 'a', '1')
"""
TABLES = {"parts": 'partition_by = ["region"]', "bag": 'cluster_by = ["region"]', "versions": 'mode = "history"'}


@pytest.mark.soak
def test_new_tables(spark, publisher, daemon, connect_server):
    publisher.execute(SETUP)
    bridge = daemon(master=connect_server.master, target__jsonb="variant")
    with bridge.config.open("a") as config:
        for name, keys in TABLES.items():
            config.write(f'[subscription.sub.tables."public.{name}"]\n{keys}\n')

    def compare(*tables):
        caught_up(bridge)
        for name in tables:
            rows = spark.read.format("delta").load(bridge.path(name))
            valid = rows.filter("valid_to_lsn IS NULL") if name == "versions" else rows
            found = [(id_, region, json.loads(doc)) for id_, region, doc in _texts(valid)]
            assert found == publisher.query(f"SELECT id, region, doc FROM {name} ORDER BY id"), name

    bridge.start()
    bridge.wait_for('"streaming"')
    for name in TABLES:
        publisher.execute(CHANGES.format(name))
    compare(*TABLES)
    publisher.execute(LAST)
    compare("parts", "bag")
    assert layout_of(spark, bridge.path("parts")) == Layout(partition_by=("region",))
    assert layout_of(spark, bridge.path("bag")) == Layout(cluster_by=("region",))
    assert spark.read.format("delta").load(bridge.path("bag")).selectExpr("to_json(more)").first()[0] == "[0]"
    assert bridge.stop() == 0


@pytest.mark.soak
def test_columns_that_delta_computes(spark, publisher, daemon, connect_server):
    """In a table of one's own, which is copied into, followed, and emptied: none of them is written."""
    publisher.execute(
        "CREATE TABLE events (id int PRIMARY KEY, at timestamp); CREATE PUBLICATION pub FOR TABLE events;"
        "INSERT INTO events SELECT i, date '2026-01-01' + i FROM generate_series(1, 5) i"
    )
    bridge = daemon(master=connect_server.master)
    spark.sql(
        f"CREATE TABLE delta.`{bridge.path('events')}` (id INT, at TIMESTAMP_NTZ, "
        "day DATE GENERATED ALWAYS AS (CAST(at AS DATE)), number BIGINT GENERATED ALWAYS AS IDENTITY) "
        "USING delta PARTITIONED BY (day)"
    ).collect()

    def compare():
        caught_up(bridge)
        rows = spark.read.format("delta").load(bridge.path("events")).orderBy("id").collect()
        assert [(row.id, row.at, row.day) for row in rows] == publisher.query(
            "SELECT id, at, at::date FROM events ORDER BY id"
        )
        assert all(row.number is not None for row in rows)

    bridge.start()
    bridge.wait_for('"streaming"')
    compare()
    publisher.execute("UPDATE events SET at = at + interval '1 day' WHERE id = 1; INSERT INTO events VALUES (9, 'now')")
    compare()
    publisher.execute("TRUNCATE events")
    compare()
    publisher.execute("INSERT INTO events VALUES (7, '2026-03-01')")
    compare()
    assert bridge.stop() == 0


@pytest.mark.soak
def test_soft_deletes_that_are_copied_afresh(spark, publisher, daemon, connect_server):
    """Without columns of their own: deleted rows stay."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t;"
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5) i"
    )
    bridge = daemon(master=connect_server.master, **{'tables__"public.t"__mode': "soft_deletes"})
    bridge.start()
    bridge.wait_for('"streaming"')
    publisher.execute("DELETE FROM t WHERE id > 3")
    caught_up(bridge)
    subprocess.run(
        [sys.executable, "-m", "bridge", "refresh", "sub", "--resync", "public.t", "--config", bridge.config],
        cwd=ROOT,
        check=True,
    )
    wait_until(lambda: "table joins the stream" in bridge.log.read_text(), 180)
    publisher.execute("DELETE FROM t WHERE id = 3")
    caught_up(bridge)
    rows = spark.read.format("delta").load(bridge.path("t")).selectExpr("id", "row_deleted_lsn IS NULL").orderBy("id")
    assert [tuple(row) for row in rows.collect()] == [(1, True), (2, True), (3, False), (4, False), (5, False)]
    assert bridge.stop() == 0


def _texts(rows):
    return [tuple(row) for row in rows.selectExpr("id", "region", "to_json(doc)").orderBy("id").collect()]

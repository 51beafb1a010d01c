"""Layouts and VARIANT with a Spark Connect server, whose client makes other frames of the same rows."""

from __future__ import annotations

import json

import pytest

from pgbridge.bridge.lake.location import layout_of
from pgbridge.bridge.runtime.warehouse import Layout
from tests.faults.test_connect import caught_up

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


def _texts(rows):
    return [tuple(row) for row in rows.selectExpr("id", "region", "to_json(doc)").orderBy("id").collect()]

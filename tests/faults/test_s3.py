"""A warehouse on S3, by a real server: copies, batches, undo and maintenance; and a network that is slow, cuts and refuses."""

from __future__ import annotations

import pytest

from bridge.apply.delta.durable import LocalTables
from bridge.apply.delta.maintain import DeltaTables
from bridge.errors import ApplyError, BridgeError
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber, text_rows

SETUP = """
CREATE TABLE docs (id int PRIMARY KEY, body text, n int);
CREATE TABLE facts (at int, what text);
INSERT INTO docs SELECT i, 'body ' || i, i FROM generate_series(1, 50) i;
CREATE PUBLICATION pub FOR TABLE docs, facts;
"""
CHANGES = (
    "INSERT INTO facts SELECT i, 'fact' FROM generate_series(1, 20) i",
    "UPDATE docs SET n = n + 1 WHERE id % 2 = 0; DELETE FROM docs WHERE id > 40; INSERT INTO docs VALUES (60, 'x', 1)",
    "BEGIN; TRUNCATE facts; INSERT INTO facts VALUES (1, 'after'); COMMIT",
    "ALTER TABLE docs ADD COLUMN more text DEFAULT 'm'; INSERT INTO docs VALUES (61, 'y', 2, 'z')",
)
TABLES = ("docs", "facts")


class Source:
    """The publisher's rows, for `differences`."""

    def __init__(self, publisher):
        self.publisher = publisher

    def rows(self, table, columns=None):
        return text_rows(self.publisher.conninfo, table, columns)


def assert_equal(spark, bridge, publisher):
    for table in TABLES:
        assert differences(spark, bridge.path(table), Source(publisher), f"public.{table}") == []


@pytest.fixture
def on_s3(spark, publisher, pipeline, bucket):
    """A subscription whose tables are copied to S3."""
    bucket.put_into(spark)
    publisher.execute(SETUP)
    bridge = pipeline(warehouse=bucket.warehouse)
    bridge.catch_up()
    return bridge


def test_copy_batches_and_maintenance(spark, publisher, on_s3):
    assert_equal(spark, on_s3, publisher)
    for changes in CHANGES:
        publisher.execute(changes)
        on_s3.catch_up()
        assert_equal(spark, on_s3, publisher)
    tables = DeltaTables(spark, LocalTables())
    tables.optimize(on_s3.path("docs"))
    tables.vacuum(on_s3.path("docs"), 168)
    publisher.execute("UPDATE docs SET n = 0")
    on_s3.catch_up()
    assert_equal(spark, on_s3, publisher)


@pytest.mark.parametrize("fault", ["cut before", "cut after", "slow down"])
def test_a_commit_meets_a_bad_network(spark, publisher, on_s3, bucket, fault):
    """S3A sends the request again; nothing is lost, nothing is there twice."""
    for changes in CHANGES[:2]:
        left = bucket.proxy.once(fault, "PUT", "_delta_log/0000", times=3)
        publisher.execute(changes)
        on_s3.catch_up()
        bucket.proxy.heal()
        assert left() == 0
        assert_equal(spark, on_s3, publisher)

"""A published table as a DataFrame: read by Spark's executors, or by this process if it is of modest size."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime.errors import SyncError
from pgbridge.bridge.sync import copy
from pgbridge.bridge.sync.copy import copied_rows, read_on_executors
from pgbridge.bridge.sync.copy_reader import copy_spec
from pgbridge.bridge.sync.key_order import CopyOrder


@pytest.mark.parametrize(
    ("master", "few"),
    [("local[2]", True), ("local[8, 3]", True), ("local[64]", False), ("spark://a:7077", False), (None, False)],
)
def test_a_cluster_may_have_more_cores_than_a_copy_may_have_connections(master, few):
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: master))
    assert copy._few_cores(spark) == few


def spec_of(publisher, name, snapshot, unrepresentable="error"):
    with Publisher(publisher.conninfo, application_name="test") as catalog:
        published = next(t for t in catalog.tables(["pub"]) if t.name == name)
        types = catalog.types(column.type_oid for column in published.columns)
    return copy_spec(
        published,
        types,
        conninfo=publisher.conninfo,
        application_name="copy",
        snapshot=snapshot,
        unrepresentable=unrepresentable,
        ranges=("",),
    )


def read(spark, publisher, name, snapshot, **options):
    return read_on_executors(spark, spec_of(publisher, name, snapshot, **options))


def test_rows_are_those_of_the_snapshot_filtered_and_projected(spark, publisher):
    publisher.execute(
        """CREATE TYPE mood AS ENUM ('ok', 'bad');
        CREATE TABLE t (id int PRIMARY KEY, n numeric(5,2), at timestamptz, m mood, tags text[], secret text);
        INSERT INTO t VALUES (1, 1.5, '2024-02-29 12:00+00', 'ok', '{a,NULL}', 's'), (2, NULL, NULL, NULL, NULL, 's'),
            (-1, 9, now(), 'bad', '{}', 's');
        CREATE PUBLICATION pub FOR TABLE t (id, n, at, m, tags) WHERE (id > 0)"""
    )
    with ReplicationConnection(publisher.conninfo, application_name="test") as replication:
        snapshot = replication.create_slot("copy_test", temporary=True)
        publisher.execute("INSERT INTO t VALUES (3, 3, NULL, 'ok', NULL, 's'); UPDATE t SET n = 0 WHERE id = 1")
        rows = read(spark, publisher, "t", snapshot.name)
        assert rows.schema.simpleString() == ("struct<id:int,n:decimal(5,2),at:timestamp,m:string,tags:array<string>>")
        assert sorted(rows.toArrow().to_pylist(), key=lambda row: row["id"]) == [
            {
                "id": 1,
                "n": Decimal("1.50"),
                "at": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC),
                "m": "ok",
                "tags": ["a", None],
            },
            {"id": 2, "n": None, "at": None, "m": None, "tags": None},
        ]


def test_a_value_that_delta_cannot_hold_stops_the_copy_or_is_null(spark, publisher):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date); INSERT INTO t VALUES (1, 'infinity');"
        "CREATE PUBLICATION pub FOR TABLE t"
    )
    with ReplicationConnection(publisher.conninfo, application_name="test") as replication:
        snapshot = replication.create_slot("copy_test", temporary=True)
        with pytest.raises(PySparkException, match=r'table "public.t": column "d": value \'infinity\''):
            read(spark, publisher, "t", snapshot.name).collect()
        assert read(spark, publisher, "t", snapshot.name, unrepresentable="null").collect()[0].d is None


# --- read here, or by the executors -----------------------------------------------------------------------------------


def copied(spark, publisher, snapshot, table_bytes, *, stopping=lambda: False):
    """The rows of table t, and Spark's plan."""
    spec = spec_of(publisher, "t", snapshot)
    with copied_rows(spark, spec, table_bytes, stopping) as rows:
        return sorted(rows.toArrow().to_pylist(), key=repr), rows._jdf.queryExecution().optimizedPlan().toString()


@pytest.mark.parametrize("rows", [0, 3, 60_000])
def test_the_rows_are_the_same_whoever_reads_them(spark, publisher, rows):
    publisher.execute(
        f"""CREATE TABLE t (id int PRIMARY KEY, "a b.c" text, at timestamptz, tags int[]);
        INSERT INTO t SELECT g, 'x' || g, '0001-01-01 00:00+00', ARRAY[g, NULL] FROM generate_series(1, {rows}) g;
        CREATE PUBLICATION pub FOR TABLE t WHERE (id <> 2)"""
    )
    with ReplicationConnection(publisher.conninfo, application_name="test") as replication:
        snapshot = replication.create_slot("copy_test", temporary=True).name
        publisher.execute("DELETE FROM t")
        here, plan = copied(spark, publisher, snapshot, 256 << 20)
        assert "MapInArrow" not in plan
        for size_bytes in (None, (256 << 20) + 1):
            elsewhere, plan = copied(spark, publisher, snapshot, size_bytes)
            assert "MapInArrow" in plan
            assert elsewhere == here
    assert len(here) == max(0, rows - 1)


def test_rows_with_an_order_are_sorted_over_all_files(spark, publisher, tmp_path):
    """They are read once, by ranges of blocks, and pass every column's value."""
    publisher.execute(
        """CREATE TABLE t ("the.id" uuid PRIMARY KEY, n int, filler text);
        INSERT INTO t SELECT md5(g::text)::uuid, g, repeat('x', 900) FROM generate_series(1, 2000) g;
        INSERT INTO t SELECT gen_random_uuid(), NULL, NULL; CREATE PUBLICATION pub FOR TABLE t; ANALYZE t"""
    )
    with ReplicationConnection(publisher.conninfo, application_name="test") as replication:
        snapshot = replication.create_slot("copy_test", temporary=True).name
        spec = replace(
            spec_of(publisher, "t", snapshot),
            ranges=["ctid < '(100,0)'", "ctid >= '(100,0)' AND ctid < '(200,0)'", "ctid >= '(200,0)'"],
            order=CopyOrder("the.id", (b"3", b"55555555-5555-5555-5555-555555555555", b"d")),
        )
        rows = read_on_executors(spark, spec)
        assert rows.columns == ["the.id", "n", "filler"]
        rows.write.format("delta").save(str(tmp_path / "t"))
    written = spark.read.format("delta").load(str(tmp_path / "t"))
    assert sorted(map(tuple, written.collect())) == sorted(
        publisher.query("""SELECT "the.id"::text, n, filler FROM t""")
    )
    files = [pq.read_table(file)["the.id"].to_pylist() for file in (tmp_path / "t").glob("*.parquet")]
    assert len(files) == 4
    keys = list(chain.from_iterable(sorted(files, key=min)))
    assert keys == sorted(keys)


@pytest.mark.parametrize(("table_bytes", "partitions"), [(8 << 10, 1), (2 << 20, 1), (64 << 20, 2)])
def test_a_small_tables_rows_come_in_one_part(spark, publisher, table_bytes, partitions):
    """Delta writes a file for each part."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 10)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE t")
    with ReplicationConnection(publisher.conninfo, application_name="test") as replication:
        snapshot = replication.create_slot("copy_test", temporary=True).name
        spec = spec_of(publisher, "t", snapshot)
        with copied_rows(spark, spec, table_bytes, lambda: False) as rows:
            assert rows.rdd.getNumPartitions() == partitions
            assert len(rows.collect()) == 10


def test_what_goes_wrong_here_is_the_copys_error(spark, publisher):
    """The publisher answers, and another connection's loss would be another error."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (0)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE t WHERE (1 / id > 0)")
    with ReplicationConnection(publisher.conninfo, application_name="test") as replication:
        snapshot = replication.create_slot("copy_test", temporary=True).name
        with pytest.raises(SyncError, match=r'cannot copy table "public.t": .*division by zero'):
            copied(spark, publisher, snapshot, 0)

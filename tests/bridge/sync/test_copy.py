"""The copy's reader: what it asks the server, and the rows under a snapshot as a Spark data source."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from pyspark.errors import PySparkException

from bridge.receive.publisher import PublishedColumn, PublishedTable, Publisher
from bridge.receive.slot import ReplicationConnection
from bridge.sync.copy import CopySpec, _key, copy_query, read_table
from protocol.types import BUILTIN

A = PublishedColumn("a", 23, -1, in_primary_key=True, in_replica_identity_index=False)
POINT = PublishedColumn('p"q', 600, -1, in_primary_key=False, in_replica_identity_index=False)


def table(relkind="r", columns=(A,), row_filters=()):
    return PublishedTable(1, "public", "My t", relkind, "d", tuple(columns), tuple(row_filters))


@pytest.mark.parametrize(
    ("published", "query"),
    [
        (table(), 'COPY (SELECT "a" FROM ONLY "public"."My t") TO STDOUT (FORMAT binary)'),
        (table("p"), 'COPY (SELECT "a" FROM "public"."My t") TO STDOUT (FORMAT binary)'),
        (
            table(row_filters=["(a > 1)", "(a < 0)"]),
            'COPY (SELECT "a" FROM ONLY "public"."My t" WHERE ((a > 1)) OR ((a < 0))) TO STDOUT (FORMAT binary)',
        ),
    ],
)
def test_copy_query(published, query):
    assert copy_query(published, BUILTIN) == query


def test_types_without_a_binary_reader_are_copied_as_text():
    assert 'pg_catalog.concat("p""q")' in copy_query(table(columns=[POINT]), BUILTIN)


def test_spec_survives_a_data_sources_options():
    spec = CopySpec("host=x", "app", "snap", "public.t", ["COPY 1"], [("a", 23, -1)], [{"oid": 1}], "error", ["a"])
    assert CopySpec.of(spec.options()) == spec
    assert "secret" in next(key for key, value in spec.options().items() if value == "host=x")


@pytest.mark.parametrize(("identity", "key"), [("d", ["a"]), ("f", ["a"]), ("i", ["b"]), ("n", [])])
def test_the_key_is_that_of_the_changes_to_come(identity, key):
    """Its values must be held, or no change would find its row."""
    indexed = PublishedColumn("b", 23, -1, in_primary_key=False, in_replica_identity_index=True)
    assert _key(PublishedTable(1, "public", "t", "r", identity, (A, indexed), ())) == key


def read(spark, publisher, name, snapshot, **options):
    with Publisher(publisher.conninfo, application_name="test") as catalog:
        published = next(t for t in catalog.tables(["pub"]) if t.name == name)
        types = catalog.types(column.type_oid for column in published.columns)
        options = {"unrepresentable": "error", **options}
        return read_table(
            spark,
            published,
            types,
            conninfo=publisher.conninfo,
            application_name="copy",
            snapshot=snapshot,
            **options,
        )


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

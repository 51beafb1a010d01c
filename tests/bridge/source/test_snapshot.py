"""`spark.read.format("pgoutput")`: the published rows, by filter and column list."""

from __future__ import annotations

import pytest

from bridge.runtime.errors import ConfigError, PublisherError, TableAltered
from bridge.source.data_source import PgoutputSource
from bridge.source.export import export_snapshot
from bridge.sync import copy_plan
from tests.bridge.source.without_spark import rows


def reading(source, **options):
    given = {"connection": source.publisher.conninfo, "publication": "shop", "table": "public.orders", **options}
    data = PgoutputSource(given)
    return data.schema(), data.reader(data.schema())


def test_filter_and_column_list(source):
    source.publisher.execute("INSERT INTO orders SELECT i, 'c', i FROM generate_series(1, 10) i")
    if source.publisher.query("SHOW server_version_num")[0][0] < "150000":
        pytest.skip("filters and column lists are PostgreSQL 15's")
    source.publisher.execute("CREATE PUBLICATION vip FOR TABLE orders (id, total) WHERE (id > 7)")
    schema, reader = reading(source, publication="vip")
    assert schema.simpleString() == "struct<id:int,total:decimal(10,2)>"
    assert [row["id"] for row in rows(reader)] == [8, 9, 10]


def test_ranges_under_one_snapshot(source, monkeypatch):
    """A large table is read by several tasks, and what is committed meanwhile is not there."""
    monkeypatch.setattr(copy_plan, "RANGE_BYTES", 100 * 8192)
    source.publisher.execute("INSERT INTO orders SELECT i, repeat('x', 900), 1 FROM generate_series(1, 4000) i")
    with export_snapshot(source.publisher.conninfo, "shop") as snapshot:
        source.publisher.execute("UPDATE orders SET id = -id; INSERT INTO orders VALUES (0, 'late', 1)")
        _, reader = reading(source, snapshot=snapshot.name)
        assert len(reader.partitions()) > 2
        assert sorted(row["id"] for row in rows(reader)) == list(range(1, 4001))


def test_a_table_that_was_rewritten_since_somebody_exported_the_snapshot(source):
    """It would be read as if it were empty."""
    source.publisher.execute("INSERT INTO orders VALUES (1, 'c', 1)")
    with source.publisher.connect() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = other.execute("SELECT pg_export_snapshot()").fetchall()
        source.publisher.execute("ALTER TABLE orders ALTER total TYPE numeric(10, 2) USING total * 100")
        with pytest.raises(TableAltered, match='"public.orders" was rewritten'):
            reading(source, snapshot=snapshot)[1].partitions()


def test_what_is_refused(source):
    with pytest.raises(PublisherError, match='table "public.other" is not published by shop') as caught:
        reading(source, table="public.other")
    assert "public.notes, public.orders" in caught.value.hint
    with pytest.raises(PublisherError, match='publication "none" does not exist'):
        reading(source, publication="none")
    with pytest.raises(ConfigError, match='option "slot" is missing for readStream, or option "table" for read'):
        PgoutputSource({"connection": source.publisher.conninfo, "publication": "shop"}).schema()

"""Partitioned tables, published as their root or as their partitions."""

from __future__ import annotations

import pytest

from tests.bridge.receive.published_tables import columns, published

PARTITIONED = (
    "CREATE TABLE root (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);"
    "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE middle PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);"
    "CREATE TABLE inner_leaf PARTITION OF middle FOR VALUES FROM (10) TO (20);"
)


@pytest.mark.parametrize(
    ("definition", "tables"),
    [
        ("FOR TABLE root WITH (publish_via_partition_root)", {"public.root": "p"}),
        ("FOR TABLE root", {"public.inner_leaf": "r", "public.low": "r"}),
        ("FOR ALL TABLES WITH (publish_via_partition_root)", {"public.root": "p"}),
        ("FOR ALL TABLES", {"public.inner_leaf": "r", "public.low": "r"}),
        ("FOR TABLE middle WITH (publish_via_partition_root)", {"public.middle": "p"}),
        ("FOR TABLE low WITH (publish_via_partition_root)", {"public.low": "r"}),
    ],
)
def test_partitions(asked, publisher, definition, tables):
    """As their root, or as themselves; a leaf's key is the one it has from its root."""
    publisher.execute(f"{PARTITIONED} CREATE PUBLICATION p {definition}")
    found = published(asked, "p")
    assert {name: table.relkind for name, table in found.items()} == tables
    assert all(table.primary_key == ("id",) for table in found.values())


def test_the_size_of_a_root_is_that_of_its_leaves(asked, publisher):
    publisher.execute(f"{PARTITIONED} INSERT INTO root SELECT generate_series(0, 19), repeat('x', 1000)")
    sizes = {}
    for name in ("root", "middle", "low", "inner_leaf"):
        (relid,), *_ = publisher.query(f"SELECT '{name}'::regclass::oid::int")
        sizes[name] = asked.table_bytes(relid)
    assert sizes["low"] > 10_000
    assert sizes["middle"] == sizes["inner_leaf"]
    assert sizes["root"] == sizes["low"] + sizes["inner_leaf"]
    assert asked.table_bytes(1) == 0, "no such table"


@pytest.mark.parametrize("version", [14, 15, 16])
def test_root_and_leaf_by_different_publications(asked, publisher, version):
    """Changes come as the root's then: a leaf of its own would never get any. All versions leave it out."""
    publisher.needs(version)
    asked.version = version * 10000
    publisher.execute(
        f"{PARTITIONED} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);"
        "CREATE PUBLICATION q FOR TABLE low; CREATE PUBLICATION r FOR TABLE middle WITH (publish_via_partition_root)"
    )
    assert list(published(asked, "p", "q", "r")) == ["public.root"]
    assert list(published(asked, "q", "r")) == ["public.low", "public.middle"]


def test_leaf_with_another_order_of_columns(asked, publisher):
    """A leaf that was attached has its own numbers of columns; as root, the root's count."""
    publisher.execute(
        "CREATE TABLE root (id int, a text, b text) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf (b text, gone int, id int, a text); ALTER TABLE leaf DROP COLUMN gone;"
        "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (10);"
        "CREATE PUBLICATION p FOR TABLE root (id, b) WITH (publish_via_partition_root);"
        "CREATE PUBLICATION q FOR TABLE leaf (id, b)"
    )
    assert columns(published(asked, "p")["public.root"]) == ["id", "b"]
    assert columns(published(asked, "q")["public.leaf"]) == ["b", "id"]

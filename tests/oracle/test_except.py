"""FOR ALL TABLES EXCEPT in own definitions, against native subscriptions of what it leaves.

The test server may be older than PostgreSQL 19 and not know EXCEPT, so the native subscriber's publications list the
tables: those that 19's subscription test 037_except leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.oracle.documentation import Case, Run
from tests.oracle.test_documentation import carried_out, check

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.fix_postgres import Server

EXCEPTED: Final = Case(
    "excepted",
    "a root in EXCEPT takes its partitions along, with and without publish_via_partition_root; a parent those that "
    "inherit from it; what one publication excludes, another may publish, by its own filter",
    """
    CREATE TABLE secret (id int PRIMARY KEY, n int);
    CREATE TABLE shared (id int PRIMARY KEY, n int);
    CREATE TABLE parent (id int PRIMARY KEY, n int);
    CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
    CREATE TABLE root (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
    CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
    CREATE TABLE lowest PARTITION OF low DEFAULT;
    CREATE TABLE rest PARTITION OF root DEFAULT;
    CREATE TABLE leaves (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
    CREATE TABLE leaf PARTITION OF leaves DEFAULT;
    CREATE TABLE tree (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
    CREATE TABLE twig PARTITION OF tree DEFAULT;
    """,
    """
    CREATE PUBLICATION excepted_p FOR TABLE excepted.leaves;
    CREATE PUBLICATION excepted_q FOR TABLE excepted.shared WHERE (id > 5);
    CREATE PUBLICATION excepted_r FOR TABLE excepted.tree WITH (publish_via_partition_root);
    """,
    ("shared", "leaf", "tree"),
    "; ".join(
        f"INSERT INTO {table} VALUES (1, 1), (7, 7), (107, 7)"
        for table in ("secret", "shared", "child", "root", "leaves", "tree")
    ),
    (
        "; ".join(
            f"INSERT INTO {table} VALUES (2, 2), (8, 8), (108, 8); UPDATE {table} SET n = n + 1, id = id + 4"
            for table in ("secret", "shared", "child", "root", "leaves", "tree")
        ),
        "DELETE FROM parent; DELETE FROM leaf WHERE id = 11; DELETE FROM root WHERE id > 100; DELETE FROM shared",
        "TRUNCATE secret, tree, root; INSERT INTO tree VALUES (9, 9); INSERT INTO root VALUES (9, 9)",
    ),
    definitions="""
    CREATE PUBLICATION excepted_p FOR ALL TABLES EXCEPT (TABLE excepted.secret, excepted.shared, excepted.parent,
        TABLE excepted.root, ONLY (excepted.tree)), ALL SEQUENCES;
    CREATE PUBLICATION excepted_q FOR TABLE excepted.shared WHERE (id > 5);
    CREATE PUBLICATION excepted_r FOR ALL TABLES EXCEPT (TABLE excepted.secret, excepted.shared,
        excepted.parent, excepted.root, excepted.leaves) WITH (publish_via_partition_root);
    """,
)


def test_everything_except(spark: SparkSession, postgresql_server: Server, tmp_path: Path):
    with carried_out(Run("except", (EXCEPTED,)), spark, postgresql_server, tmp_path) as done:
        subscribed = {rel.qualified_name for rel in done.bridge.catalog.rels(done.bridge.subscription.name)}
        assert subscribed == set(EXCEPTED.qualified_tables)
        assert {name for (name,) in done.native.query("SELECT srrelid::regclass::text FROM pg_subscription_rel")} == (
            subscribed
        )
        check(spark, done, EXCEPTED)

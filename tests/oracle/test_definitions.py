"""Definitions re-applied to a broad stream: equal to native subscribers of publications with the same text.

The publications are those of the documentation's examples of row filters, column lists and partitions
(logical-replication.sgml), with changes that take every way through the table of UPDATEs.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber


@dataclass(frozen=True)
class Example:
    """Publications, the tables under them, what is there before the copy, what happens after it.

    Attributes:
        publications: CREATE PUBLICATION statements; each name begins with `pub`.
        tables: What subscribers get.
    """

    schema: str
    publications: str
    before: str
    changes: tuple[str, ...]
    tables: tuple[str, ...]


ROW_FILTERS = Example(
    """
    CREATE TABLE t1 (a int, b int, c text, PRIMARY KEY (a, c));
    CREATE TABLE t2 (d int, e int, f int, PRIMARY KEY (d, e));
    CREATE TABLE t3 (g int PRIMARY KEY, h int, i int);
    CREATE TABLE toasted (id int, flag int, body text, PRIMARY KEY (id, flag));
    ALTER TABLE toasted ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE whole (id int PRIMARY KEY, n int);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE inserted (id int PRIMARY KEY, n int)
    """,
    """
    CREATE PUBLICATION pub1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW'), whole WHERE (n % 2 = 0 OR n IS NULL),
        toasted WHERE (flag = 1);
    CREATE PUBLICATION pub2 FOR TABLE t2 WHERE (e = 99), inserted WHERE (n <> 3) WITH (publish = 'insert');
    CREATE PUBLICATION pub3 FOR TABLE t3 WHERE (g = 10);
    CREATE PUBLICATION pub4 FOR TABLE t3 WHERE (g < 3) WITH (publish = 'insert, update, delete')
    """,
    """
    INSERT INTO t1 VALUES (2, 102, 'NSW'), (6, 106, 'NSW'), (8, 108, 'QLD'), (9, 109, 'NSW');
    INSERT INTO t2 SELECT n, 90 + n, n FROM generate_series(1, 12) AS n;
    INSERT INTO t3 SELECT n, n, n FROM generate_series(1, 12) AS n;
    INSERT INTO toasted SELECT n, n % 2, repeat('x', 3000) FROM generate_series(1, 6) AS n;
    INSERT INTO whole VALUES (1, 1), (2, 2), (3, NULL), (4, 4);
    INSERT INTO inserted VALUES (1, 3), (2, 4)
    """,
    (
        "INSERT INTO t1 VALUES (10, 110, 'NSW'), (11, 111, 'VIC'), (3, 103, 'NSW')",
        "UPDATE t1 SET a = 555 WHERE a = 2",
        "UPDATE t1 SET c = 'VIC' WHERE a = 9",
        "UPDATE t1 SET b = b + 1",
        "BEGIN; UPDATE t1 SET a = a + 10; UPDATE t1 SET a = a - 10; DELETE FROM t1 WHERE a = 10; COMMIT",
        "UPDATE t2 SET f = 0; INSERT INTO t2 VALUES (99, 99, 99); DELETE FROM t2 WHERE d < 5",
        "UPDATE t3 SET g = 20 WHERE g = 10; UPDATE t3 SET g = 10 WHERE g = 7",
        "UPDATE t3 SET h = -1; DELETE FROM t3 WHERE g = 2",
        "UPDATE toasted SET flag = 1 - flag; UPDATE whole SET n = n + 1; UPDATE whole SET n = NULL WHERE id = 2",
        "DELETE FROM whole WHERE id = 3; INSERT INTO inserted VALUES (3, 3), (4, 5), (5, NULL)",
        "UPDATE inserted SET n = 9; DELETE FROM inserted; TRUNCATE t3; INSERT INTO t3 VALUES (10, 1, 1), (1, 1, 1)",
    ),
    ("t1", "t2", "t3", "toasted", "whole", "inserted"),
)

COLUMN_LISTS = Example(
    """
    CREATE TABLE t1 (id int, a text, b text, c text, d text, e text, PRIMARY KEY (id));
    CREATE TABLE listed (id int PRIMARY KEY, secret text, n int);
    CREATE TABLE generated (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)
    """,
    """
    CREATE PUBLICATION pub1 FOR TABLE t1 (id, b, a, d);
    CREATE PUBLICATION pub2 FOR TABLE listed (n, id) WHERE (id > 1), generated (id, twice)
    """,
    """
    INSERT INTO t1 VALUES (1, 'a-1', 'b-1', 'c-1', 'd-1', 'e-1'), (2, 'a-2', 'b-2', 'c-2', 'd-2', 'e-2');
    INSERT INTO listed VALUES (1, 's', 1), (2, 's', 2);
    INSERT INTO generated VALUES (1, 1)
    """,
    (
        "INSERT INTO t1 VALUES (3, 'a-3', 'b-3', 'c-3', 'd-3', 'e-3'); UPDATE t1 SET c = 'x', d = 'y' WHERE id = 1",
        "UPDATE t1 SET id = 20 WHERE id = 2; UPDATE listed SET secret = 'other'; UPDATE listed SET id = 3 WHERE id = 1",
        "DELETE FROM t1 WHERE id = 3; INSERT INTO listed VALUES (9, NULL, NULL); INSERT INTO generated VALUES (2, 5)",
        "UPDATE generated SET n = 7 WHERE id = 1",
    ),
    ("t1", "listed", "generated"),
)

_PARTITIONED = """
    CREATE TABLE parent (a int PRIMARY KEY, b text) PARTITION BY RANGE (a);
    CREATE TABLE child (b text, a int NOT NULL);
    ALTER TABLE parent ATTACH PARTITION child FOR VALUES FROM (0) TO (10);
    CREATE TABLE second PARTITION OF parent FOR VALUES FROM (10) TO (20);
    CREATE TABLE plain (a int PRIMARY KEY)
"""
_PARTITION_CHANGES = (
    "INSERT INTO parent VALUES (2, 'two'), (6, 'six'), (16, 'sixteen'); INSERT INTO child (a, b) VALUES (7, 'seven')",
    "UPDATE parent SET b = b || '!'",
    "UPDATE parent SET a = a + 10 WHERE a = 7; UPDATE parent SET a = a - 13 WHERE a = 16",
    "DELETE FROM parent WHERE a IN (2, 11); INSERT INTO plain VALUES (1)",
    "CREATE TABLE third PARTITION OF parent FOR VALUES FROM (20) TO (30)",
    "INSERT INTO parent VALUES (25, 'twenty-five'), (8, 'eight'); UPDATE parent SET a = a - 2 WHERE a = 25",
)

ROOT = Example(
    _PARTITIONED,
    "CREATE PUBLICATION pub1 FOR TABLE parent WHERE (a > 3), plain WITH (publish_via_partition_root)",
    "INSERT INTO parent VALUES (1, 'one'), (5, 'five'), (11, 'eleven'), (15, 'fifteen')",
    (*_PARTITION_CHANGES, "TRUNCATE child; INSERT INTO parent VALUES (9, 'nine')"),
    ("parent", "plain"),
)

LEAVES = Example(
    _PARTITIONED,
    "CREATE PUBLICATION pub1 FOR TABLE child WHERE (a < 6), second",
    "INSERT INTO parent VALUES (1, 'one'), (5, 'five'), (11, 'eleven'), (15, 'fifteen')",
    (*_PARTITION_CHANGES, "TRUNCATE child; INSERT INTO parent VALUES (4, 'four'), (9, 'nine')"),
    ("child", "second"),
)


@pytest.mark.parametrize(
    "example", [ROW_FILTERS, COLUMN_LISTS, ROOT, LEAVES], ids=["row filters", "column lists", "root", "leaves"]
)
def test_example(spark, publisher, pipeline, tmp_path, example):
    """The same text on the server and here."""
    publisher.execute(example.schema)
    for statement in example.publications.split(";"):
        publisher.execute(statement)
    broad = "CREATE PUBLICATION broad FOR ALL TABLES"
    if "GENERATED" in example.schema:
        if publisher.query("SHOW server_version_num")[0][0] < "180000":
            pytest.skip("generated columns are published from PostgreSQL 18 on")
        broad += " WITH (publish_generated_columns = stored)"
    publisher.execute(broad)
    publisher.execute(example.before)
    definitions = tmp_path / "definitions.sql"
    definitions.write_text(example.publications)
    names = [word for word in example.publications.split() if word.startswith("pub") and word[3:].isdigit()]
    with ExitStack() as stack:
        native = stack.enter_context(NativeSubscriber(publisher.conninfo, names, schema=_without_generated(example)))
        native.wait_caught_up()
        bridge = pipeline(publications=("broad",), publication_definitions=str(definitions), batch_max_rows=12)
        bridge.catch_up()
        for changes in example.changes:
            publisher.execute(changes)
            if changes.startswith("CREATE TABLE"):
                native.execute(changes)
        bridge.catch_up()
        native.wait_caught_up()
        assert sorted(rel.name for rel in bridge.catalog.rels(bridge.subscription.name)) == sorted(example.tables)
        for table in example.tables:
            assert differences(spark, bridge.path(table), native, table) == []


def _without_generated(example: Example) -> str:
    """A subscriber's schema: what the publisher generates is an ordinary column there."""
    return example.schema.replace(" GENERATED ALWAYS AS (n * 2) STORED", "")

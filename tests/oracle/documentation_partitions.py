"""Cases of what is said of partitioned tables: whose filter and list, as which table, and what TRUNCATE does."""

from __future__ import annotations

from typing import Final

from tests.oracle.documentation import Case

_EXAMPLE: Final = """
    CREATE TABLE parent(a int PRIMARY KEY) PARTITION BY RANGE(a);
    CREATE TABLE child PARTITION OF parent DEFAULT;
"""
_EXAMPLE_CHANGES: Final = ("INSERT INTO parent VALUES (2), (4), (6)", "INSERT INTO child VALUES (3), (5), (7)")

PARENT: Final = Case(
    "via_parent",
    "publication p4, publish_via_partition_root = true: the row filter is the parent's, and does not matter to its "
    "TRUNCATE",
    _EXAMPLE,
    """
    CREATE PUBLICATION via_parent_p4 FOR TABLE via_parent.parent WHERE (a < 5), via_parent.child WHERE (a >= 5)
        WITH (publish_via_partition_root=true);
    """,
    ("parent",),
    "INSERT INTO parent VALUES (1), (8)",
    ("TRUNCATE parent", *_EXAMPLE_CHANGES),
    shown={"parent": [("2",), ("3",), ("4",)]},
)

CHILD: Final = Case(
    "via_child",
    "publication p4, publish_via_partition_root = false: the row filter is the child's",
    _EXAMPLE,
    """
    CREATE PUBLICATION via_child_p4 FOR TABLE via_child.parent, via_child.child WHERE (a >= 5)
        WITH (publish_via_partition_root=false);
    """,
    ("child",),
    "INSERT INTO parent VALUES (2), (4), (6)",
    ("TRUNCATE parent", *_EXAMPLE_CHANGES),
    shown={"child": [("5",), ("6",), ("7",)]},
)

_TREE: Final = """
    CREATE TABLE tree (id int, a int, b text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
    CREATE TABLE mid PARTITION OF tree FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
    CREATE TABLE low (b text, gone int, a int, id int NOT NULL PRIMARY KEY);
    ALTER TABLE low DROP COLUMN gone;
    ALTER TABLE mid ATTACH PARTITION low FOR VALUES FROM (0) TO (10);
    CREATE TABLE high PARTITION OF mid FOR VALUES FROM (10) TO (90);
    CREATE TABLE rest PARTITION OF tree FOR VALUES FROM (100) TO (1000);
"""
_ROWS: Final = "INSERT INTO tree SELECT n, n, 'copied' FROM unnest(ARRAY[1, 4, 7, 12, 15, 60, 150, 160]) AS n"
_MOVES: Final = (
    "INSERT INTO tree VALUES (2, 2, 'in'), (8, 8, 'in'), (30, 30, 'in'), (200, 200, 'in')",
    "INSERT INTO low (id) VALUES (3)",
    "UPDATE tree SET b = 'same', a = -a WHERE id IN (1, 7, 12, 60, 150)",
    "UPDATE tree SET id = id + 10 WHERE id IN (4, 7); UPDATE tree SET id = id - 9 WHERE id = 15",
    "UPDATE tree SET id = id + 100 WHERE id = 12; UPDATE tree SET id = 9 WHERE id = 160",
    "DELETE FROM tree WHERE id IN (1, 60, 150)",
    "CREATE TABLE late PARTITION OF tree FOR VALUES FROM (1000) TO (2000)",
    "INSERT INTO tree VALUES (1001, 1, 'late'), (1002, 0, 'late'); UPDATE tree SET id = 5 WHERE id = 1001",
    "UPDATE tree SET a = 1 WHERE id IN (9, 1002)",
)

ROOT: Final = Case(
    "root",
    "publish_via_partition_root = true: the root's row filter and column list, for rows of any partition, and those "
    "that move; TRUNCATE of what is below it is not replicated",
    _TREE,
    """
    CREATE PUBLICATION root_p FOR TABLE root.tree (b, id) WHERE (id < 50 OR id > 100), root.low (a, id) WHERE (id < 2)
        WITH (publish_via_partition_root);
    """,
    ("tree",),
    _ROWS,
    (
        *_MOVES,
        "TRUNCATE low; INSERT INTO tree VALUES (7, 7, 'after')",
        "TRUNCATE mid; TRUNCATE low, rest",
    ),
)

LEAVES: Final = Case(
    "leaves",
    "publish_via_partition_root = false: each partition's row filter and column list; a row that moves is a DELETE "
    "of one and an INSERT of the other; a partition that is made later is not subscribed",
    _TREE,
    """
    CREATE PUBLICATION leaves_p FOR TABLE leaves.mid, leaves.low (b, id) WHERE (id < 6);
    CREATE PUBLICATION leaves_q FOR TABLE leaves.high WHERE (id = 12) WITH (publish = 'insert');
    """,
    ("low", "high"),
    _ROWS,
    (
        *_MOVES,
        "CREATE TABLE late_below PARTITION OF mid FOR VALUES FROM (90) TO (100)",
        "INSERT INTO tree VALUES (96, 96, 'late'); UPDATE tree SET id = 95 WHERE id = 14",
        "UPDATE tree SET id = 1 WHERE id = 96",
    ),
)

MIDDLE: Final = Case(
    "middle",
    "publish_via_partition_root = true where the topmost published table is not the root; targets may be independent "
    "tables; an action that only a publication of the partition has goes unfiltered, as the root's",
    _TREE,
    """
    CREATE PUBLICATION middle_p FOR TABLE middle.mid WHERE (id <> 7)
        WITH (publish_via_partition_root, publish = 'insert, update, truncate');
    CREATE PUBLICATION middle_q FOR TABLE middle.low WITH (publish = 'delete');
    """,
    ("mid",),
    _ROWS,
    (*_MOVES, "TRUNCATE high", "TRUNCATE rest, low"),
    subscriber="""
    CREATE TABLE mid (b text, id int PRIMARY KEY, a int);
    CREATE TABLE tree (id int) PARTITION BY RANGE (id)
    """,
)

ROOT_STREAM: Final = Case(
    "root_stream",
    "publish_via_partition_root = true where the server sends the root's changes itself; TRUNCATE of the only "
    "partition is not the root's",
    """
    CREATE TABLE tree (id int PRIMARY KEY, a int) PARTITION BY RANGE (id);
    CREATE TABLE only_one (a int, id int NOT NULL PRIMARY KEY);
    ALTER TABLE tree ATTACH PARTITION only_one DEFAULT;
    """,
    """
    CREATE PUBLICATION root_stream_p FOR TABLE root_stream.tree (id) WHERE (id > 2)
        WITH (publish_via_partition_root);
    """,
    ("tree",),
    "INSERT INTO tree SELECT n, n FROM generate_series(1, 5) AS n",
    (
        "UPDATE tree SET a = 0; UPDATE tree SET id = 9 WHERE id = 1; UPDATE tree SET id = 0 WHERE id = 3",
        "INSERT INTO only_one VALUES (11, 11), (1, 1); DELETE FROM tree WHERE id = 4",
        "TRUNCATE only_one",
    ),
    roots=("tree",),
)

ALL_TABLES: Final = Case(
    "all_leaves",
    "FOR ALL TABLES publishes tables that nobody names, and partitions as themselves where it has no "
    "publish_via_partition_root: the filter of a root that is published in their place stands beside it",
    """
    CREATE TABLE parent(a int PRIMARY KEY) PARTITION BY RANGE(a);
    CREATE TABLE child PARTITION OF parent DEFAULT;
    CREATE TABLE tree(a int PRIMARY KEY) PARTITION BY RANGE(a);
    CREATE TABLE leaf PARTITION OF tree DEFAULT;
    """,
    "CREATE PUBLICATION all_leaves_p FOR TABLE all_leaves.parent WHERE (a < 5) WITH (publish_via_partition_root);",
    ("parent", "leaf"),
    "INSERT INTO parent VALUES (1), (6); INSERT INTO tree VALUES (1), (6)",
    ("INSERT INTO parent VALUES (2), (7); INSERT INTO tree VALUES (2), (7)", "UPDATE parent SET a = 3 WHERE a = 7"),
)

CASES: Final = (PARENT, CHILD, ROOT, LEAVES, MIDDLE, ROOT_STREAM)

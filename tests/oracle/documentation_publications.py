"""Cases of the sections on publications, subscriptions and the initial copy: actions, TRUNCATE, identities, schemas."""

from __future__ import annotations

from typing import Final

from tests.oracle.documentation import Case

SUBSCRIPTIONS: Final = Case(
    "subscriptions",
    "the copy ignores publish; pub2 and pub3a replicate no INSERT, pub3b what matches its filter",
    """
    CREATE TABLE t1(a int, b text, PRIMARY KEY(a));
    CREATE TABLE t2(c int, d text, PRIMARY KEY(c));
    CREATE TABLE t3(e int, f text, PRIMARY KEY(e));
    """,
    """
    CREATE PUBLICATION subscriptions_pub1 FOR TABLE subscriptions.t1;
    CREATE PUBLICATION subscriptions_pub2 FOR TABLE subscriptions.t2 WITH (publish = 'truncate');
    CREATE PUBLICATION subscriptions_pub3a FOR TABLE subscriptions.t3 WITH (publish = 'truncate');
    CREATE PUBLICATION subscriptions_pub3b FOR TABLE subscriptions.t3 WHERE (e > 5);
    """,
    ("t1", "t2", "t3"),
    """
    INSERT INTO t1 VALUES (1, 'one'), (2, 'two'), (3, 'three');
    INSERT INTO t2 VALUES (1, 'A'), (2, 'B'), (3, 'C');
    INSERT INTO t3 VALUES (1, 'i'), (2, 'ii'), (3, 'iii');
    """,
    (
        "INSERT INTO t1 VALUES (4, 'four'), (5, 'five'), (6, 'six')",
        "INSERT INTO t2 VALUES (4, 'D'), (5, 'E'), (6, 'F')",
        "INSERT INTO t3 VALUES (4, 'iv'), (5, 'v'), (6, 'vi')",
    ),
    shown={
        "t1": [("1", "one"), ("2", "two"), ("3", "three"), ("4", "four"), ("5", "five"), ("6", "six")],
        "t2": [("1", "A"), ("2", "B"), ("3", "C")],
        "t3": [("1", "i"), ("2", "ii"), ("3", "iii"), ("6", "vi")],
    },
)

PUBLISH: Final = Case(
    "publish",
    "publications can limit the changes they produce to any combination of INSERT, UPDATE, DELETE and TRUNCATE; what "
    "an UPDATE becomes is not held against it; where INSERT alone is published, a list may omit the replica identity, "
    "and a filter may use what is not listed",
    "CREATE TABLE inserted (id int PRIMARY KEY, n int, note text); CREATE TABLE updated (id int PRIMARY KEY, n int)",
    """
    CREATE PUBLICATION publish_insert FOR TABLE publish.inserted (note, n) WHERE (id > 2) WITH (publish = 'insert');
    CREATE PUBLICATION publish_update FOR TABLE publish.updated WHERE (id > 1)
        WITH (publish = 'update, delete');
    """,
    ("inserted", "updated"),
    """
    INSERT INTO inserted VALUES (1, 1, 'x'), (3, 3, 'x'), (4, 3, 'x');
    INSERT INTO updated SELECT n, n FROM generate_series(1, 4) AS n;
    """,
    (
        "INSERT INTO inserted VALUES (2, 2, 'x'), (5, 3, 'x'), (6, NULL, NULL); INSERT INTO updated VALUES (5, 5)",
        "UPDATE inserted SET n = -n; UPDATE updated SET n = -n",
        "UPDATE inserted SET id = 11 WHERE id = 1; UPDATE updated SET id = 11 WHERE id = 1",
        "UPDATE updated SET id = -id WHERE id = 4",
        "DELETE FROM inserted WHERE id = 3; DELETE FROM updated WHERE id IN (2, 5)",
        "TRUNCATE inserted, updated",
        "INSERT INTO inserted VALUES (7, 7, 'y'); INSERT INTO updated VALUES (7, 7)",
    ),
    subscriber="CREATE TABLE inserted (n int, note text); CREATE TABLE updated (id int PRIMARY KEY, n int)",
)

TRUNCATE: Final = Case(
    "truncate",
    "row filters and column lists have no effect for TRUNCATE, and hold for what comes after it; the group that "
    "CASCADE collects is truncated, minus tables that are not part of the subscription",
    """
    CREATE TABLE orders (id int PRIMARY KEY, secret text, n int);
    CREATE TABLE items (id int PRIMARY KEY, of int REFERENCES orders);
    CREATE TABLE notes (id int PRIMARY KEY, of int REFERENCES orders);
    """,
    """
    CREATE PUBLICATION truncate_narrow FOR TABLE truncate.orders (id, n) WHERE (id > 2);
    CREATE PUBLICATION truncate_only FOR TABLE truncate.items WITH (publish = 'truncate');
    """,
    ("orders", "items"),
    """
    INSERT INTO orders SELECT n, 's', n FROM generate_series(1, 5) AS n;
    INSERT INTO items VALUES (1, 1), (2, 2);
    INSERT INTO notes VALUES (1, 1);
    """,
    (
        "TRUNCATE orders CASCADE",
        "INSERT INTO orders VALUES (1, 's', 1), (7, 's', 7); INSERT INTO items VALUES (7, 7)",
        "UPDATE orders SET n = n + 1",
    ),
    subscriber="""
    CREATE TABLE orders (id int PRIMARY KEY, n int);
    CREATE TABLE items (id int PRIMARY KEY, of int REFERENCES orders)
    """,
)

IDENTITY: Final = Case(
    "identity",
    "a unique index can be the replica identity; INSERT can proceed regardless of it, and a filter of INSERTs alone "
    "can use any column",
    """
    CREATE TABLE indexed (id int PRIMARY KEY, code int NOT NULL UNIQUE, note text);
    ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code_key;
    CREATE TABLE without (id int, n int);
    ALTER TABLE without REPLICA IDENTITY NOTHING;
    """,
    """
    CREATE PUBLICATION identity_changes FOR TABLE identity.indexed WHERE (code > 10);
    CREATE PUBLICATION identity_inserts FOR TABLE identity.without WHERE (n <> 3) WITH (publish = 'insert');
    """,
    ("indexed", "without"),
    """
    INSERT INTO indexed VALUES (1, 5, 'a'), (2, 15, 'b'), (3, 16, 'c'), (4, 17, 'd'), (5, 6, 'e');
    INSERT INTO without VALUES (1, 3), (2, 4), (2, 4), (3, NULL);
    """,
    (
        "UPDATE indexed SET note = note || '!'; UPDATE indexed SET id = id + 10 WHERE id > 3",
        "UPDATE indexed SET code = 7 WHERE code = 15; UPDATE indexed SET code = 25 WHERE code = 5",
        "DELETE FROM indexed WHERE code IN (16, 6)",
        "INSERT INTO without VALUES (1, 3), (4, 5), (4, 5), (5, NULL)",
    ),
)

IN_SCHEMA: Final = Case(
    "in_schema",
    "row filters become redundant if a publication was created using FOR TABLES IN SCHEMA and the table belongs to the "
    "schema; its own filter, too",
    """
    CREATE TABLE t (id int PRIMARY KEY, n int);
    CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
    """,
    """
    CREATE PUBLICATION in_schema_filtered FOR TABLE in_schema.t WHERE (id > 5);
    CREATE PUBLICATION in_schema_all FOR TABLES IN SCHEMA in_schema, TABLE in_schema.t WHERE (id > 6);
    """,
    ("t",),
    "INSERT INTO t VALUES (1, 1), (7, 7)",
    (
        "INSERT INTO t VALUES (2, 2), (8, 8); INSERT INTO unlogged VALUES (1)",
        "UPDATE t SET n = n + 1 WHERE id IN (1, 8); UPDATE t SET id = 3 WHERE id = 7; DELETE FROM t WHERE id = 2",
    ),
)

ALL_TABLES: Final = Case(
    "all_tables",
    "row filters become redundant if a publication was created using FOR ALL TABLES",
    """
    CREATE TABLE t (id int PRIMARY KEY, n int);
    CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
    CREATE VIEW seen AS SELECT * FROM t;
    """,
    """
    CREATE PUBLICATION all_tables_filtered FOR TABLE all_tables.t WHERE (id > 5);
    CREATE PUBLICATION all_tables_all FOR ALL TABLES;
    """,
    ("t",),
    "INSERT INTO t VALUES (1, 1), (7, 7)",
    (
        "INSERT INTO t VALUES (2, 2), (8, 8); INSERT INTO unlogged VALUES (1)",
        "UPDATE t SET n = n + 1 WHERE id IN (1, 8); UPDATE t SET id = 3 WHERE id = 7; DELETE FROM t WHERE id = 2",
    ),
)

CASES: Final = (SUBSCRIPTIONS, PUBLISH, TRUNCATE, IDENTITY, IN_SCHEMA)

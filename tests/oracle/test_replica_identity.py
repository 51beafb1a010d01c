"""The examples of PostgreSQL's documentation on replica identities, natively and through the bridge: equal at the end.

One subscription follows them all, with a table each, over several batches.
"""

from __future__ import annotations

import random

import psycopg
import pytest
from py4j.protocol import Py4JNetworkError

from pgbridge.bridge.runtime import faults
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

SETUP = """
    CREATE TABLE nothing (a text); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
    CREATE TABLE default_nokey (a text);
    CREATE TABLE default_key (a int PRIMARY KEY, b text, large text);
    ALTER TABLE default_key ALTER large SET STORAGE EXTERNAL;
    CREATE TABLE dropped_key (a text PRIMARY KEY); ALTER TABLE dropped_key DROP CONSTRAINT dropped_key_pkey;
    CREATE TABLE by_index (id int, a text NOT NULL UNIQUE);
    ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_a_key;
    CREATE TABLE dropped_index (a text NOT NULL);
    CREATE UNIQUE INDEX idx_dropped ON dropped_index (a);
    ALTER TABLE dropped_index REPLICA IDENTITY USING INDEX idx_dropped;
    DROP INDEX idx_dropped;
    CREATE TABLE delete_one (a text); ALTER TABLE delete_one REPLICA IDENTITY FULL;
    CREATE TABLE delete_both (a text); ALTER TABLE delete_both REPLICA IDENTITY FULL;
    CREATE TABLE update_one (a text); ALTER TABLE update_one REPLICA IDENTITY FULL;
    CREATE TABLE full_key (a int PRIMARY KEY, b text); ALTER TABLE full_key REPLICA IDENTITY FULL;
    CREATE TABLE full_types (
        i int, f float8, r real, n numeric(8, 2), free numeric, t text, raw bytea, d date, ts timestamptz, fs float8[],
        ts_ text[], j jsonb, flag boolean, large text
    );
    ALTER TABLE full_types ALTER large SET STORAGE EXTERNAL;
    ALTER TABLE full_types REPLICA IDENTITY FULL;
    CREATE TABLE bag (a int, b text); ALTER TABLE bag REPLICA IDENTITY FULL;
    CREATE PUBLICATION pub FOR ALL TABLES WITH (publish = insert);
    ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate');
    INSERT INTO delete_both VALUES ('a'), ('a'), (NULL), (NULL);
    INSERT INTO bag SELECT i % 4, CASE WHEN i % 3 > 0 THEN 'x' END FROM generate_series(1, 30) i;
    INSERT INTO default_key VALUES (1, 'x', repeat('large', 2000));
    INSERT INTO dropped_key VALUES ('before');
"""
TABLES = (
    "nothing", "default_nokey", "default_key", "dropped_key", "by_index", "dropped_index", "delete_one", "delete_both",
    "update_one", "full_key", "full_types", "bag",
)  # fmt: skip
WITHOUT_IDENTITY = ("nothing", "default_nokey", "dropped_key", "dropped_index")
STEPS = [
    """
    INSERT INTO nothing VALUES ('a'); INSERT INTO default_nokey VALUES ('a'), ('a');
    INSERT INTO dropped_index VALUES ('a');
    INSERT INTO dropped_key VALUES ('a');
    INSERT INTO delete_one VALUES ('a'); INSERT INTO delete_one VALUES ('a');
    INSERT INTO update_one VALUES ('a'); INSERT INTO update_one VALUES ('a');
    INSERT INTO by_index VALUES (1, 'a'), (2, 'b');
    INSERT INTO full_key VALUES (1, 'same'), (2, 'same'), (3, NULL);
    INSERT INTO full_types
    SELECT 1, 'nan', -1.5, 1.5, '1.50', '', '\\x', 'epoch', 'epoch', '{NaN,0,NULL}', '{"a,b",NULL}', '{"k": [1]}', true,
        repeat('large', 2000)
    FROM generate_series(1, 3);
    INSERT INTO full_types DEFAULT VALUES;
    INSERT INTO full_types DEFAULT VALUES;
    """,
    """
    DELETE FROM delete_one WHERE ctid = (SELECT min(ctid) FROM delete_one);
    DELETE FROM delete_both;
    UPDATE update_one SET a = 'b' WHERE ctid = (SELECT min(ctid) FROM update_one);
    UPDATE by_index SET a = 'c' WHERE a = 'a'; UPDATE by_index SET id = 20 WHERE a = 'b';
    UPDATE full_key SET b = 'other' WHERE a = 1; UPDATE full_key SET a = 30 WHERE a = 3;
    DELETE FROM full_key WHERE a = 2;
    UPDATE full_types SET i = 2 WHERE ctid = (SELECT min(ctid) FROM full_types WHERE i = 1);
    DELETE FROM full_types WHERE ctid = (SELECT min(ctid) FROM full_types WHERE i = 1);
    DELETE FROM full_types WHERE ctid = (SELECT min(ctid) FROM full_types WHERE i IS NULL);
    UPDATE default_key SET a = 2; UPDATE default_key SET b = 'y';
    """,
    """
    BEGIN;
    INSERT INTO delete_both VALUES ('gone'), ('gone');
    TRUNCATE delete_both, update_one;
    INSERT INTO delete_both VALUES ('a'), ('a'), ('b');
    DELETE FROM delete_both WHERE ctid = (SELECT min(ctid) FROM delete_both);
    UPDATE delete_both SET a = NULL WHERE a = 'b';
    COMMIT;
    UPDATE full_types SET f = 0, fs = NULL WHERE i = 2; UPDATE full_types SET t = 'b' WHERE i = 2;
    """,
]


def random_changes(publisher, rng, number):
    """Changes of single rows of the bag, some of equal ones, by their places."""
    for _ in range(number):
        rows = publisher.query("SELECT ctid::text FROM bag")
        place = rng.choice(rows)[0] if rows else "(0,0)"
        a, b = rng.choice([None, 0, 1, 2]), rng.choice([None, "x", "y"])
        kind = rng.random()
        if kind < 0.35:
            publisher.execute("INSERT INTO bag VALUES (%s, %s)", (a, b))
        elif kind < 0.7:
            publisher.execute("UPDATE bag SET a = %s, b = %s WHERE ctid = %s::tid", (a, b, place))
        else:
            publisher.execute("DELETE FROM bag WHERE ctid = %s::tid", (place,))


def test_every_identity_as_the_native_subscriber(spark, publisher, pipeline):
    publisher.execute(SETUP)
    rng = random.Random(20261121)
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        bridge = pipeline()
        bridge.catch_up()
        for number, step in enumerate(STEPS):
            publisher.execute(step)
            random_changes(publisher, rng, 40)
            if number:  # the first two are one batch
                bridge.catch_up()
        native.wait_caught_up()
        for table in TABLES:
            assert differences(spark, bridge.path(table), native, table) == [], table
        assert native.query("SELECT count(*) FROM delete_one") == [(1,)]


def test_a_column_list_that_cuts_the_identity_leaves_no_key(spark, publisher, pipeline):
    """INSERTs alone are published: rows that have the same part of a key are different rows, also without a copy.

    Of `later` the list comes while the subscription runs. A key that is overwritten by would show here, too.
    """
    publisher.execute("""
        CREATE TABLE by_key (a int, b int, c text, PRIMARY KEY (a, b));
        CREATE TABLE by_index (a int NOT NULL, b int NOT NULL, c text, UNIQUE (a, b));
        ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_a_b_key;
        CREATE TABLE whole (a int, b int, c text, PRIMARY KEY (a, b)); ALTER TABLE whole REPLICA IDENTITY FULL;
        CREATE TABLE later (a int, b int, c text, PRIMARY KEY (a, b));
        CREATE PUBLICATION pub FOR TABLE by_key (a, c), by_index (a, c), whole (a, c), later WITH (publish = 'insert');
    """)
    tables = ("by_key", "by_index", "whole", "later")
    schema = "".join(f"CREATE TABLE {table} (a int, b int, c text);" for table in tables)
    rows = "".join(f"INSERT INTO {table} VALUES ({{0}}, 1, 'x'), ({{0}}, 2, 'x');" for table in tables)
    publisher.execute(rows.format(1))
    with NativeSubscriber(publisher.conninfo, ["pub"], schema=schema) as native:
        bridge = pipeline(conflict="apply_remote")
        bridge.catch_up()
        publisher.execute(rows.format(2))
        publisher.execute("ALTER PUBLICATION pub SET TABLE by_key (a, c), by_index (a, c), whole (a, c), later (a, c)")
        publisher.execute(rows.format(3))
        publisher.execute("INSERT INTO by_key VALUES (1, 3, 'again'), (3, 3, 'again')")
        bridge.catch_up()
        native.wait_caught_up()
        for table in tables:
            assert differences(spark, bridge.path(table), native, table) == [], table


PARTS = """
    CREATE TABLE identity (a int NOT NULL UNIQUE, b int NOT NULL UNIQUE, c text);
    ALTER TABLE identity REPLICA IDENTITY FULL; ALTER TABLE identity ALTER c SET STORAGE EXTERNAL;
    CREATE TABLE bag (a int, b text, c text); ALTER TABLE bag REPLICA IDENTITY FULL;
    CREATE TABLE other (a int PRIMARY KEY);
    CREATE TABLE root (a int PRIMARY KEY, b text, large text) PARTITION BY RANGE (a);
    ALTER TABLE root REPLICA IDENTITY FULL;
    CREATE TABLE leaf PARTITION OF root DEFAULT; ALTER TABLE leaf ALTER large SET STORAGE EXTERNAL;
    CREATE PUBLICATION pub FOR TABLE identity, bag, other, root WITH (publish_via_partition_root);
    INSERT INTO root VALUES (1, 'b', repeat('large', 1000)), (2, 'b', repeat('large', 1000)), (3, 'b', NULL);
    INSERT INTO identity SELECT i, -i, repeat('large', 1000) FROM generate_series(1, 9) i;
    INSERT INTO bag SELECT i % 3, 'b' || i % 2, 'kept ' || i % 3 FROM generate_series(1, 12) i;
"""
CHANGING = """
    BEGIN;
    INSERT INTO other VALUES (1);
    UPDATE identity SET b = -100 WHERE a = 1; DELETE FROM identity WHERE a = 2;
    ALTER TABLE identity REPLICA IDENTITY USING INDEX identity_b_key;
    UPDATE identity SET b = -200 WHERE b = -100; UPDATE identity SET a = 30 WHERE b = -3;
    INSERT INTO identity VALUES (2, -2);
    UPDATE identity SET a = 40 WHERE a = 4; DELETE FROM identity WHERE a = 30; UPDATE identity SET c = 'x' WHERE a = 2;
    ALTER TABLE identity REPLICA IDENTITY FULL;
    UPDATE identity SET c = NULL WHERE a = 5;
    UPDATE bag SET a = 10 WHERE a = 1; DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 0);
    ALTER TABLE bag DROP COLUMN c;
    UPDATE bag SET b = 'x' WHERE a = 10; INSERT INTO bag VALUES (1, 'new');
    ALTER TABLE bag ADD COLUMN d int DEFAULT 7;
    UPDATE bag SET a = 20 WHERE a = 2 AND b = 'b0'; DELETE FROM bag WHERE b = 'new'; INSERT INTO bag VALUES (5, 'y', 8);
    COMMIT
"""


@pytest.mark.soak  # a minute; `tests.bridge.apply.test_applier` has parts that are applied or not at all
def test_rows_that_are_found_by_other_columns_within_a_transaction(spark, publisher, pipeline):
    """The identity becomes another, a table without a key gets other columns: a commit for each part, and all or none.

    Cut short between two parts it is taken back, and applied again. What a dropped column held stays with its row; so
    does an unchanged TOAST value of a partition whose root alone has REPLICA IDENTITY FULL.
    """
    publisher.execute(PARTS)
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        bridge = pipeline()
        bridge.catch_up()
        native.wait_caught_up()
        native.execute("ALTER TABLE bag ADD COLUMN d int DEFAULT 7")
        # without an index of its own it takes no changes but under FULL
        native.execute("ALTER TABLE identity REPLICA IDENTITY USING INDEX identity_b_key")
        publisher.execute(CHANGING)
        # the leaf has its key as identity, which comes as the root's whole row
        publisher.execute(
            "UPDATE root SET a = 10 WHERE a = 1; UPDATE root SET b = 'new'; UPDATE root SET a = 20 WHERE a = 2"
        )
        points = []

        def fail(point):
            points.append(point)
            if point == "table_committed" and points.count(point) == 4:
                raise Py4JNetworkError("no answer")

        faults.install(fail)
        try:
            bridge.catch_up()
        finally:
            faults.install(lambda _: None)
        assert points.count("table_restored") >= 1, points
        native.wait_caught_up()
        for table in ("identity", "other", "root"):
            assert differences(spark, bridge.path(table), native, table) == [], table
        # the native subscriber holds the dropped column against the old tuple, too, and finds none of its rows
        assert differences(spark, bridge.path("bag"), publisher, "bag", ["a", "b", "d"]) == []
        publisher.execute("UPDATE bag SET b = 'after'; DELETE FROM bag WHERE a = 0")
        bridge.catch_up()
        assert differences(spark, bridge.path("bag"), publisher, "bag", ["a", "b", "d"]) == []
        kept = {(row["a"], row["c"]) for row in bridge.rows("bag")}
        assert kept == {(10, "kept 1"), (2, "kept 2"), (20, "kept 2"), (5, None)}


def test_what_the_publisher_refuses(publisher):
    """Publishing a table without an identity is allowed; updating it is not, and so nothing of it ever comes."""
    publisher.execute(SETUP)
    for table in WITHOUT_IDENTITY:
        publisher.execute(f"INSERT INTO {table} VALUES ('a')")
        for statement, verb in ((f"UPDATE {table} SET a = 'b'", "update"), (f"DELETE FROM {table}", "delete from")):
            refusal = f'cannot {verb} table "{table}" because it does not have a replica identity and publishes'
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=refusal):
                publisher.execute(statement)
    publisher.execute("CREATE INDEX not_unique ON nothing (a)")
    with pytest.raises(psycopg.errors.WrongObjectType, match='cannot use non-unique index "not_unique"'):
        publisher.execute("ALTER TABLE nothing REPLICA IDENTITY USING INDEX not_unique")

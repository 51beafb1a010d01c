"""What a subscription's stream may have: values in text form, unchanged TOAST, TRUNCATE, keys that change places."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.bridge.subscribed import SETUP, ids
from tests.oracle.delta import differences


def test_origin_none_leaves_out_what_came_from_elsewhere(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(origin="none")
    bridge.catch_up()
    publisher.query("SELECT pg_replication_origin_create('elsewhere_' || current_database())")
    try:
        with publisher.connect() as connection:
            connection.execute("SELECT pg_replication_origin_session_setup('elsewhere_' || current_database())")
            connection.execute("INSERT INTO t VALUES (1, 'from elsewhere')")
        publisher.execute("INSERT INTO t VALUES (2, 'from here')")
        bridge.catch_up()
        assert ids(bridge) == [2]
    finally:
        publisher.query("SELECT pg_replication_origin_drop('elsewhere_' || current_database())")


def test_values_that_have_no_binary_reader_make_the_stream_textual(publisher, memory_pipeline):
    publisher.execute(
        "CREATE TYPE pair AS (a int, b text); CREATE TABLE t (id int PRIMARY KEY, p pair, at point, m money);"
        "INSERT INTO t VALUES (1, '(1,x)', '(1,2)', 5); CREATE PUBLICATION pub FOR TABLE t"
    )
    bridge = memory_pipeline(binary=True)
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (2, '(2,\"y z\")', '(3,4.5)', -1.5)")
    bridge.catch_up()
    texts = publisher.query("SELECT id, p::text, at::text, m::text FROM t ORDER BY id")
    assert sorted(tuple(row.values()) for row in bridge.rows("t")) == texts


def test_a_row_that_leaves_the_servers_row_filter_and_comes_back_within_a_batch(publisher, memory_pipeline):
    """Its unchanged TOAST value is not sent: PostgreSQL's subscriber stores NULL, in one batch or in two."""
    publisher.execute(
        "CREATE TABLE t (id int, flag int, body text, PRIMARY KEY (id, flag)); ALTER TABLE t ALTER body SET STORAGE "
        "EXTERNAL; INSERT INTO t VALUES (7, 1, repeat('A', 3000)); CREATE PUBLICATION pub FOR TABLE t WHERE (flag = 1)"
    )
    bridge = memory_pipeline()
    bridge.catch_up()
    publisher.execute(
        "UPDATE t SET flag = 0 WHERE id = 7; UPDATE t SET body = repeat('B', 3000) WHERE id = 7;"
        "UPDATE t SET flag = 1 WHERE id = 7"
    )
    with capture_logs() as events:
        bridge.catch_up()
    assert bridge.rows("t") == [{"id": 7, "flag": 1, "body": None}]
    assert [event["rows"] for event in events if "unchanged TOAST values" in event["event"]] == [1]


BEFORE = """
CREATE TABLE toast (id int PRIMARY KEY, value text, n int); ALTER TABLE toast ALTER value SET STORAGE EXTERNAL;
INSERT INTO toast SELECT g, repeat(g::text, 3000), 0 FROM generate_series(1, 4) g;
CREATE TABLE truncated (id int PRIMARY KEY, note text); INSERT INTO truncated VALUES (1, 'copied');
CREATE TABLE swapped (id int PRIMARY KEY, note text); INSERT INTO swapped VALUES (1, 'one'), (2, 'two');
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, note text, at int UNIQUE NOT NULL);
ALTER TABLE deferred REPLICA IDENTITY FULL; INSERT INTO deferred VALUES (1, 'one', 1), (2, 'two', 2);
CREATE PUBLICATION pub FOR ALL TABLES
"""
"""A deferrable key is none: within a transaction two rows may have the same value of it, and would be mixed up."""

AFTER = (
    # an unchanged TOAST value is kept by updates, by key changes, and from earlier changes of the batch
    "UPDATE toast SET n = 1 WHERE id = 1",
    "UPDATE toast SET id = 20, n = 2 WHERE id = 2",
    "INSERT INTO toast VALUES (2, repeat('new', 2000), 3), (5, repeat('five', 2000), 0)",
    "UPDATE toast SET n = 4 WHERE id IN (2, 5)",
    "UPDATE toast SET id = 50 WHERE id = 5",
    "INSERT INTO truncated VALUES (2, 'before'); TRUNCATE truncated; INSERT INTO truncated VALUES (1, 'after')",
    "UPDATE swapped SET id = -id; UPDATE swapped SET id = id + 3",
    "UPDATE deferred SET id = 3 - id",
)
"""Transactions, one after the other."""


def test_tables_are_as_the_publishers(spark, publisher, pipeline):
    """Unchanged TOAST, TRUNCATE in the middle, keys that trade places: tables of one subscription, in one batch."""
    publisher.execute(BEFORE)
    bridge = pipeline()
    bridge.catch_up()
    for transaction in AFTER:
        publisher.execute(transaction)
    bridge.catch_up()
    for table in ("toast", "truncated", "swapped", "deferred"):
        assert differences(spark, bridge.path(table), publisher, table) == [], table


BROKEN_OFF = """
BEGIN;
INSERT INTO t SELECT n, 'a' FROM generate_series(1, 3) AS n;
CREATE TABLE made (id int PRIMARY KEY, a text);
SAVEPOINT s;
ALTER TABLE made ADD c int DEFAULT 1;
ROLLBACK TO s;
INSERT INTO made SELECT n, 'x' FROM generate_series(1, 3) AS n;
ALTER TABLE made ALTER id TYPE bigint;
INSERT INTO t SELECT n, 'b' FROM generate_series(4, 6) AS n;
COMMIT
"""
"""What a walsender that streams it ends with "could not map filenumber … to relation OID" (seen with 18.6)."""


def test_a_transaction_that_the_server_cannot_stream(publisher, memory_pipeline):
    """It breaks the stream off; the next one begins further on, or without streaming, and the transaction is whole."""
    publisher.stream_everything()
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION pub FOR ALL TABLES")
    bridge = memory_pipeline(streaming="on", workers__retry_max_s=1)
    bridge.catch_up()
    publisher.execute(BROKEN_OFF)
    publisher.execute("INSERT INTO t VALUES (7, 'after')")
    with capture_logs() as events:
        bridge.catch_up()
    # a later minor release may stream it
    failed = [event["error"] for event in events if event["event"] == "subscription failed"]
    assert all("could not map filenumber" in error for error in failed)
    assert ids(bridge) == [1, 2, 3, 4, 5, 6, 7]

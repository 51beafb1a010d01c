"""A target changed by hand, natively and through the bridge: what stops, stops; what is missing is passed over."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.targets.location import quoted
from tests.bridge.subscribed import wait_until
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

SETUP = """
    CREATE TABLE t (id int PRIMARY KEY, v text);
    CREATE TABLE bag (v text); ALTER TABLE bag REPLICA IDENTITY FULL;
    INSERT INTO t SELECT i, 'first' FROM generate_series(1, 9) i;
    INSERT INTO bag VALUES ('a'), ('a'), ('b');
    CREATE PUBLICATION pub FOR TABLE t, bag;
"""


@pytest.fixture
def both(spark, publisher, pipeline):
    """The native subscriber, the bridge, and how to change the targets of both by hand."""
    publisher.execute(SETUP)
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        bridge = pipeline(target__conflict_log_destination="all")
        bridge.catch_up()
        native.wait_caught_up()

        def by_hand(statement, table):
            native.execute(statement.format(table))
            spark.sql(statement.format(f"delta.{quoted(bridge.path(table))}")).collect()

        yield native, bridge, by_hand


def assert_equal(spark, bridge, native):
    for table in ("t", "bag"):
        assert differences(spark, bridge.path(table), native, table) == []


def conflicts(spark, bridge):
    """What the table of conflicts has."""
    path = f"{bridge.subscription.warehouse}/pgbridge/conflicts"
    return spark.read.format("delta").load(path).orderBy("position", "relation", "conflict_type", "key").collect()


def changes_of(rows):
    """How many changes were in conflict, by PostgreSQL's kind."""
    changes: Counter[str] = Counter()
    for row in rows:
        changes[row.conflict_type] += row.changes
    return changes


def native_conflicts(native, kinds):
    """The native subscription's own counters."""
    columns = ", ".join(f"confl_{kind}" for kind in kinds)
    (counts,) = native.query(f"SELECT {columns} FROM pg_stat_subscription_stats WHERE subname = %s", (native.name,))
    return dict(zip(kinds, counts, strict=True))


def test_missing_rows_are_passed_over(spark, publisher, both):
    """Also what comes of them: the new key of a missing row's key change, and the changes after it."""
    native, bridge, by_hand = both
    by_hand("DELETE FROM {} WHERE id IN (1, 2, 3, 4, 5)", "t")
    by_hand("DELETE FROM {} WHERE v = 'a'", "bag")
    publisher.execute("""
        UPDATE t SET v = 'missing' WHERE id = 1; DELETE FROM t WHERE id = 2;
        UPDATE t SET id = 30 WHERE id = 3; UPDATE t SET v = 'at a key that never came' WHERE id = 30;
        DELETE FROM t WHERE id = 4; INSERT INTO t VALUES (4, 'again');
        UPDATE t SET id = 60, v = 'moved' WHERE id = 6;
        UPDATE bag SET v = 'c' WHERE v = 'a'; UPDATE bag SET v = 'd' WHERE v = 'c';
        UPDATE bag SET v = 'e' WHERE v = 'b';
        INSERT INTO bag VALUES ('d'); DELETE FROM bag WHERE v = 'd';
    """)
    bridge.catch_up()
    native.wait_caught_up()
    assert_equal(spark, bridge, native)
    assert native.query("SELECT id FROM t ORDER BY id") == [(4,), (7,), (8,), (9,), (60,)]
    rows = conflicts(spark, bridge)
    kinds = ("update_missing", "delete_missing")
    wait_until(lambda: native_conflicts(native, kinds) == changes_of(rows))
    of_t = {(row.conflict_type, row.key) for row in rows if row.relation == "public.t"}
    assert ("update_missing", '{"id": "1"}') in of_t
    assert ("delete_missing", '{"id": "2"}') in of_t
    assert {row.existing_row for row in rows} == {None}
    assert {(row.stopped, row.subscription) for row in rows} == {(False, bridge.subscription.name)}


@pytest.mark.parametrize(
    ("statements", "name"),
    [
        ("INSERT INTO t VALUES (10, 'remote'), (11, 'remote')", "insert_exists"),
        pytest.param(
            "BEGIN; UPDATE t SET v = 'second' WHERE id = 1; UPDATE t SET id = 10 WHERE id = 2; COMMIT",
            "update_exists",
            marks=pytest.mark.soak,  # `test_apply_table_one_by_one` has it
        ),
    ],
)
def test_a_row_in_the_way_stops_both_until_it_is_removed(spark, publisher, both, statements, name):
    native, bridge, by_hand = both
    by_hand("INSERT INTO {} VALUES (10, 'local')", "t")
    publisher.execute(statements)
    with pytest.raises(ApplyError) as caught:
        bridge.catch_up()
    assert str(caught.value).startswith(
        f'conflict detected on relation "public.t": conflict={name}\n'
        "DETAIL:  Key already exists in the target: key (id)=(10); existing local row (10, local); "
        f"remote row (10, {'remote' if name == 'insert_exists' else 'first'}).\n"
        'CONTEXT:  processing remote data for replication origin "pgbridge_'
    )
    deadline = time.monotonic() + 30
    errors = "SELECT apply_error_count > 0 FROM pg_stat_subscription_stats WHERE subname = %s"
    while native.query(errors, (native.name,)) != [(True,)]:
        assert time.monotonic() < deadline, "the native subscription does not stop"
        time.sleep(0.05)
    for _ in range(2):  # tried again, it is the same conflict
        (row,) = conflicts(spark, bridge)
        assert (row.conflict_type, row.key, row.stopped, row.changes) == (name, '{"id": "10"}', True, 1)
        assert (row.existing_row, row.remote_xid is None) == ("(10, local)", False)
        assert row.finish_lsn in str(caught.value)
        with pytest.raises(ApplyError):
            bridge.catch_up()
    by_hand("DELETE FROM {} WHERE id = 10", "t")
    bridge.catch_up()
    native.wait_caught_up()
    assert_equal(spark, bridge, native)


def test_a_row_in_the_way_is_overwritten_on_request(publisher, pipeline, spark):
    publisher.execute(SETUP)
    bridge = pipeline(conflict="apply_remote", target__conflict_log_destination="table")
    bridge.catch_up()
    spark.sql(f"INSERT INTO delta.{quoted(bridge.path('t'))} VALUES (10, 'local'), (11, 'local')").collect()
    publisher.execute(
        "INSERT INTO t VALUES (10, 'remote'); UPDATE t SET id = 11 WHERE id = 1; DELETE FROM t WHERE id < 10"
    )
    bridge.catch_up()
    assert sorted((row["id"], row["v"]) for row in bridge.rows("t")) == [(10, "remote"), (11, "first")]
    rows = [(row.conflict_type, row.key, row.stopped) for row in conflicts(spark, bridge)]
    assert rows == [("insert_exists", '{"id": "10"}', False), ("update_exists", '{"id": "11"}', False)]

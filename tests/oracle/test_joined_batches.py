"""Batches of a few rows that join to one: the tables equal a native subscriber's, and a conflict names its transaction.

A stream that is far behind has batches of many runs. Here a run is a few rows, so a few hundred rows do the same.
"""

from __future__ import annotations

import pytest

from pgbridge.bridge.apply import next_batch
from pgbridge.bridge.batch.growing_batch import GrowingBatch
from pgbridge.bridge.runtime.errors import ApplyError
from pgbridge.bridge.targets.location import quoted
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber
from tests.oracle.workload import TABLES, Workload

SEED = 20261123


@pytest.fixture
def joins(monkeypatch):
    """Runs of ten rows; returns a list with the outcome of each attempt to join."""
    monkeypatch.setattr(next_batch, "_RUN_ROWS", 10)
    outcomes: list[bool] = []
    join = GrowingBatch.join

    def watched(self, batch):
        outcomes.append(join(self, batch))
        return outcomes[-1]

    monkeypatch.setattr(GrowingBatch, "join", watched)
    return outcomes


@pytest.mark.soak  # a minute; other random workloads join batches, too, and the tests below have a case each
def test_random_workload(spark, publisher, pipeline, joins):
    """Key changes, large values, TRUNCATE, tables without a key, changes of columns: most runs join, some must not."""
    with Workload(publisher.conninfo, SEED) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(40)
        with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
            bridge = pipeline()
            bridge.catch_up()
            workload.step(60)
            bridge.catch_up()
            native.wait_caught_up()
            for table in TABLES:
                assert differences(spark, bridge.path(table), native, table) == []
    assert sum(joins) > 5


SETUP = """
    CREATE TABLE t (id int PRIMARY KEY, v text);
    INSERT INTO t SELECT i, 'first' FROM generate_series(1, 100) i;
    CREATE PUBLICATION pub FOR TABLE t;
"""


@pytest.mark.soak  # 30 s; `test_conflicts` has a row in the way, and `test_apply_table_one_by_one` joined batches
@pytest.mark.parametrize(
    ("way", "at_fault"),
    [
        ("INSERT INTO {} VALUES (500, 'in the way')", "INSERT INTO t VALUES (500, 'remote')"),
        ("DELETE FROM {} WHERE id = 7", "UPDATE t SET id = 700 WHERE id = 7"),
    ],
    ids=["a row in the way", "a missing row that moves"],
)
def test_a_target_that_was_changed_by_hand(spark, publisher, pipeline, joins, way, at_fault):
    """What the joined batch cannot settle is settled in parts; what stops a native subscriber stops the bridge."""
    publisher.execute(SETUP)
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        bridge = pipeline()
        bridge.catch_up()
        native.wait_caught_up()
        native.execute(way.format("t"))
        spark.sql(way.format(f"delta.{quoted(bridge.path('t'))}")).collect()
        with publisher.connect() as connection:
            for number in range(60):
                connection.execute("UPDATE t SET v = %s WHERE id = %s", (str(number), number + 10))
                if number == 40:
                    connection.execute(at_fault.encode())
                if number == 50:
                    connection.execute("UPDATE t SET v = 'moved' WHERE id = 700")
        joins.clear()
        if "500" in at_fault:
            with pytest.raises(ApplyError, match="insert_exists") as caught:
                bridge.catch_up()
            assert caught.value.context.command == "INSERT"
            rows = {row["id"]: row["v"] for row in bridge.rows("t")}
            assert (rows[50], rows[51], rows[500]) == ("40", "first", "in the way")
            spark.sql(f"DELETE FROM delta.{quoted(bridge.path('t'))} WHERE id = 500").collect()
            native.execute("DELETE FROM t WHERE id = 500")
        bridge.catch_up()
        assert any(joins)
        native.wait_caught_up()
        assert differences(spark, bridge.path("t"), native, "t") == []


def test_rows_that_move_from_key_to_key(spark, publisher, pipeline, joins):
    """Their large values stay, and so do the values of a column that only the subscriber has."""
    publisher.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, v text, large text);
        ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
        INSERT INTO t SELECT i, 'first', repeat(i::text, 3000) FROM generate_series(1, 60) i;
        CREATE PUBLICATION pub FOR TABLE t;
        """
    )
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        bridge = pipeline()
        bridge.catch_up()
        native.wait_caught_up()
        mine = f"delta.{quoted(bridge.path('t'))}"
        native.execute("ALTER TABLE t ADD own int; UPDATE t SET own = id; DELETE FROM t WHERE id = 60")
        spark.sql(f"ALTER TABLE {mine} ADD COLUMN (own int)").collect()
        spark.sql(f"UPDATE {mine} SET own = id").collect()
        spark.sql(f"DELETE FROM {mine} WHERE id = 60").collect()
        with publisher.connect() as connection:
            for number in range(1, 41):
                connection.execute("UPDATE t SET id = id + 1000, v = 'moved' WHERE id = %s", (number,))
                connection.execute("UPDATE t SET v = v || ' on' WHERE id = %s", (1000 + number,))
                if number % 3 == 0:  # the key that was left is taken
                    connection.execute("INSERT INTO t VALUES (%s, 'new', 'small')", (number,))
                if number % 5 == 0:  # and comes back, where it is free
                    connection.execute("DELETE FROM t WHERE id = %s", (number,))
                    connection.execute("UPDATE t SET id = id - 1000 WHERE id = %s", (1000 + number,))
            with connection.transaction():  # two rows change places
                connection.execute("UPDATE t SET id = 0 WHERE id = 50")
                connection.execute("UPDATE t SET id = 50 WHERE id = 51")
                connection.execute("UPDATE t SET id = 51 WHERE id = 0")
            connection.execute("UPDATE t SET id = 70 WHERE id = 60")  # the subscribers do not have it
            connection.execute("UPDATE t SET id = 60, v = 'later' WHERE id = 59")
        joins.clear()
        bridge.catch_up()
        assert sum(joins) > 5
        native.wait_caught_up()
        rows = {row["id"]: row for row in bridge.rows("t")}
        theirs = native.query("SELECT id, v, large, own FROM t ORDER BY id")
        assert [tuple(rows[key][name] for name in ("id", "v", "large", "own")) for key in sorted(rows)] == theirs
        moved = rows[1001]
        assert (moved["v"], moved["large"], moved["own"]) == ("moved on", "1" * 3000, 1)
        assert (rows[51]["own"], rows[60]["own"], 70 in rows) == (50, 59, False)

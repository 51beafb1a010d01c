"""`pgbridge.Subscription`: what a handler gets, and that what it writes is there exactly once, whatever happens."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest

import pgbridge
from pgbridge import ApplyError, ConfigError, SkipError, StateError, Subscription
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.skipped.kept_transaction import FILE
from tests.bridge.apply.made_batches import Cut, failing
from tests.bridge.configurations import placed
from tests.bridge.subscribed import wait_until

SETUP = (
    "CREATE TABLE t (id int PRIMARY KEY, note text); CREATE TABLE log (line text);"
    "ALTER TABLE log REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR TABLE t, log"
)


@pytest.fixture
def subscription(publisher, tmp_path):
    """Makes the test's subscription, as one program after the other would."""

    def make(**options: Any) -> Subscription:
        given = {"publications": ["pub"], "copy_data": False, "batch__max_age_s": 0.0, **options}
        return Subscription(
            name=publisher.name, connection=publisher.conninfo, state_dir=tmp_path / "state", **placed(given)
        )

    return make


class Into:
    """A handler that appends each table's changes to a Delta table, exactly once."""

    def __init__(self, folder):
        self.folder = folder
        self.batches: list[pgbridge.ChangeBatch] = []
        self.refused: int | None = None  # an id that it does not take
        self.after = ""  # fails after it has written this table

    def __call__(self, batch):
        self.batches.append(batch)
        for name, changes in sorted(batch.tables.items()):
            if self.refused is not None and name == "public.t" and changes.filter(f"new.id = {self.refused}").count():
                raise ValueError(f"id {self.refused} is not taken")
            path = f"{self.folder}/{name}"
            changes.write.format("delta").mode("append").options(**batch.delta_options).save(path)
            if name == self.after:
                raise OSError("the disk is full")


@pytest.fixture
def into(tmp_path):
    return Into(tmp_path / "out")


def rows(spark, into, table, *columns):
    frame = spark.read.format("delta").load(f"{into.folder}/public.{table}").orderBy("commit_lsn", "ordinal")
    found = frame.selectExpr(*(f"{column} AS c{i}" for i, column in enumerate(columns))).toArrow().to_pylist()
    return [tuple(row.values()) for row in found]


def test_every_change_in_order_with_both_images(publisher, subscription, spark, into):
    publisher.execute(SETUP)
    subscription().for_each_batch(into, spark=spark, until_caught_up=True)
    assert into.batches == []
    publisher.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'); INSERT INTO log VALUES ('x')")
    publisher.execute(
        "BEGIN; UPDATE t SET note = 'c' WHERE id = 1; UPDATE log SET line = 'y'; UPDATE t SET id = 3 WHERE id = 2;"
        "TRUNCATE t, log; INSERT INTO t VALUES (9, NULL); DELETE FROM t WHERE id = 9; COMMIT"
    )
    subscription().for_each_batch(into, spark=spark, until_caught_up=True)
    columns = ("operation", "ordinal", "old.id", "old.note", "new.id", "new.note")
    assert rows(spark, into, "t", *columns) == [
        ("INSERT", 0, None, None, 1, "a"),
        ("INSERT", 1, None, None, 2, "b"),
        ("UPDATE", 0, None, None, 1, "c"),
        ("UPDATE", 2, 2, None, 3, "b"),
        ("TRUNCATE", 3, None, None, None, None),
        ("INSERT", 5, None, None, 9, None),
        ("DELETE", 6, 9, None, None, None),
    ]
    assert rows(spark, into, "log", "operation", "ordinal", "old.line", "new.line") == [
        ("INSERT", 2, None, "x"),
        ("UPDATE", 1, "x", "y"),
        ("TRUNCATE", 4, None, None),
    ]
    frame = spark.read.format("delta").load(f"{into.folder}/public.t")
    assert frame.filter("origin IS NOT NULL OR unchanged IS NOT NULL").count() == 0
    assert frame.select("commit_lsn", "xid", "commit_time").distinct().count() == 2
    ages = frame.selectExpr("max(abs(timestampdiff(SECOND, commit_time, now())))").first()
    assert ages[0] < 600
    batch = into.batches[-1]
    assert frame.selectExpr("max(commit_lsn)").first()[0] < batch.end_lsn == batch.version
    assert batch.start_lsn < frame.selectExpr("min(commit_lsn)").first()[0] or len(into.batches) > 1
    assert subscription().remote_lsn >= batch.end_lsn


def test_unchanged_toast_and_a_renamed_table_and_a_new_column(publisher, subscription, spark, into):
    """Values that are not sent are named; the handler follows the publisher's names and columns at once."""
    publisher.execute(SETUP + "; ALTER TABLE t ALTER note SET STORAGE EXTERNAL")
    subscription().for_each_batch(into, spark=spark, until_caught_up=True)
    publisher.execute("INSERT INTO t VALUES (1, repeat('x', 10000)), (2, 'b')")
    publisher.execute("UPDATE t SET id = id + 10")
    publisher.execute("ALTER TABLE t RENAME TO u")
    publisher.execute("ALTER TABLE u ADD n bigint DEFAULT 7")
    publisher.execute("INSERT INTO u VALUES (5, 'e')")
    subscription().for_each_batch(into, spark=spark, until_caught_up=True)
    assert rows(spark, into, "t", "new.id", "length(new.note)", "unchanged")[2:] == [
        (11, None, ["note"]),
        (12, 1, None),
    ]
    assert rows(spark, into, "u", "operation", "new.id", "new.note", "new.n") == [("INSERT", 5, "e", 7)]


def test_filters_lists_and_roots_come_before(publisher, subscription, spark, into, tmp_path):
    """The four cases of an UPDATE; a partition's changes are its root's."""
    publisher.execute(
        "CREATE TABLE p (id int, a int, secret text, PRIMARY KEY (id, a)) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);"
        "CREATE PUBLICATION pub FOR TABLE p"
    )
    (tmp_path / "publications.sql").write_text(
        "CREATE PUBLICATION pub FOR TABLE p (id, a) WHERE (a > 10) WITH (publish_via_partition_root = true);"
    )
    made = subscription(publication_definitions=str(tmp_path / "publications.sql"))
    made.for_each_batch(into, spark=spark, until_caught_up=True)
    publisher.execute("INSERT INTO p VALUES (1, 1, 's'), (2, 20, 's')")
    publisher.execute("UPDATE p SET a = 11 WHERE id = 1")
    publisher.execute("UPDATE p SET a = 2 WHERE id = 2")
    publisher.execute("UPDATE p SET a = 12 WHERE id = 1")
    publisher.execute("UPDATE p SET a = 3 WHERE id = 2")
    publisher.execute("TRUNCATE p")
    made.for_each_batch(into, spark=spark, until_caught_up=True)
    assert rows(spark, into, "p", "operation", "old", "new", "ordinal") == [
        ("INSERT", None, {"id": 2, "a": 20}, 1),
        ("INSERT", None, {"id": 1, "a": 11}, 0),
        ("DELETE", {"id": 2, "a": 20}, None, 0),
        ("UPDATE", {"id": 1, "a": 11}, {"id": 1, "a": 12}, 0),
        ("TRUNCATE", None, None, 0),
    ]


@pytest.mark.parametrize("streaming", [pytest.param("off", marks=pytest.mark.soak), "on"])
def test_a_transaction_beyond_memory(publisher, subscription, spark, into, streaming):
    """It comes in parts, with savepoints rolled back; the handler has it as one batch, and the numbers go on."""
    publisher.execute(SETUP)
    made = subscription(streaming=streaming, batch__max_bytes=200_000)
    made.for_each_batch(into, spark=spark, until_caught_up=True)
    insert = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({}, {}) g;"
    publisher.execute(
        f"BEGIN; SET LOCAL logical_decoding_work_mem = '64kB'; {insert.format(1, 3000)} SAVEPOINT a;"
        f"{insert.format(3001, 4000)} ROLLBACK TO a; TRUNCATE log; {insert.format(4001, 6000)} COMMIT"
    )
    made.for_each_batch(into, spark=spark, until_caught_up=True)
    found = rows(spark, into, "t", "commit_lsn", "ordinal", "new.id")
    assert [ordinal for _, ordinal, _ in found] == [*range(3000), *range(3001, 5001)]
    assert [key for _, _, key in found] == [*range(1, 3001), *range(4001, 6001)]
    assert rows(spark, into, "log", "operation", "ordinal") == [("TRUNCATE", 3000)]
    assert len({lsn for lsn, _, _ in found}) == 1


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("batch_begun", marks=pytest.mark.soak),
        "batch_committed",
        pytest.param("before_confirm", marks=pytest.mark.soak),
    ],
)
def test_killed_at(publisher, subscription, spark, into, point):
    publisher.execute(SETUP)
    subscription().for_each_batch(into, spark=spark, until_caught_up=True)
    publisher.execute("INSERT INTO t VALUES (1, 'a')")
    publisher.execute("INSERT INTO log VALUES ('x')")
    with failing(Cut(), point), pytest.raises(Cut):
        subscription().for_each_batch(into, spark=spark, until_caught_up=True)
    publisher.execute("INSERT INTO t VALUES (2, 'b')")
    subscription().for_each_batch(into, spark=spark, until_caught_up=True)
    assert rows(spark, into, "t", "new.id") == [(1,), (2,)]
    assert rows(spark, into, "log", "new.line") == [("x",)]
    assert_versions(into)
    if point == "batch_committed":
        one, again = into.batches[:2]
        assert (one.start_lsn, one.end_lsn, one.app_id, one.version) == (
            again.start_lsn,
            again.end_lsn,
            again.app_id,
            again.version,
        )


def assert_versions(into):
    """No batch begins before the end of an earlier one and goes over it: a version says what a table has."""
    assert len({batch.app_id for batch in into.batches}) == 1
    for one, other in pairwise(into.batches):
        assert other.start_lsn >= one.end_lsn or other.end_lsn <= one.end_lsn


@pytest.mark.parametrize(
    "again", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["it goes on", "another process"]
)
def test_a_handler_that_fails_when_half_is_written(publisher, subscription, spark, into, again):
    """A table that has the batch leaves out its parts; one that lacks it gets each of them, once."""
    publisher.execute(SETUP)
    options = {"workers__retry_max_s": 0.1}
    subscription(**options).for_each_batch(into, spark=spark, until_caught_up=True)
    for key in range(6):
        publisher.execute(f"INSERT INTO t VALUES ({key}, 'a'); INSERT INTO log VALUES ('{key}')")
    into.after = "public.log"
    if again:
        with pytest.raises(ApplyError, match="the handler raised OSError: the disk is full"):
            subscription(**options).for_each_batch(into, spark=spark, until_caught_up=True)
        into.after = ""
    else:
        attempts = []

        def act(point):
            attempts.append(point)
            into.after = "" if attempts.count("batch_begun") >= 3 else into.after

        faults.install(act)
    try:
        publisher.execute("INSERT INTO t VALUES (6, 'later')")
        subscription(**options).for_each_batch(into, spark=spark, until_caught_up=True)
    finally:
        faults.install(lambda _: None)
    assert sorted(rows(spark, into, "t", "new.id")) == [(key,) for key in range(7)]
    assert sorted(rows(spark, into, "log", "new.line")) == [(str(key),) for key in range(6)]
    assert_versions(into)
    assert max(batch.transactions for batch in into.batches) > 1


def test_a_transaction_that_it_does_not_take_is_found_and_skipped(publisher, subscription, spark, into, tmp_path):
    publisher.execute(SETUP)
    made = subscription(disable_on_error=True)
    made.for_each_batch(into, spark=spark, until_caught_up=True)
    for key in range(1, 6):
        publisher.execute(f"INSERT INTO t VALUES ({key}, 'a')")
    into.refused = 3
    with pytest.raises(ApplyError, match="the handler raised ValueError: id 3 is not taken") as caught:
        made.for_each_batch(into, spark=spark, until_caught_up=True)
    context = caught.value.context
    assert context.xid is not None
    with pytest.raises(StateError, match="is disabled .*id 3 is not taken"):
        made.for_each_batch(into, spark=spark)
    with pytest.raises(SkipError, match="invalid"):
        made.skip("nonsense")
    made.skip(str(context.finish_lsn))
    made.enable()
    made.for_each_batch(into, spark=spark, until_caught_up=True)
    assert rows(spark, into, "t", "new.id") == [(1,), (2,), (4,), (5,)]
    assert list((tmp_path / "state/skipped").rglob(FILE))
    made.drop()
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
    assert made.remote_lsn is None


def test_it_runs_until_it_is_stopped(publisher, subscription, spark, into):
    """By another thread, or by the handler; what was handled is confirmed."""
    publisher.execute(SETUP)
    with subscription() as made:
        thread = threading.Thread(target=made.for_each_batch, args=(into,), kwargs={"spark": spark})
        thread.start()
        wait_until(lambda: made.remote_lsn is not None)
        with pytest.raises(StateError, match="another pgbridge daemon"):
            subscription().for_each_batch(into, spark=spark)
        publisher.execute("INSERT INTO t VALUES (1, 'a')")
        wait_until(lambda: len(into.batches) == 1 and made.remote_lsn >= into.batches[0].end_lsn)
    thread.join(30)
    assert not thread.is_alive()
    publisher.execute("INSERT INTO t VALUES (2, 'b')")

    def handle(batch):
        into(batch)
        made.stop()

    made.for_each_batch(handle, spark=spark)
    assert rows(spark, into, "t", "new.id") == [(1,), (2,)]
    confirmed = publisher.query("SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots")
    assert confirmed[0][0] >= into.batches[-1].end_lsn


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copy_data": True}, "copy_data: a handler gets changes only"),
        ({"warehouse": "lake"}, "warehouse: a subscription with a handler has no Delta tables"),
        ({"publications": "pub"}, "publications: must be a list of names"),
        ({"publications": []}, "publications: must be an array"),
        ({"streming": "on"}, 'streming: unknown key; did you mean "streaming"'),
        ({"streaming": "yes"}, 'streaming: "yes" is not allowed'),
        ({"messages": "table"}, 'messages: "table" is for Delta tables'),
        ({"slot_name": "A B"}, "slot_name"),
        ({"target": {"adopt": True}}, "target: a subscription with a handler has no Delta tables"),
        ({"workers": {"max_sync_workers": 2}}, "workers.max_sync_workers: a subscription with a handler copies no"),
        ({"batch": {"max_row": 1}}, 'batch.max_row: unknown key; did you mean "max_rows"'),
        ({"batch_max_rows": 1}, 'batch_max_rows: unknown key; it is now max_rows in batch: batch={"max_rows": …}'),
    ],
)
def test_options_are_those_of_the_configuration(tmp_path, options, message):
    given = {"publications": ["pub"], "copy_data": False, **options}
    with pytest.raises(ConfigError, match=message):
        Subscription(connection="dbname=shop", state_dir=tmp_path, **given)


def test_the_connection_string_is_not_shown(tmp_path):
    with pytest.raises(ConfigError) as caught:
        Subscription(connection=17, publications=["pub"], state_dir=tmp_path, copy_data=False)  # type: ignore[arg-type]
    assert "connection: must be a string" in str(caught.value)


def test_a_handler_that_is_no_function(tmp_path):
    made = Subscription(connection="dbname=shop", publications=["pub"], state_dir=tmp_path, copy_data=False)
    with pytest.raises(TypeError, match="must be a function, not NoneType"):
        made.for_each_batch(None)  # type: ignore[arg-type]

"""The initial copy: states, what it refuses, and that it starts again after it was cut short.

Where Delta has no part in it, the tables are in memory.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.apply.context import Context
from pgbridge.bridge.catalog import copied_ranges, followed, refresh
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.catalog.copied_ranges import CopiedRange, RangedCopy
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.lake import table as delta_table
from pgbridge.bridge.lake.writes import overwrite_rows
from pgbridge.bridge.receive.slot import Snapshot
from pgbridge.bridge.runtime import faults, log
from pgbridge.bridge.runtime.errors import BridgeError, StoreError, TargetError
from pgbridge.bridge.sync import copy, table_reading, tablesync
from pgbridge.bridge.sync.copy_progress import CopyLimit
from pgbridge.bridge.sync.table_reading import TableLock
from pgbridge.bridge.sync.tablesync import TableSync
from pgbridge.protocol.lsn import Lsn
from tests.bridge.lake.lost_entries import lose_entries
from tests.bridge.skipped.kept import NO_SPARK
from tests.bridge.subscribed import wait_until
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, note text);
CREATE TABLE empty (id int PRIMARY KEY);
INSERT INTO t SELECT g, 'copied' FROM generate_series(1, 3) g;
CREATE PUBLICATION pub FOR TABLE t, empty;
"""


def ids(bridge, table="t"):
    return sorted(row["id"] for row in bridge.rows(table))


def test_copied_tables_are_ready_and_hold_the_rows_in_one_commit(publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    assert ids(bridge) == [1, 2, 3]
    assert ids(bridge, "empty") == []
    assert bridge.state("t") == bridge.state("empty") == "r"
    assert [("add" in commit) for commit in bridge.commits("t")] == [False, True], "made empty, then filled at once"


def test_a_copy_that_was_cut_short_starts_again(spark, publisher, pipeline):
    """State d: what a part of a copy may have left is overwritten, with a later snapshot."""
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    rel = next(rel for rel in bridge.catalog.rels(bridge.subscription.name) if rel.name == "t")
    bridge.catalog.put_rel(bridge.subscription.name, replace(rel, state="d", lsn=Lsn(0)))
    publisher.execute("INSERT INTO t VALUES (4, 'before the second copy')")
    bridge.catch_up()
    assert ids(bridge) == [1, 2, 3, 4], "the row that is in the copy is not applied from the stream as well"
    publisher.execute("INSERT INTO t VALUES (5, 'after it')")
    bridge.catch_up()
    assert ids(bridge) == [1, 2, 3, 4, 5]
    copies = [one["commitInfo"] for one in bridge.commits("t") if one.get("txn", {}).get("appId", "").endswith("/copy")]
    written = [info["operationParameters"] for info in copies]
    whole = [entry for entry in written if entry.get("mode") == "Overwrite" and "predicate" not in entry]
    assert len(whole) == 2, "the first copy, and one commit that swapped the second one in"
    lose_entries(spark, bridge.path("t"), 1)  # the flush of the first one had failed, and the power went
    assert ids(bridge) == [1, 2, 3, 4, 5]


def test_a_large_table_is_copied_in_ranges_and_by_one_commit(publisher, pipeline, monkeypatch):
    """From a root that is published, in more tasks than it may have connections, and from leaves."""
    monkeypatch.setattr(table_reading, "RANGE_BYTES", 64 * 8192)
    monkeypatch.setattr("pgbridge.bridge.spark.driver.Local.copied_bytes", -1)
    monkeypatch.setattr(copy, "MOST_CONNECTIONS", 1)
    publisher.execute(
        """CREATE TABLE root (id int PRIMARY KEY, pad text) PARTITION BY RANGE (id);
        CREATE TABLE one PARTITION OF root FOR VALUES FROM (0) TO (30000);
        CREATE TABLE two PARTITION OF root FOR VALUES FROM (30000) TO (60000);
        INSERT INTO root SELECT g, repeat('x', 100) FROM generate_series(1, 40000) g;
        CREATE PUBLICATION pub FOR TABLE root WITH (publish_via_partition_root = true);
        CREATE PUBLICATION leaves FOR TABLE root"""
    )
    bridge = pipeline()
    bridge.catch_up()
    assert ids(bridge, "root") == list(range(1, 40001))
    assert [("add" in commit) for commit in bridge.commits("root")] == [False, True]
    monkeypatch.undo()
    monkeypatch.setattr(table_reading, "RANGE_BYTES", 64 * 8192)
    monkeypatch.setattr("pgbridge.bridge.spark.driver.Local.copied_bytes", -1)
    publisher.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    bridge = pipeline(publications=("leaves",))
    bridge.catch_up()
    assert ids(bridge, "one") == list(range(1, 30000))
    assert ids(bridge, "two") == list(range(30000, 40001))


@pytest.mark.parametrize(
    "on_executors", [pytest.param(False, marks=pytest.mark.soak), True], ids=["here", "on executors"]
)
def test_a_reader_that_the_server_ends_leaves_nothing_behind(publisher, pipeline, monkeypatch, on_executors):
    """The ranges that were read do not count; the next try reads all of them."""
    if on_executors:
        monkeypatch.setattr(table_reading, "RANGE_BYTES", 256 * 8192)
        monkeypatch.setattr("pgbridge.bridge.spark.driver.Local.copied_bytes", -1)
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, pad text); CREATE PUBLICATION pub FOR TABLE t;"
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 200000) g"
    )
    bridge = pipeline(workers__retry_max_s=0.1)
    worker = bridge.worker()
    worker.thread.start()
    ending = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'COPY%' AND application_name LIKE '%_sync_%'"
        " AND state = 'active'"  # one that has ended its statement is not missed
    )
    while not publisher.query(ending):
        assert worker.thread.is_alive()
    worker.thread.join(240)
    assert worker.error is None
    assert ids(bridge) == list(range(1, 200001))
    assert bridge.catalog.subscription(bridge.subscription.name).sync_error_count == 1
    assert [("add" in commit) for commit in bridge.commits("t")] == [False, True, False], "and a checkpoint's commit"


def test_tables_are_copied_at_once_and_one_that_fails_holds_up_no_other(publisher, pipeline, monkeypatch):
    publisher.execute(SETUP + "CREATE TABLE bad (d date); INSERT INTO bad VALUES ('infinity');")
    publisher.execute("ALTER PUBLICATION pub ADD TABLE bad")
    both = threading.Barrier(2, timeout=60)

    def meet(rows, path, stamp=None, **options):
        if not path.endswith("/bad"):
            both.wait()
        overwrite_rows(rows, path, stamp, **options)

    monkeypatch.setattr("pgbridge.bridge.sync.copy.overwrite_rows", meet)
    bridge = pipeline(workers__max_sync_workers=3, disable_on_error=True)
    with pytest.raises(BridgeError, match='cannot copy table "public.bad"'):
        bridge.catch_up()
    assert (ids(bridge), bridge.state("t"), bridge.state("empty"), bridge.state("bad")) == ([1, 2, 3], "f", "f", "d")


def test_a_target_with_rows_is_not_copied_into(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    path = f"{bridge.subscription.warehouse}/public/t"
    bridge.spark.put_foreign(path, {"id": pa.int32(), "note": pa.string()}, (9, "somebody's"))
    with pytest.raises(TargetError, match=r"the Delta table at .*/public/t has rows already") as caught:
        bridge.catch_up()
    assert "copy_data = false" in caught.value.hint
    assert bridge.spark.arrow(path).num_rows == 1
    assert bridge.state("empty") == "r"
    row = bridge.catalog.subscription(bridge.subscription.name)
    assert row.sync_error_count == 2, "of the first copy, and of the next try beside the stream"


def test_an_empty_target_made_beforehand_is_used(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    path = f"{bridge.subscription.warehouse}/public/t"
    bridge.spark.put_foreign(path, {"own": pa.string(), "note": pa.string(), "id": pa.int32()})
    bridge.catch_up()
    assert ids(bridge) == [1, 2, 3]
    assert bridge.rows("t")[0]["own"] is None


WIDE = "id bigint, n decimal(12,4), f double, d timestamp_ntz"
NATIVE_WIDE = "CREATE TABLE w (id bigint PRIMARY KEY, n numeric(12,4), f double precision, d timestamp)"


@pytest.mark.parametrize("copied", [True, False])
def test_a_wider_target_made_beforehand_is_used(spark, publisher, pipeline, copied):
    """As natively: by the copy, and by a stream without it, where the columns are not to follow either."""
    publisher.execute("CREATE TABLE w (id int PRIMARY KEY, n numeric(6,2), f real, d date)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE w")
    if copied:
        publisher.execute("INSERT INTO w VALUES (1, 1.25, 0.5, '2024-02-29'), (2, NULL, NULL, NULL)")
    bridge = pipeline(copy_data=copied, schema_evolution="evolve" if copied else "strict")
    path = f"{bridge.subscription.warehouse}/public/w"
    spark.createDataFrame([], WIDE).write.format("delta").save(path)
    with NativeSubscriber(publisher.conninfo, ["pub"], schema=NATIVE_WIDE, options={"copy_data": copied}) as native:
        bridge.catch_up()
        publisher.execute("INSERT INTO w VALUES (3, 2.5, 1.5, '2024-03-01'), (4, 0, 0, '0001-01-01')")
        publisher.execute("UPDATE w SET n = n + 1 WHERE id = 3; UPDATE w SET id = -4 WHERE id = 4")
        bridge.catch_up()
        native.wait_caught_up()
        assert differences(spark, path, native, "w") == []
    assert spark.read.format("delta").load(path).dtypes == [tuple(c.split()) for c in WIDE.split(", ")]


def test_a_store_that_is_away_is_no_reason_to_replace_columns(spark, publisher, pipeline, monkeypatch):
    """In state d the copy may replace a target that does not fit. Whether it fits is not known here."""
    publisher.execute(
        "CREATE TABLE w (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE w; INSERT INTO w VALUES (1)"
    )
    bridge = pipeline(target__adopt=True)
    path = f"{bridge.subscription.warehouse}/public/w"
    spark.createDataFrame([], "id bigint, own string").write.format("delta").save(path)
    away = iter([True])

    def read_target_schema(session, of, mode="mirror"):
        rels = bridge.catalog.rels(bridge.subscription.name)
        if [rel.state for rel in rels] == ["d"] and next(away, False):
            raise StoreError(f"{of} cannot be read")
        return delta_table.read_target_schema(session, of, mode)

    monkeypatch.setattr(tablesync, "read_target_schema", read_target_schema)
    bridge.catch_up()
    (rel,) = bridge.catalog.rels(bridge.subscription.name)
    bridge.catalog.put_rel(bridge.subscription.name, replace(rel, state="d", lsn=Lsn(0)))
    bridge.catch_up()  # tries again
    assert next(away, "asked") == "asked"
    assert bridge.rows("w") == [{"id": 1, "own": None}]
    assert spark.read.format("delta").load(path).dtypes == [("id", "bigint"), ("own", "string")]


def test_a_target_with_another_type_is_refused(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    path = f"{bridge.subscription.warehouse}/public/t"
    bridge.spark.put_foreign(path, {"id": pa.string(), "note": pa.string()})
    with pytest.raises(
        TargetError, match='column "id" of target "public.t" is string, but the published values are int'
    ):
        bridge.catch_up()


def test_a_vanished_target_is_not_made_anew(publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    import shutil

    shutil.rmtree(bridge.path("t"))
    with pytest.raises(TargetError, match='the Delta table of "public.t" at .* does not exist any more'):
        bridge.catch_up()


def test_without_copy_data_tables_start_empty(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline(copy_data=False)
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (4, 'streamed')")
    bridge.catch_up()
    assert ids(bridge) == [4]
    assert bridge.state("t") == "r"


def test_another_subscriptions_table_is_refused(publisher, memory_pipeline):
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    bridge.catalog.register("other", enabled=True)
    path = f"{bridge.subscription.warehouse}/public/t"
    bridge.catalog.put_rel("other", RelRow("public", "t", "r", Lsn(1), path))
    with pytest.raises(BridgeError, match='is written by subscription "other"'):
        bridge.catch_up()


def test_names_with_capitals_spaces_dots_and_unicode(publisher, pipeline):
    publisher.execute(
        'CREATE SCHEMA "Sch é"; CREATE TABLE "Sch é"."My.Table" ("Key Col" int PRIMARY KEY, "a.b" text, "ü (x)" int);'
        """INSERT INTO "Sch é"."My.Table" VALUES (1, 'x', 2);"""
        'CREATE PUBLICATION pub FOR TABLE "Sch é"."My.Table"'
    )
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute(
        """UPDATE "Sch é"."My.Table" SET "a.b" = 'y'; INSERT INTO "Sch é"."My.Table" VALUES (2, 'z', 3)"""
    )
    bridge.catch_up()
    assert sorted(map(tuple, (row.values() for row in bridge.rows("Sch é.My.Table")))) == [(1, "y", 2), (2, "z", 3)]


def test_copies_take_turns(tmp_path, monkeypatch):
    """Three subscriptions with four tables each, two of which each would copy at a time: two in all have a turn."""
    lock, copied, under_way, peak = threading.Lock(), [], 0, 0

    def copy_table(_self, rel, *_):
        nonlocal under_way, peak
        with lock:
            under_way += 1
            peak = max(peak, under_way)
        time.sleep(0.05)
        with lock:
            under_way -= 1
            copied.append(rel.path)

    monkeypatch.setattr(TableSync, "_copy_table", copy_table)
    monkeypatch.setattr(tablesync, "CopyMonitor", lambda *_, advanced: nullcontext())
    turns, names, together = CopyLimit(2), ("a", "b", "c"), threading.Barrier(3)
    with closing(Catalog(catalog_path(tmp_path))) as catalog:

        def copy_all(name):
            catalog.register(name, enabled=True)
            rels = [RelRow("public", f"t{number}", "i", Lsn(0), f"{name}/t{number}") for number in range(4)]
            catalog.create_origin(name, Lsn(1), "once", rels)
            subscription = Subscription(name=name, connection="", publications=("pub",), warehouse="lake")
            sync = TableSync(Context(subscription, NO_SPARK, catalog, log.get()), turns)
            tables = {(rel.namespace, rel.name): SimpleNamespace(relid=number) for number, rel in enumerate(rels)}
            empty = '{"publications": {}, "published": [], "tables": {}, "types": {}}'
            publisher = SimpleNamespace(picture=lambda *_: ("", empty))
            together.wait()
            sync.copy(tables, publisher, Snapshot("snapshot", Lsn(1)))  # type: ignore[arg-type]

        threads = [threading.Thread(target=copy_all, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert peak == 2
    assert sorted(copied) == [f"{name}/t{number}" for name in names for number in range(4)]
    assert {path[0] for path in copied[:6]} == set(names), "no subscription waits for all tables of another"


@pytest.mark.parametrize("when", ["before the lock", "after the copy"])
def test_a_column_that_is_added_while_a_table_is_copied_has_its_default_in_all_rows(
    publisher, memory_pipeline, monkeypatch, when
):
    """Before the lock the copy starts again; after it the stream brings the column."""
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    alter = ["ALTER TABLE t ADD COLUMN c int DEFAULT 7"]

    class Lock(TableLock):
        def __init__(self, *arguments, **options):
            if alter and when == "before the lock":
                publisher.execute(alter.pop())
            super().__init__(*arguments, **options)

        def close(self):
            super().close()
            if alter and when == "after the copy":
                publisher.execute(alter.pop())

    monkeypatch.setattr(tablesync, "TableLock", Lock)
    bridge.catch_up()
    publisher.execute("INSERT INTO t VALUES (4, 'later', 8); UPDATE t SET note = 'changed' WHERE id = 1")
    bridge.catch_up()
    assert alter == []
    rows = sorted((row["id"], row["c"]) for row in bridge.rows("t"))
    assert rows == [(1, 7), (2, 7), (3, 7), (4, 8)]


REWRITTEN = """
CREATE TABLE prices (id int PRIMARY KEY, cents int) {how};
{leaf}
INSERT INTO prices SELECT g, g FROM generate_series(1, 100) g;
CREATE PUBLICATION pub {of} WITH (publish_via_partition_root = true);
"""
LEAF = "CREATE TABLE leaf PARTITION OF prices FOR VALUES FROM (0) TO (10000);"
WAYS = {
    "alone": {"how": "", "leaf": "", "of": "FOR TABLE prices"},
    "beside another": {"how": "", "leaf": "CREATE TABLE t (id int PRIMARY KEY);", "of": "FOR TABLE t, prices"},
    "root": {"how": "PARTITION BY RANGE (id)", "leaf": LEAF, "of": "FOR TABLE prices"},
    "added": {"how": "", "leaf": "", "of": ""},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_table_that_is_rewritten_between_snapshot_and_copy(publisher, memory_pipeline, monkeypatch, way):
    """To the snapshot it is empty, and the stream has no change of its rows: it is copied under another one."""
    publisher.execute(REWRITTEN.format(**WAYS[way]))
    bridge = memory_pipeline(workers__max_sync_workers=1, workers__retry_max_s=0.1, disable_on_error=True)
    if way == "added":
        bridge.catch_up()
        publisher.execute("ALTER PUBLICATION pub ADD TABLE prices")
        refresh.ask(bridge.catalog, bridge.subscription.name, [None], copy_data=True)
    rewrite = ["ALTER TABLE prices ALTER cents TYPE int USING cents * 100"]

    def reached(point):
        if point == "slot_created" and rewrite:
            publisher.execute(rewrite.pop())

    monkeypatch.setattr(faults, "_action", reached)
    bridge.catch_up()
    publisher.execute("INSERT INTO prices VALUES (2001, 1)")
    bridge.catch_up()
    assert rewrite == []
    assert sorted((row["id"], row["cents"]) for row in bridge.rows("prices")) == [
        *((number, number * 100) for number in range(1, 101)),
        (2001, 1),
    ]
    row = bridge.catalog.subscription(bridge.subscription.name)
    assert (row.enabled, row.sync_error_count) == (True, 0), "it is nobody's error"


def test_a_table_whose_name_another_one_takes_before_its_copy(publisher, memory_pipeline, monkeypatch):
    """A copy reads by name, and to the snapshot the other table is empty: it is copied under another snapshot."""
    publisher.execute("CREATE TABLE log (id int PRIMARY KEY); INSERT INTO log VALUES (1)")
    publisher.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    bridge = memory_pipeline(workers__retry_max_s=0.1)
    rotate = [
        "ALTER TABLE log RENAME TO before; CREATE TABLE log (LIKE before INCLUDING ALL); INSERT INTO log VALUES (2)"
    ]

    class Lock(TableLock):
        def __init__(self, *arguments, **options):
            if rotate:
                publisher.execute(rotate.pop())
            super().__init__(*arguments, **options)

    monkeypatch.setattr(tablesync, "TableLock", Lock)
    bridge.catch_up()
    assert ids(bridge, "log") == [2]
    publisher.execute("INSERT INTO log VALUES (3)")
    bridge.catch_up()
    assert ids(bridge, "log") == [2, 3]
    (seen,) = followed.seen(bridge.catalog, bridge.subscription.name)
    assert (seen.difference.kind, seen.difference.relation) == ("not_followed", ("public", "before"))


PARTLY_READ = RangedCopy("id", "before", (CopiedRange(0, None, "2", Lsn(1)), CopiedRange(1, "2", None)))


def test_who_locks_a_table_that_was_read_in_part_is_told(publisher, memory_pipeline, monkeypatch):
    """Its copy waits on, because another one, beside the stream, would read all ranges again."""
    publisher.execute(SETUP)
    bridge = memory_pipeline()
    name, table = bridge.subscription.name, ("public", "t")
    monkeypatch.setattr(tablesync, "_LOCK_PATIENCE_S", 0.2)

    def reached(point):
        if point == "slot_created":
            copied_ranges.begin(bridge.catalog, name, table, PARTLY_READ)
            lock.execute("BEGIN; LOCK TABLE t")

    def told():
        return [event for event in events if event["event"].startswith("a table that was read in part is locked")]

    monkeypatch.setattr(faults, "_action", reached)
    with publisher.connect() as lock, capture_logs() as events:
        process = f"process {lock.info.backend_pid} ("
        worker = bridge.worker()
        worker.thread.start()
        try:
            wait_until(lambda: len(told()) == 2)
            kept = copied_ranges.read(bridge.catalog, name, table)
        finally:
            lock.execute("COMMIT")
            worker.thread.join(60)
    assert worker.error is None
    assert kept == PARTLY_READ
    assert all(event["log_level"] == "warning" and process in event["reason"] for event in told())
    assert ids(bridge) == [1, 2, 3]


def test_a_partition_that_is_attached_while_its_root_is_copied_is_told(publisher, memory_pipeline, monkeypatch):
    """Also if nobody could look at the catalog when the copies began, because of a lock."""
    publisher.execute(REWRITTEN.format(**WAYS["root"]))
    publisher.execute("CREATE TABLE late (id int PRIMARY KEY, cents int)")
    bridge = memory_pipeline()
    attach = ["INSERT INTO late VALUES (20000, 1)", "ALTER TABLE prices ATTACH PARTITION late DEFAULT"]

    def reached(point):
        if point == "slot_created":
            lock.execute("BEGIN; LOCK TABLE prices")

    class Lock(TableLock):
        def __init__(self, *arguments, **options):
            lock.execute("COMMIT")
            super().__init__(*arguments, **options)

        def check(self):
            super().check()
            while attach:
                publisher.execute(attach.pop(0))

    monkeypatch.setattr(faults, "_action", reached)
    monkeypatch.setattr(tablesync, "TableLock", Lock)
    with publisher.connect() as lock:
        bridge.catch_up()
    assert attach == []
    bridge.catch_up()
    (seen,) = followed.seen(bridge.catalog, bridge.subscription.name)
    assert (seen.difference.kind, seen.difference.subject) == ("attached", "public.late")

"""Snapshots over several tables: whole transactions, under load, and whatever else commits to the tables."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
import threading
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import functions as F

import pgbridge
from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.runtime.errors import ConfigError, TargetError
from pgbridge.bridge.snapshots import commit_log, snapshot as command
from tests.bridge.subscribed import end, running, wait_until
from tests.fix_bridge import config_of

ACCOUNTS, EACH = 20, 1_000
SETUP = f"""
CREATE TABLE a (id int PRIMARY KEY, v int NOT NULL);
CREATE TABLE b (id int PRIMARY KEY, v int NOT NULL);
INSERT INTO a SELECT i, {EACH} FROM generate_series(1, {ACCOUNTS}) i;
INSERT INTO b SELECT i, {EACH} FROM generate_series(1, {ACCOUNTS}) i;
CREATE PUBLICATION pub FOR TABLE a, b
"""
TOTAL = 2 * ACCOUNTS * EACH


def commits(bridge, spark):
    """The rows of the table of commits, in order."""
    path = f"{bridge.subscription.warehouse}/pgbridge/commits"
    return spark.read.format("delta").load(path).orderBy("position", "number").collect()


def recorded(bridge):
    """Append everything that the catalog has."""
    worker = bridge.worker()
    log = worker._commit_log
    log.now_s = lambda: 4e9
    while log.turn():
        pass


def total(frames):
    return sum(frame.agg(F.sum("v")).collect()[0][0] for frame in frames)


def document(bridge, spark, at="now", **options):
    (one,) = command.collect(config_of(bridge), [bridge.subscription], at, spark=spark, **options)["snapshots"]
    return one


def test_a_subscription_without_commits_does_not_silence_the_others(spark, tmp_path):
    """Each is told; alone it is the command's error."""
    chosen = [
        Subscription(name=name, connection="", publications=("p",), warehouse=str(tmp_path / name)) for name in "ab"
    ]
    config = Config(state_dir=tmp_path, subscription={one.name: one for one in chosen})
    found = command.collect(config, chosen, "now", spark=spark)
    assert [(one["subscription"], one["tables"]) for one in found["snapshots"]] == [("a", []), ("b", [])]
    assert all("no commits are recorded" in one["error"] for one in found["snapshots"])
    assert command.is_incomplete(found)
    assert command.render(found).row_count == 2
    with pytest.raises(TargetError, match="no commits are recorded"):
        command.collect(config, chosen[:1], "now", spark=spark)


class Load:
    """Transactions that move amounts from one table to the other, until it is closed."""

    def __init__(self, conninfo):
        self._conninfo, self._stop = conninfo, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        chance = random.Random(3)
        with psycopg.connect(self._conninfo) as connection:
            while not self._stop.wait(0.02):
                one, other, amount = chance.randint(1, ACCOUNTS), chance.randint(1, ACCOUNTS), chance.randint(1, 50)
                connection.execute("UPDATE a SET v = v - %s WHERE id = %s", (amount, one))
                connection.execute("UPDATE b SET v = v + %s WHERE id = %s", (amount, other))
                connection.commit()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


@pytest.mark.soak  # 50 s of load; below is each position by itself
def test_every_snapshot_has_whole_transactions_and_tables_read_one_after_the_other_have_not(
    spark, publisher, pipeline, monkeypatch
):
    monkeypatch.setattr(commit_log, "_EVERY_S", 0.2)
    monkeypatch.setattr(commit_log, "_REST", 1)
    publisher.execute(SETUP)
    bridge = pipeline()
    warehouse = bridge.subscription.warehouse
    worker = running(bridge)
    apart = set()
    try:
        with Load(publisher.conninfo):

            def batches():
                path = Path(warehouse, "pgbridge", "commits")
                entries = [entry.read_text() for entry in path.glob("_delta_log/*.json")]
                return sum('"operation":"WRITE"' in entry for entry in entries)

            wait_until(lambda: batches() >= 2)
            for _ in range(2):
                taken = pgbridge.snapshot(spark, warehouse)
                assert list(taken) == ["public.a", "public.b"]
                assert total(taken.values()) == TOTAL
                now = document(bridge, spark)  # with what is not recorded yet
                latest = [
                    spark.read.format("delta").option("versionAsOf", one["version"]).load(one["path"])
                    for one in now["tables"]
                ]
                assert total(latest) == TOTAL
            for _ in range(40):
                first = spark.read.format("delta").load(bridge.path("a")).agg(F.sum("v")).collect()[0][0]
                seen = batches()
                wait_until(lambda: batches() > seen)  # noqa: B023 - it is called in this turn
                second = spark.read.format("delta").load(bridge.path("b")).agg(F.sum("v")).collect()[0][0]
                apart.add(first + second)
                if apart - {TOTAL}:
                    break
    finally:
        end(worker)
    assert apart - {TOTAL}
    recorded(bridge)
    rows = [row for row in commits(bridge, spark) if row.kind == "batch"]
    assert len(rows) > 5
    for row in rows[:: max(1, len(rows) // 2)]:
        taken = pgbridge.snapshot(spark, warehouse, row.end_lsn)
        assert taken.lsn == row.end_lsn
        assert total(taken.values()) == TOTAL
        assert {one.name: one.version for one in row.tables} == {
            "a": taken.version("public.a"),
            "b": taken.version("public.b"),
        }


def test_positions_and_what_is_not_recorded_yet(spark, publisher, pipeline, tmp_path):
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    copied = document(bridge, spark)
    assert [one["table"] for one in copied["tables"]] == ["public.a", "public.b"]
    publisher.execute("UPDATE a SET v = 0 WHERE id = 1")
    bridge.catch_up()
    changed = document(bridge, spark)
    spark.sql(f"OPTIMIZE delta.`{bridge.path('b')}`").collect()
    publisher.execute("UPDATE b SET v = 0 WHERE id = 1")
    bridge.catch_up()
    recorded(bridge)
    assert bridge.catalog.rows("SELECT 1 FROM commit_record") == []
    recorded(bridge)  # nothing is appended twice
    rows = commits(bridge, spark)
    assert [row.kind for row in rows] == ["joined", "joined", "batch", "batch"]
    assert [[one.name for one in row.tables] for row in rows] == [["a"], ["b"], ["a"], ["b"]]
    assert rows[2].first_commit_time <= rows[2].last_commit_time

    warehouse = bridge.subscription.warehouse
    early = pgbridge.snapshot(spark, warehouse, changed["lsn"])
    assert early["public.b"].filter("v = 0").count() == 0
    assert early["public.a"].filter("v = 0").count() == 1
    assert pgbridge.snapshot(spark, warehouse, copied["lsn"])["public.a"].filter("v = 0").count() == 0
    by_time = pgbridge.snapshot(spark, warehouse, early.commit_time)
    assert by_time.lsn == early.lsn
    assert pgbridge.snapshot(spark, warehouse, "FFFFFFFF/FFFFFFFF").lsn == rows[3].end_lsn
    with pytest.raises(TargetError, match="begin at"):
        pgbridge.snapshot(spark, warehouse, "0/1")
    with pytest.raises(TargetError, match="begin at"):
        pgbridge.snapshot(spark, warehouse, dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    with pytest.raises(TargetError, match='subscription "other".*it has: "'):
        pgbridge.snapshot(spark, warehouse, subscription="other")
    with pytest.raises(TargetError, match="does not exist"):
        pgbridge.snapshot(spark, str(tmp_path))
    with pytest.raises(ConfigError, match="not a position"):
        pgbridge.snapshot(spark, warehouse, "yesterday")


def test_a_table_of_commits_that_is_lost_comes_back_and_old_rows_are_pruned(spark, publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    warehouse = bridge.subscription.warehouse
    for table in ("a", "b"):
        publisher.execute(f"UPDATE {table} SET v = 0 WHERE id = 1")
        bridge.catch_up()
        if table == "a":
            changed = document(bridge, spark)
    recorded(bridge)
    early = pgbridge.snapshot(spark, warehouse, changed["lsn"])
    shutil.rmtree(f"{warehouse}/pgbridge/commits")
    publisher.execute("UPDATE b SET v = 1 WHERE id = 1")
    bridge.catch_up()
    recorded(bridge)
    again = pgbridge.snapshot(spark, warehouse, changed["lsn"])
    assert again.lsn == changed["lsn"]
    assert {name: again.version(name) for name in again} == {name: early.version(name) for name in early}
    assert pgbridge.snapshot(spark, warehouse)["public.b"].filter("v = 1").count() == 1

    # pruning keeps all tables as of the last batch that is pruned
    worker = bridge.worker()
    path = worker._commit_log.table
    origin = bridge.catalog.subscription(bridge.subscription.name).txn_app_id
    assert path.prune(origin, 4e9) > 0
    now = pgbridge.snapshot(spark, warehouse)
    assert now["public.b"].filter("v = 1").count() == 1
    assert now["public.a"].filter("v = 0").count() == 1
    with pytest.raises(TargetError, match="begin at"):
        pgbridge.snapshot(spark, warehouse, changed["lsn"])


def test_tables_that_leave_and_join(spark, publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute(
        "ALTER PUBLICATION pub DROP TABLE b; CREATE TABLE c (id int PRIMARY KEY); INSERT INTO c VALUES (1)"
    )
    publisher.execute("ALTER PUBLICATION pub ADD TABLE c")
    before = document(bridge, spark)
    refresh.ask(bridge.catalog, bridge.subscription.name, [None], copy_data=True)
    bridge.catch_up()
    publisher.execute("INSERT INTO c VALUES (2)")
    bridge.catch_up()
    recorded(bridge)
    now = pgbridge.snapshot(spark, bridge.subscription.warehouse)
    assert list(now) == ["public.a", "public.c"]
    assert now["public.c"].count() == 2
    then = pgbridge.snapshot(spark, bridge.subscription.warehouse, before["lsn"])
    assert "public.c" not in then
    assert "public.a" in then
    assert repr(then).startswith("<snapshot of ")
    assert repr(then).endswith(": public.a>")
    with pytest.raises(KeyError, match='no table "c" followed the stream at .*; there are public.a'):
        then["c"]


def test_a_version_that_vacuum_has_removed_is_named(spark, publisher, pipeline):
    publisher.execute(SETUP)
    bridge = pipeline()
    bridge.catch_up()
    first = document(bridge, spark)
    publisher.execute("UPDATE a SET v = 0; UPDATE b SET v = 0 WHERE id = 1")
    bridge.catch_up()
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.conf.set("spark.databricks.delta.vacuum.logging.enabled", "true")
    try:
        spark.sql(f"VACUUM delta.`{bridge.path('a')}` RETAIN 0 HOURS").collect()
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
        spark.conf.unset("spark.databricks.delta.vacuum.logging.enabled")
    gone = document(bridge, spark, first["lsn"])
    assert {one["table"]: bool(one["error"]) for one in gone["tables"]} == {"public.a": True, "public.b": False}
    assert "VACUUM" in gone["tables"][0]["error"]
    assert command.is_incomplete({"snapshots": [gone]})
    assert not any(one["error"] for one in document(bridge, spark)["tables"])
    with pytest.raises(ConfigError, match="in memory"):
        document(bridge, spark, views="lake_as_of")
    with pytest.raises(TargetError, match="VACUUM"):
        command._one(spark, bridge.catalog, bridge.subscription, command.parse_at(first["lsn"]), "", "as_of", {})
    try:
        made = command._one(spark, bridge.catalog, bridge.subscription, "now", "now", "as_of", {})
        assert [one["view"] for one in made["tables"]] == ["as_of.public_a", "as_of.public_b"]
        assert spark.newSession().table("as_of.public_a").filter("v = 0").count() == ACCOUNTS
    finally:
        spark.sql("DROP NAMESPACE IF EXISTS as_of CASCADE")
    assert json.loads(json.dumps(made))["lsn"] == made["lsn"]


def test_the_program_of_the_documentation_runs(spark, publisher, pipeline, monkeypatch, capsys):
    publisher.execute("CREATE TABLE checking (id int PRIMARY KEY, balance int)")
    publisher.execute("CREATE TABLE savings (id int PRIMARY KEY, balance int)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE checking, savings")
    publisher.execute("INSERT INTO checking SELECT i, 1000 FROM generate_series(1, 40) i")
    bridge = pipeline()
    bridge.catch_up()
    publisher.execute("UPDATE checking SET balance = 900 WHERE id = 3; INSERT INTO savings VALUES (3, 100)")
    bridge.catch_up()
    recorded(bridge)
    page = (Path(__file__).parents[3] / "docs" / "snapshots.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.setattr("pgbridge.session.start", lambda *_: spark)
    exec(program.replace('"lake"', f'"{bridge.subscription.warehouse}"'), {})
    lsn = document(bridge, spark)["lsn"]
    said, total_said = capsys.readouterr().out.splitlines()[-2:]
    assert said.startswith(f"{publisher.name} as of {lsn}, committed at 20")
    assert said.endswith("+00:00")
    assert total_said == "40000"

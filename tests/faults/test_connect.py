"""Spark on a Connect server: all that a subscription does, and a server that is killed, frozen, away, or cut off."""

from __future__ import annotations

import random
import time
from contextlib import closing

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from tests.bridge.made_daemon import command, wait_until
from tests.faults.proxy import Proxy
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows, NativeSubscriber
from tests.oracle.test_workload_equal import SEED, assert_nothing_lost, repeated
from tests.oracle.workload import Workload

SETUP = """
CREATE TABLE docs (id int PRIMARY KEY, body text, n int, day date);
CREATE TABLE facts (at int, what text);
ALTER TABLE facts REPLICA IDENTITY FULL;
INSERT INTO docs SELECT i, 'body ' || i, i FROM generate_series(1, 50) i;
INSERT INTO facts SELECT i % 3, 'fact' FROM generate_series(1, 50) i;
CREATE PUBLICATION pub FOR TABLE docs, facts;
"""
CHANGES = (
    "UPDATE docs SET n = n + 1 WHERE id % 2 = 0; DELETE FROM docs WHERE id > 40; DELETE FROM facts WHERE at = 1",
    "BEGIN; TRUNCATE facts; INSERT INTO facts VALUES (1, 'after'), (1, 'after'); COMMIT",
    "ALTER TABLE docs ADD COLUMN more text DEFAULT 'm'; INSERT INTO docs VALUES (61, 'y', 2, NULL, 'z')",
)
REFUSED = "BEGIN; INSERT INTO facts VALUES (7, 'no'); INSERT INTO docs VALUES (90, 'b', 1, 'infinity'); COMMIT"
TABLES = ("docs", "facts")


def caught_up(bridge):
    """Wait until all is applied."""
    time.sleep(0.5)
    wait_until(lambda: (status := bridge.status())["state"] == "streaming" and status["lag_bytes"] == 0, 240)


def differing(spark, bridge, publisher):
    source = DatabaseRows(publisher.conninfo)
    return [found for name in TABLES for found in differences(spark, bridge.path(name), source, f"public.{name}")]


def wait_for_batch(bridge):
    """Wait until a batch is under way."""
    with closing(Catalog(catalog_path(bridge.folder / "state"))) as catalog:
        end_s = time.monotonic() + 60
        while catalog.batch(bridge.name) is None:
            assert time.monotonic() < end_s
            time.sleep(0.01)


def unstamped(spark, bridge):
    """Commits of rows that do not name their batch: a session's settings were not there."""
    found = [row for name in TABLES for row in spark.sql(f"DESCRIBE HISTORY delta.`{bridge.path(name)}`").collect()]
    return [row for row in found if row.operation in {"WRITE", "MERGE"} and "pgbridge" not in (row.userMetadata or "")]


def logged(bridge, text):
    return text in bridge.log.read_text(errors="replace")


@pytest.fixture
def following(publisher, daemon, connect_server):
    """A daemon whose tables are copied, and follow the stream."""
    publisher.execute(SETUP)
    bridge = daemon(master=connect_server.master)
    bridge.start()
    bridge.wait_for('"streaming"')
    return bridge


def test_all_kinds_of_batches_and_a_server_killed_in_the_middle_of_one(spark, publisher, following, connect_server):
    """The server that comes back refuses what was sent to the one before; the batch is applied once."""
    assert differing(spark, following, publisher) == []
    for changes in CHANGES:
        publisher.execute(changes)
        caught_up(following)
        assert differing(spark, following, publisher) == []
    publisher.execute(REFUSED)
    wait_until(lambda: following.status()["last_error"] is not None)
    error = following.status()["last_error"]
    assert "infinity" in error["message"]
    assert command(following, "skip", "sub", "--lsn", error["finish_lsn"]).returncode == 0
    caught_up(following)
    assert spark.read.format("delta").load(following.path("facts")).filter("at = 7").count() == 0
    publisher.execute("DELETE FROM facts WHERE at = 7; DELETE FROM docs WHERE id = 90")  # as if it had not been
    caught_up(following)

    publisher.execute("UPDATE docs SET n = n + 10; INSERT INTO facts SELECT i, 'more' FROM generate_series(1, 9) i")
    wait_for_batch(following)
    connect_server.kill()
    connect_server.start()
    caught_up(following)
    assert logged(following, "the connection to the Spark Connect server is lost")
    assert logged(following, "a batch was cut short: its tables keep what they have of it")
    assert differing(spark, following, publisher) == []
    assert unstamped(spark, following) == []
    assert following.stop() == 0
    assert logged(following, '"stopped"')


@pytest.mark.soak  # the network is away for longer than a client waits
@pytest.mark.parametrize("fault", ["cut", "silent", "frozen"])
def test_a_network_cut_while_the_server_goes_on(spark, publisher, daemon, connect_server, fault):
    """The operation under way may still commit on the server: it is in the table once.

    The batch changes columns, too: it is undone, and what may still come of it is fenced.
    """
    publisher.execute(SETUP + "INSERT INTO docs SELECT i, 'body', i FROM generate_series(100, 60000) i")
    with Proxy(lambda: ("127.0.0.1", connect_server.port)) as proxy:
        bridge = daemon(master=f"sc://127.0.0.1:{proxy.port}")
        bridge.start()
        bridge.wait_for('"streaming"')
        for round_ in range(2):
            alter = f"ALTER TABLE docs ADD COLUMN c{round_} int DEFAULT 1;" if round_ else ""
            publisher.execute(f"{alter} UPDATE docs SET n = n + 1; INSERT INTO facts VALUES (100, 'round {round_}')")
            wait_for_batch(bridge)
            time.sleep(0.3 * round_)
            if fault == "frozen":
                connect_server.freeze()
            proxy.refuses, proxy.silent = fault == "cut", fault != "cut"
            if fault == "cut":
                proxy.cut()
            bridge.wait_for("the connection to the Spark Connect server is lost")
            if fault == "frozen":
                connect_server.thaw()
            proxy.heal()
            caught_up(bridge)
            assert differing(spark, bridge, publisher) == []
            assert unstamped(spark, bridge) == []
        assert bridge.stop() == 0


@pytest.mark.soak  # a minute of waiting
def test_a_server_that_is_away_for_a_minute(spark, publisher, following, connect_server):
    """The daemon says so, tries again, and ends when it is asked to."""
    connect_server.kill()
    publisher.execute("UPDATE docs SET n = n + 1")
    following.wait_for("the Spark Connect server is away")
    assert following.status()["state"] == "error"
    time.sleep(30)
    connect_server.start()
    caught_up(following)
    assert differing(spark, following, publisher) == []
    connect_server.kill()
    publisher.execute("UPDATE docs SET n = n + 1")
    following.wait_for("the Spark Connect server is away")
    assert following.stop() == 0


@pytest.mark.soak
def test_a_history(spark, publisher, daemon, connect_server):
    """A key change leaves a large value as it is: the events are kept in checkpoints while it is looked for."""
    publisher.execute(
        "CREATE TABLE docs (id int PRIMARY KEY, body text); ALTER TABLE docs ALTER body SET STORAGE EXTERNAL;"
        "INSERT INTO docs VALUES (1, repeat('x', 9000)); CREATE PUBLICATION pub FOR TABLE docs"
    )
    bridge = daemon(master=connect_server.master, mode="history")
    bridge.start()
    bridge.wait_for('"streaming"')
    publisher.execute("UPDATE docs SET id = 2")
    publisher.execute("BEGIN; UPDATE docs SET id = 3; UPDATE docs SET id = 4; COMMIT")
    caught_up(bridge)
    found = spark.read.format("delta").load(bridge.path("docs")).orderBy("valid_from_lsn").collect()
    versions = [(row.id, len(row.body), row.valid_to_lsn is None) for row in found]
    assert versions == [(1, 9000, False), (2, 9000, False), (4, 9000, True)]
    assert bridge.stop() == 0


@pytest.mark.soak
def test_a_table_that_the_servers_executors_read(spark, publisher, daemon, connect_server):
    """One that is too large to be sent, and a transaction that is staged."""
    publisher.execute(
        "CREATE TABLE docs (id int PRIMARY KEY, body text, n int, day date); CREATE TABLE facts (at int, what text);"
        "INSERT INTO docs SELECT i, repeat('x', 400), i FROM generate_series(1, 120000) i;"
        "CREATE PUBLICATION pub FOR TABLE docs, facts"
    )
    bridge = daemon(master=connect_server.master, batch__max_bytes=8 << 20)
    bridge.start()
    bridge.wait_for('"streaming"')
    assert differing(spark, bridge, publisher) == []
    publisher.execute("UPDATE docs SET body = body || 'y' WHERE id % 2 = 0; DELETE FROM docs WHERE id % 5 = 0")
    caught_up(bridge)
    assert differing(spark, bridge, publisher) == []
    assert bridge.stop() == 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_random_workload_with_kills_of_daemon_and_server(spark, publisher, daemon, connect_server, seed):
    """Under load, each at random moments; nothing is lost, nothing is there twice."""
    with Workload(publisher.conninfo, seed) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(100)
        with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
            bridge = daemon(master=connect_server.master, batch__max_age_s=0.1, batch__max_rows=1500)
            moments = random.Random(seed)
            for life in range(6):
                with repeated(lambda: workload.step(1), 0.25):
                    bridge.start()
                    for _ in range(2):
                        bridge.wait_for('"batch applied"')
                        time.sleep(moments.uniform(0.0, 6.0))
                        if moments.random() < 0.7 or not life:
                            connect_server.kill()
                            time.sleep(moments.choice([0.0, 0.0, 25.0]))
                            connect_server.start()
                    time.sleep(moments.uniform(0.0, 6.0))
                    bridge.kill()
            assert_nothing_lost(spark, bridge, publisher, native)

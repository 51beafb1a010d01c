"""Spark on a Connect server: all that a subscription does, and a server that is killed, frozen, away, or cut off."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from bridge.track.catalog import Catalog, catalog_path
from tests.bridge.made_daemon import command, wait_until
from tests.oracle.delta import differences
from tests.oracle.native import text_rows

SETUP = """
CREATE TABLE docs (id int PRIMARY KEY, body text, n int, day date);
CREATE TABLE facts (at int, what text);
ALTER TABLE facts REPLICA IDENTITY FULL;
INSERT INTO docs SELECT i, 'body ' || i, i FROM generate_series(1, 50) i;
INSERT INTO facts SELECT i % 3, 'fact' FROM generate_series(1, 50) i;
CREATE PUBLICATION pub FOR TABLE docs, facts;
"""
CHANGES = (
    "UPDATE docs SET n = n + 1 WHERE id % 2 = 0; DELETE FROM docs WHERE id > 40; INSERT INTO docs VALUES (60, 'x', 1);"
    "DELETE FROM facts WHERE at = 1",
    "BEGIN; TRUNCATE facts; INSERT INTO facts VALUES (1, 'after'), (1, 'after'); COMMIT",
    "ALTER TABLE docs ADD COLUMN more text DEFAULT 'm'; INSERT INTO docs VALUES (61, 'y', 2, NULL, 'z')",
)
REFUSED = "BEGIN; INSERT INTO facts VALUES (7, 'no'); INSERT INTO docs VALUES (90, 'b', 1, 'infinity'); COMMIT"
TABLES = ("docs", "facts")


class Source:
    """The publisher's rows, for `differences`."""

    def __init__(self, publisher):
        self.publisher = publisher

    def rows(self, table, columns=None):
        return text_rows(self.publisher.conninfo, table, columns)


def caught_up(bridge):
    """Wait until all is applied."""
    time.sleep(0.5)
    wait_until(lambda: (status := bridge.status())["state"] == "streaming" and status["lag_bytes"] == 0, 240)


def differing(spark, bridge, publisher):
    return [
        found for table in TABLES for found in differences(spark, bridge.path(table), Source(publisher), f"public.{table}")
    ]


def wait_for_batch(bridge):
    """Wait until a batch is under way."""
    with closing(Catalog(catalog_path(bridge.folder / "state"))) as catalog:
        end_s = time.monotonic() + 60
        while catalog.batch(bridge.name) is None:
            assert time.monotonic() < end_s
            time.sleep(0.01)


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
    assert logged(following, "finishing a batch")
    assert differing(spark, following, publisher) == []
    assert following.stop() == 0
    assert logged(following, '"stopped"')

"""Spark's JVM runs out of memory, is killed, or hangs: what ended it is found, alone, and the rest goes on.

`tests.bridge.service.test_daemon` has a JVM that is killed once, in every run; `tests.bridge.apply.test_suspects` the
rules.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import sync_name
from tests.bridge.made_daemon import command, wait_until

SETUP = """
    CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE o (id int PRIMARY KEY);
    CREATE TABLE big (id int PRIMARY KEY, v text);
    INSERT INTO t VALUES (1); INSERT INTO o VALUES (1);
    CREATE PUBLICATION other FOR TABLE o; CREATE PUBLICATION pub FOR TABLE t, big
"""
BIG = "INSERT INTO big SELECT 1, repeat('abcdefghij', 10485760)"
ENDED = "has ended Spark's JVM 2 times alone (it ended with exit code 52), and is not tried any more"


@pytest.fixture
def two(publisher, daemon):
    """A daemon with a heap that does not hold the big row, and another subscription beside."""
    publisher.execute(SETUP)
    bridge = daemon(batch__max_age_s=0.0, workers__retry_max_s=1, spark_conf={"spark.driver.memory": "600m"})
    lines = ["[subscription.other]", f'connection = "{publisher.conninfo}"', 'publications = ["other"]']
    bridge.config.write_text(
        "\n".join([bridge.config.read_text(), *lines, 'warehouse = "./lake"', "workers.retry_max_s = 1"])
    )
    with closing(Catalog(catalog_path(bridge.folder / "state"))) as catalog:
        yield bridge, catalog


def streaming(catalog):
    rows = [catalog.subscription(name) for name in ("sub", "other")]
    return all(row is not None and row.state == "streaming" for row in rows)


def said(catalog, name):
    error = catalog.last_error(name)
    return "" if error is None else error.message


def ids(spark, bridge, table):
    return sorted(row["id"] for row in spark.read.format("delta").load(bridge.path(table)).select("id").collect())


@pytest.mark.soak  # three JVMs
def test_a_row_that_the_heap_cannot_hold_is_copied(spark, publisher, two):
    """Its table is refused, with the row's size and the setting; its subscription streams, and so does the other."""
    bridge, catalog = two
    publisher.execute(BIG)
    bridge.start()
    wait_until(lambda: ENDED in said(catalog, sync_name("sub")), 400)
    error = catalog.last_error(sync_name("sub"))
    assert error is not None
    expected = f'the copy of table "public.big" of subscription "sub" {ENDED}; its largest row has 100 MB'
    assert error.message.startswith(expected)
    assert 'set a higher "spark.driver.memory" in [spark.conf]' in error.message
    publisher.execute("INSERT INTO t VALUES (2); INSERT INTO o VALUES (2)")
    wait_until(lambda: ids(spark, bridge, "t") == [1, 2] == ids(spark, bridge, "o"), 200)


@pytest.mark.soak  # three JVMs
def test_a_row_that_the_heap_cannot_hold_is_streamed(spark, publisher, two):
    """Its transaction is refused, and can be skipped; the other subscription goes on meanwhile."""
    bridge, catalog = two
    bridge.start()
    wait_until(lambda: streaming(catalog), 200)
    publisher.execute(BIG)
    wait_until(lambda: ENDED in said(catalog, "sub"), 500)
    error = catalog.last_error("sub")
    assert error is not None
    assert error.message.startswith('the transaction of subscription "sub" from ')
    assert "its largest row has 100 MB" in error.message
    assert 'set a higher "spark.driver.memory" in [spark.conf]' in error.message
    assert 'for replication target relation "public.big"' in error.message
    publisher.execute("INSERT INTO t VALUES (2); INSERT INTO o VALUES (2)")
    wait_until(lambda: ids(spark, bridge, "o") == [1, 2], 100)
    assert command(bridge, "skip", "sub", "--lsn", str(error.finish_lsn)).returncode == 0
    wait_until(lambda: ids(spark, bridge, "t") == [1, 2], 100)
    assert ids(spark, bridge, "big") == []


@pytest.mark.soak  # two minutes of patience, two JVMs
def test_a_jvm_that_hangs(spark, publisher, two):
    """It is killed after two minutes, and another one goes on with what was under way."""
    bridge, catalog = two
    bridge.start()
    wait_until(lambda: streaming(catalog), 200)
    (jvm,) = bridge.jvms()
    os.kill(jvm.pid, signal.SIGSTOP)
    publisher.execute("INSERT INTO t VALUES (2); INSERT INTO o VALUES (2)")
    bridge.wait_for("Spark's JVM does not answer; it is killed", 200)
    wait_until(lambda: ids(spark, bridge, "t") == [1, 2] == ids(spark, bridge, "o"), 300)
    assert [catalog.last_error(name) for name in ("sub", "other")] == [None, None]
    (other,) = bridge.jvms()
    assert other.pid != jvm.pid

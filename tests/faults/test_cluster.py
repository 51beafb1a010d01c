"""Copies, batches, large transactions and undo on a standalone cluster that loses executors, workers and drivers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.faults.on_cluster import BATCH, SETUP, Source
from tests.fix_bridge import ROOT
from tests.fix_spark import YOUNG_JVM
from tests.oracle.delta import differences

MISSING = {"spark.pyspark.python": "/no/such/python"}


@pytest.mark.soak  # a cluster is six JVMs; `test_connect` has a Spark that is elsewhere in every run
@pytest.mark.parametrize("steps", ["copy", "copy batches large refused"])
def test_executors_are_killed_while_they_work(starts_server, cluster, publisher, tmp_path, steps):
    """Where the copy reads, before commits, with staged parts, and in an undo."""
    settings = json.dumps({**YOUNG_JVM, **cluster.settings(), "spark.driver.memory": "1g"})
    pids = [str(worker.pid) for worker in cluster.workers()]
    command = [sys.executable, "-m", "tests.faults.on_cluster", cluster.master, publisher.conninfo, str(tmp_path)]
    done = subprocess.run([*command, settings, steps, *pids], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.fixture
def on_cluster(cluster, daemon, publisher):
    """A daemon whose Spark is the cluster's; the tables are there already."""
    publisher.execute(SETUP)

    def make(**conf):
        settings = {**cluster.settings(), **conf}
        return daemon(master=cluster.master, spark_conf=settings, batch__max_age_s=0.1, workers__retry_max_s=2)

    return make


def assert_equal(spark, bridge, publisher):
    for table in ("docs", "facts"):
        assert differences(spark, bridge.path(table), Source(publisher.conninfo), f"public.{table}") == []


@pytest.mark.soak  # five daemons, each with a JVM; `test_executors_are_killed_while_they_work` is in every run
def test_the_daemon_is_killed(spark, publisher, on_cluster):
    bridge = on_cluster()
    assert bridge.run_until_caught_up(fault="table_copied") == -signal.SIGKILL, bridge.log_tail()
    for point in ("batch_begun", "table_begun", "table_committed", ""):
        publisher.execute(BATCH.replace("n + 1", "n + 2"))
        assert bridge.run_until_caught_up(fault=point) == (-signal.SIGKILL if point else 0), bridge.log_tail()
    assert_equal(spark, bridge, publisher)


@pytest.mark.soak
def test_the_driver_and_all_workers_are_killed(spark, publisher, cluster, on_cluster):
    """Without workers a batch waits; with new ones it goes on. A driver that dies is started again."""
    bridge = on_cluster()
    bridge.start()
    bridge.wait_for('"streaming"')
    for number in range(2):
        cluster.kill_worker(number)
    publisher.execute(BATCH)
    bridge.wait_for('"no executor', 120)
    for number in range(2):
        cluster.start_worker(number)
    bridge.wait_for('"batch applied"')
    (java,) = bridge.jvms()
    publisher.execute(BATCH)
    java.kill()
    bridge.wait_for('"batch applied"')
    assert bridge.stop() == 0
    assert bridge.run_until_caught_up() == 0
    assert_equal(spark, bridge, publisher)


@pytest.mark.soak
def test_executors_without_a_python(on_cluster):
    bridge = on_cluster(**MISSING)
    assert bridge.run_until_caught_up() == 1
    assert "Spark's executors have no Python at /no/such/python" in bridge.log.read_text()

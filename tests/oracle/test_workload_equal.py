"""The bridge's tables equal a native subscriber's after random workloads, crash or no crash."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from pyspark.errors import PySparkException

from tests.fix_bridge import ROOT
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber
from tests.oracle.workload import TABLES, Workload
from tests.oracle.workload_prepared import PreparedWorkload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.fix_bridge import DaemonProcess

SEED = 20261121


def assert_equal(spark, path_of, native):
    """Every table is equal, and the table without a key has no row twice."""
    for table in TABLES:
        assert differences(spark, path_of(table), native, table) == []


def assert_nothing_lost(spark, bridge, publisher, native):
    """A daemon that was killed catches up to what the native subscriber has, and there was no error of its own."""
    assert bridge.run_until_caught_up() == 0, bridge.log_tail()
    native.wait_caught_up()
    assert_equal(spark, bridge.path, native)
    serials = publisher.query("SELECT count(*), count(DISTINCT serial) FROM events")
    assert serials[0][0] == serials[0][1] > 0
    status = bridge.status()
    assert (status["apply_error_count"], status["sync_error_count"]) == (0, 0), bridge.log_tail()


@pytest.mark.soak  # without it, `test_kill` has the same workload, streamed, in binary form, with kills
@pytest.mark.parametrize(("streaming", "binary"), list(itertools.product(["off", "on"], [False, True])))
def test_random_workload_streamed_and_prepared(spark, publisher, pipeline, streaming, binary):
    """Prepared transactions stay open from one life to the next; with streaming, every change is sent at once."""
    publisher.stream_everything()
    options = {"streaming": streaming, "two_phase": True, "binary": binary}
    with PreparedWorkload(publisher.conninfo, SEED + binary) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(40)
        workload.finish_prepared()  # slots wait for it
        with NativeSubscriber(publisher.conninfo, ["pub"], options=options) as native:
            native.wait_caught_up()  # so do the slots of its table synchronization
            bridge = pipeline(**options, batch__max_rows=1000)
            for _ in range(3):
                bridge.catch_up()
                workload.step(50)
                workload.prepare()
            bridge.catch_up()
            native.wait_caught_up()
            assert_equal(spark, bridge.path, native)
            workload.finish_prepared()
            bridge.catch_up()
            native.wait_caught_up()
            assert_equal(spark, bridge.path, native)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [SEED, SEED + 1, SEED + 2])
def test_random_workload_with_kills_disable_enable_and_optimize_at_random_moments(spark, publisher, daemon, seed):
    """SIGKILL while copying and while streaming, under load; nothing is lost, nothing is there twice.

    All the while somebody disables and enables the subscription, and compacts its tables with OPTIMIZE: neither is an
    error of a transaction.
    """
    with Workload(publisher.conninfo, seed) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(100)
        with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
            bridge = daemon(batch__max_age_s=0.1, batch__max_rows=1500)
            moments = random.Random(seed)
            with _Meddling(spark, bridge, moments) as meddling:
                for life in range(6):
                    with repeated(lambda: workload.step(1), 0.25):
                        bridge.start()
                        bridge.wait_for('"streaming"')
                        meddling.bridge_has_run.set()
                        if life % 2:  # in the others perhaps none, where the machine is slow
                            bridge.wait_for('"batch applied"')
                        time.sleep(moments.uniform(0.0, 12.0))
                        bridge.kill()
            assert meddling.disabled > 3
            assert meddling.optimized + meddling.gave_way > 1, vars(meddling)
            assert_nothing_lost(spark, bridge, publisher, native)


class _Meddling:
    """DISABLE and ENABLE, and OPTIMIZE of a table, each again and again until the end of the `with`."""

    def __init__(self, spark: SparkSession, bridge: DaemonProcess, moments: random.Random) -> None:
        self.bridge_has_run = threading.Event()
        self.disabled = self.optimized = self.gave_way = 0
        self._spark, self._bridge, self._moments = spark, bridge, moments
        self._running = ExitStack()

    def __enter__(self) -> Self:
        self._running.enter_context(repeated(self._disable_and_enable, 4.0))
        self._running.enter_context(repeated(self._optimize, 0.2))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _disable_and_enable(self) -> None:
        if not self.bridge_has_run.is_set():
            return
        time.sleep(self._moments.uniform(0.0, 4.0))
        for command in ("disable", "enable"):
            arguments = [command, self._bridge.name, "--config", str(self._bridge.config)]
            subprocess.run([sys.executable, "-m", "pgbridge", *arguments], cwd=ROOT, check=True, capture_output=True)
        self.disabled += 1

    def _optimize(self) -> None:
        path = self._bridge.path(self._moments.choice(TABLES))
        if not self.bridge_has_run.is_set() or not Path(path, "_delta_log").is_dir():
            return
        try:
            metrics = self._spark.sql(f"OPTIMIZE delta.`{path}`").collect()[0].metrics
            self.optimized += metrics.numFilesRemoved > 0
        except PySparkException:
            self.gave_way += 1  # to a commit of the daemon's, as any OPTIMIZE does


@contextmanager
def repeated(action: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Do something again and again in a thread of its own; what it raises comes at the end."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause_s):
            action()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
        running.result()

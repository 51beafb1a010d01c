"""The bridge's tables equal a native subscriber's after random workloads, crash or no crash."""

from __future__ import annotations

import itertools
import threading

import pytest

from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber
from tests.oracle.workload import TABLES, Workload
from tests.oracle.workload_prepared import PreparedWorkload

SEED = 20261121


def assert_equal(spark, path_of, native):
    """Every table is equal, and the table without a key has no row twice."""
    for table in TABLES:
        assert differences(spark, path_of(table), native, table) == []


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
            bridge = pipeline(**options, batch_max_rows=1000)
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
def test_random_workload_with_five_kills_at_random_moments(spark, publisher, daemon):
    """SIGKILL while copying and while streaming, under load; nothing is lost, nothing is there twice."""
    with Workload(publisher.conninfo, SEED) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(100)
        with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
            bridge = daemon(batch_max_age_s=0.1, batch_max_rows=1500)
            for _ in range(5):
                stop = threading.Event()
                load = threading.Thread(target=_load, args=(workload, stop))
                load.start()
                try:
                    bridge.start()
                    bridge.wait_for('"streaming"')
                    # from before the first batch of this life to somewhere in its fourth or so
                    stop.wait(workload.random.uniform(0.0, 8.0))
                    bridge.kill()
                finally:
                    stop.set()
                    load.join()
            assert bridge.run_until_caught_up() == 0, bridge.log_tail()
            native.wait_caught_up()
            assert_equal(spark, bridge.path, native)
            serials = publisher.query("SELECT count(*), count(DISTINCT serial) FROM events")
            assert serials[0][0] == serials[0][1] > 0


def _load(workload: Workload, stop: threading.Event) -> None:
    while not stop.wait(0.25):
        workload.step(1)

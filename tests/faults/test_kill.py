"""kill -9 at every named point: the next start goes on from there; at the end all is as in a native subscriber."""

from __future__ import annotations

import signal

from bridge.faults import FAULT_POINTS
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber
from tests.oracle.workload import TABLES, Workload

# of the four tables' copies, the second is cut short: what was copied before it stays, the rest has another snapshot
POINTS = tuple("table_copied:2" if point == "table_copied" else point for point in FAULT_POINTS)


def test_kill_at_every_fault_point(spark, publisher, daemon):
    """Each life recovers from the kill before it, and is killed at the next point: one after the other, all of them."""
    assert {point.partition(":")[0] for point in POINTS} == set(FAULT_POINTS)
    with Workload(publisher.conninfo, 7) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(40)
        with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
            bridge = daemon(batch_max_age_s=0.0, batch_max_rows=500)
            for point in POINTS:
                code = bridge.run_until_caught_up(fault=point)
                assert code == -signal.SIGKILL, f"{point} was not reached (exit code {code}):\n{bridge.log_tail()}"
                workload.step(25)
            assert bridge.run_until_caught_up() == 0, bridge.log_tail()
            native.wait_caught_up()
            for table in TABLES:
                assert differences(spark, bridge.path(table), native, table) == []

"""kill -9 at every named point: the next start goes on from there; at the end all is as in a native subscriber."""

from __future__ import annotations

import signal

import pytest

from pgbridge.bridge.runtime.faults import FAULT_POINTS
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber
from tests.oracle.replayed import fed, mirrored
from tests.oracle.workload import TABLES
from tests.oracle.workload_prepared import PreparedWorkload

# of the four tables' copies, the second is cut short: what was copied before it stays, the rest has another snapshot
POINTS = tuple("table_copied:2" if point == "table_copied" else point for point in FAULT_POINTS)


FEED = 'tables__"public.labels"__properties__"delta.enableChangeDataFeed"'
"""One of the tables has a feed of its changes, which loses none and has none twice."""

MAKE_SLOTS = frozenset({"slot_created", "table_copied:2"})
"""After a kill at one of these a slot is made again, for which the server waits until prepared transactions end."""


@pytest.mark.soak  # `bridge/service/test_daemon.py` has one of them, `test_apply` a fault at each step of a batch
def test_the_daemon_is_killed(spark, publisher, daemon):
    """Each life recovers from the kill before it, and is killed at the next point: one after the other.

    Everything is streamed, and transactions are prepared in one life and committed or rolled back in another.
    """
    assert {point.partition(":")[0] for point in POINTS} == set(FAULT_POINTS)
    options: dict[str, str | bool] = {"streaming": "on", "two_phase": True}
    publisher.stream_everything()
    with PreparedWorkload(publisher.conninfo, 7) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(40)
        workload.finish_prepared()
        with NativeSubscriber(publisher.conninfo, ["pub"], options=options) as native:
            native.wait_caught_up()
            bridge = daemon(batch__max_age_s=0.0, batch__max_rows=500, **{FEED: True}, **options)
            for point in POINTS:
                code = bridge.run_until_caught_up(fault=point)
                assert code == -signal.SIGKILL, f"{point} was not reached (exit code {code}):\n{bridge.log_tail()}"
                workload.step(25)
                if point in MAKE_SLOTS:
                    workload.finish_prepared()
                else:
                    workload.prepare()
            assert bridge.run_until_caught_up() == 0, bridge.log_tail()
            native.wait_caught_up()
            for table in TABLES:
                assert differences(spark, bridge.path(table), native, table) == []
            workload.finish_prepared()
            assert bridge.run_until_caught_up() == 0, bridge.log_tail()
            native.wait_caught_up()
            for table in TABLES:
                assert differences(spark, bridge.path(table), native, table) == []
            assert fed(spark, bridge.path("labels")) == mirrored(spark, bridge.path("labels"))
            assert list((bridge.folder / "state" / "spool" / bridge.name).iterdir()) == []

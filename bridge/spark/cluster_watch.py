"""Watches from the driver what a cluster has done with it: removed its application, or left it without executors.

Spark reports neither. A job that no executor runs waits without an end, and a SparkContext that the cluster has stopped
fails each job while its JVM goes on. A standalone master that was restarted without recovery knows no application any
more, and gives it no executors: then only another driver helps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bridge.spark import session
from bridge.spark.outcome import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

_LOOK_INTERVAL_S: Final = 5.0
_WARN_AFTER_S: Final = 30.0
_GIVE_UP_AFTER_S: Final = 300.0
"""Executors that a cluster can give come within seconds; a machine that is replaced takes minutes."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A driver's view of its cluster.

    Attributes:
        stopped: The cluster has ended the application.
        executors: How many there are.
        jobs: How many are under way.
    """

    stopped: bool
    executors: int
    jobs: int


def cluster_state(spark: SparkSession) -> ClusterState | None:
    """Return what the driver knows of its cluster; None while its JVM ends."""
    try:
        context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark has no name for it
        if context.isStopped():
            return ClusterState(stopped=True, executors=0, jobs=0)
        executors = context.getExecutorMemoryStatus().size() - 1  # the driver is among them
        jobs = len(context.statusTracker().getActiveJobIds())
        return ClusterState(stopped=False, executors=executors, jobs=jobs)
    except (*SPARK_ERRORS, OSError):
        return None


class ClusterWatch:
    """Looks every few seconds at what runs on a cluster.

    Args:
        master: Its master; of a local one nothing is looked at.
        log: The daemon's.
        now_s: The time, for tests.
    """

    def __init__(
        self,
        spark: SparkSession,
        master: str,
        log: FilteringBoundLogger,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._log, self._now_s = spark, log, now_s
        self._elsewhere = session.on_cluster(master)
        self._due_s = 0.0
        self._without_since_s: float | None = None
        self._warned = False

    def turn(self) -> str | None:
        """Look, if it is time to; return why another driver is needed, None if none is."""
        now_s = self._now_s()
        if not self._elsewhere or now_s < self._due_s:
            return None
        self._due_s = now_s + _LOOK_INTERVAL_S
        state = cluster_state(self._spark)
        if state is None:
            return None
        if state.stopped:
            return "the cluster has ended pgbridge's application"
        if state.executors or not state.jobs:
            if self._warned:
                self._log.info("the cluster gives executors again", executors=state.executors)
            self._without_since_s, self._warned = None, False
            return None
        if self._without_since_s is None:
            self._without_since_s = now_s
        without_s = now_s - self._without_since_s
        if without_s >= _WARN_AFTER_S and not self._warned:
            self._warned = True
            self._log.warning(
                "no executor runs pgbridge's jobs, so they wait",
                jobs=state.jobs,
                hint="look at the master's page: is a worker there with memory for spark.executor.memory, and with "
                f"cores that no other application has? After {_GIVE_UP_AFTER_S / 60:.0f} minutes another driver is "
                "started, because a master that was restarted does not know this one",
            )
        return "the cluster gives no executors" if without_s >= _GIVE_UP_AFTER_S else None

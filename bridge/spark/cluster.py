"""A driver on this machine whose executors run on the machines of a cluster.

Executors get what they need of pgbridge: a Python, and this package. Only copies run Python there
(`bridge.sync.copy`); batches are Spark's own work. The libraries that a copy imports are compiled for a machine and a
version of Python, so an operator gives them: installed on each machine, or packed into an archive that Spark unpacks
(docs/clusters.md).

The driver looks at what the cluster has done with it: removed its application, or left it without executors. Spark
reports neither. A job that no executor runs waits without an end, and a SparkContext that the cluster has stopped fails
each job while its JVM goes on. A standalone master that was restarted without recovery knows no application any more,
and gives it no executors: then only another driver helps.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import ZIP_DEFLATED, ZipFile

from pgbridge.bridge.spark import outcome, settings
from pgbridge.bridge.spark.driver import Conf, Driver
from pgbridge.bridge.spark.launch import Launch, start_by_ivy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

_NOT_FOR_EXECUTORS: Final = frozenset({"__pycache__", "demo", "monitor"})

LOOK_INTERVAL_S: Final = 5.0
_WARN_AFTER_S: Final = 30.0
_GIVE_UP_AFTER_S: Final = 300.0
"""Executors that a cluster can give come within seconds; a machine that is replaced takes minutes."""


class Cluster(Driver):
    """A JVM whose tasks run elsewhere."""

    def _open(self, conf: Conf, warehouses: Collection[str], launch: Launch) -> SparkSession:
        session = start_by_ivy(self.master, settings.settings_here(conf, warehouses, launch.folder), launch)
        send_package(session.sparkContext, launch.folder)
        return session

    def watch(self, session: SparkSession, log: FilteringBoundLogger) -> Callable[[], str | None]:
        """Return what looks at the cluster every few seconds."""
        return ClusterWatch(session, log).turn


def send_package(context: SparkContext, folder: Path | None) -> None:
    """Have executors get this package as it is here, whatever they have installed.

    Args:
        context: Spark's context; its driver serves the file to executors as long as it runs.
        folder: Where the file is put; None for a temporary folder.
    """
    file = (folder or Path(tempfile.mkdtemp(prefix="pgbridge-package-"))) / "pgbridge-executors.zip"
    new = file.with_suffix(f".{os.getpid()}")
    with ZipFile(new, "w", ZIP_DEFLATED) as archive:
        for path, name in _modules():
            archive.write(path, name)
    new.replace(file)  # the driver of a killed daemon may be serving the one before
    before = list(sys.path)
    context.addPyFile(str(file))
    sys.path[:] = before  # this process has the package itself


def _modules() -> Iterator[tuple[Path, str]]:
    """The files of this package, and their names in the archive."""
    package = Path(__file__).parents[2]
    for folder, folders, names in os.walk(package, followlinks=True):  # a checkout has links to its three folders
        folders[:] = sorted(set(folders) - _NOT_FOR_EXECUTORS)
        for path in (Path(folder, name) for name in sorted(names)):
            if path.suffix in {".py", ".sql", ".tsv"}:
                yield path, path.relative_to(package.parent).as_posix()


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
    except (*outcome.SPARK_ERRORS, OSError):
        return None


class ClusterWatch:
    """Looks every few seconds at what runs on a cluster.

    Args:
        log: Gets the warnings.
        now_s: The time, for tests.
    """

    def __init__(
        self,
        spark: SparkSession,
        log: FilteringBoundLogger,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._log, self._now_s = spark, log, now_s
        self._due_s = 0.0
        self._without_since_s: float | None = None
        self._warned = False

    def turn(self) -> str | None:
        """Look, if it is time to; return why another driver is needed, None if none is."""
        now_s = self._now_s()
        if now_s < self._due_s:
            return None
        self._due_s = now_s + LOOK_INTERVAL_S
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
                "cores that no other application has? A daemon leaves some with spark.cores.max",
            )
        return "the cluster gives no executors" if without_s >= _GIVE_UP_AFTER_S else None

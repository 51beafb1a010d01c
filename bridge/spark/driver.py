"""Spark's driver: what follows from where it is, for all who use Spark.

A process has one driver: a JVM of its own, with executors in it (`Local`) or on a cluster (`Cluster`), or a Spark
Connect server (`Connect`). `bridge.spark.session` chooses the kind by the master. Everybody else asks the driver for
what is needed, a fact or an action, and not which kind it is.

A JVM may not answer any more: it was stopped (SIGSTOP), collects garbage without an end, or waits for a disk that is
gone. Nothing else would ever end what waits for it, so it is killed (`JvmWatch`), and its death handled like every
other one (see `bridge.service.daemon`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Self
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pgbridge.bridge.catalog.lock import spark_lock
from pgbridge.bridge.config.spark_master import heap_bytes, local_threads
from pgbridge.bridge.runtime import errors, warehouse
from pgbridge.bridge.runtime.threads import Closing, Latest
from pgbridge.bridge.spark import outcome, settings
from pgbridge.bridge.spark.launch import Launch, start_local

if TYPE_CHECKING:
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

Conf = Mapping[str, str | float | bool]

_ENDING_S: Final = 10.0  # Spark's hooks take some seconds on a loaded machine
_JVM_OVERHEAD_BYTES: Final = 384 << 20  # spark.driver.memoryOverhead: at least this, else a tenth of the heap
_PYTHON_WORKER_BYTES: Final = 100 << 20  # as measured

OF_A_ROW: Final = 16
"""A row takes at most this many times its size of the heap: in columns, as a row, in Parquet's pages, and in buffers
that double. Measured: a text of 256 MB passes with 4 GB and not with 2, a row of 440 texts of 1 MB with 6 GB."""

DRIVERS: Final[WeakKeyDictionary[SparkSession, Driver]] = WeakKeyDictionary()
"""The driver of each session that is known."""


class Heap(NamedTuple):
    """The JVM's heap: what is in use, and what it may grow to."""

    used_bytes: int
    max_bytes: int


class Driver(ABC):
    """Spark's driver, whose sessions are lost together. As it is here, a JVM of this process.

    PySpark knows one JVM in a process's life, and has all there is to know of it.

    Attributes:
        master: Where Spark's tasks run.
    """

    is_ours: ClassVar[bool] = True
    """This process launches it, calls it, may kill it, and takes it along when it ends. A server goes on, with what is
    under way."""

    executors_here: ClassVar[bool] = False
    """Its executors run on this machine, as this user: they read this process's files, and need no port."""

    sends_plans: ClassVar[bool] = False
    """Each plan is sent to it, and back with each answer about it."""

    piece_bytes: ClassVar[int] = 64 << 20
    """So many bytes of rows are given to it at once: it has them all in its heap."""

    copied_bytes: ClassVar[int] = 0
    """This process itself reads a table of up to this size on the server's disk, in place of executors."""

    loss: ClassVar[str] = "Spark's JVM has died"
    """What has happened when its sessions are lost."""

    def __init__(self, master: str) -> None:
        self.master = master

    @property
    def shown(self) -> str:
        """The master, without what may be a secret."""
        return self.master

    def start(self, conf: Conf, warehouses: Collection[str] = (), launch: Launch | None = None) -> SparkSession:
        """Start it, and return a first session; see `bridge.spark.session.start`.

        Args:
            conf: Settings over `DEFAULTS`.
            warehouses: Where Delta tables are, as configured.
            launch: How a JVM is launched.

        Raises:
            ConfigError: A warehouse is in Spark's own catalog, and that is in memory only.
            SparkLost: A server cannot be used.
        """
        logging.getLogger().addFilter(_not_py4j)
        session = self._open(conf, warehouses, launch or Launch())
        DRIVERS[session] = self
        if warehouse.forgets(lambda: session.conf.get(warehouse.IMPLEMENTATION), warehouses):
            self.stop(session)
            raise errors.ConfigError(
                f"the Spark at {self.shown} has no metastore: {warehouse.FORGETS}",
                hint=f'start it with "{warehouse.IMPLEMENTATION}" = "hive"',
            )
        return session

    @abstractmethod
    def _open(self, conf: Conf, warehouses: Collection[str], launch: Launch) -> SparkSession: ...

    def another(self, session: SparkSession) -> SparkSession:
        """Return a session with its own settings and views."""
        return session.newSession()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The JVM's process; None before it is launched, and if somebody else has launched it."""
        process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
        return process

    def kill(self) -> bool:
        """Kill the JVM; return False if there is none, or none yet."""
        process = self.process
        if process is None:
            return False
        process.kill()
        process.wait()
        return True

    def lost(self, error: BaseException | None = None) -> str | None:
        """Return why the sessions cannot be used any more, as how the JVM has ended; None while they can.

        Args:
            error: What an operation has ended with. A JVM's connections break a moment before it ends, so if this may
                be the reason, its end is waited for. Of a server, an error that says so is enough: an operation may
                still run in the sessions, so they must not be used any more.
        """
        process = self.process
        if process is None:
            return None
        if error is not None and outcome.lost_in(error) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING_S)
        code = process.poll()
        if code is None:
            return None
        return f"it ended with exit code {code}" if code >= 0 else f"it was killed by {signal.Signals(-code).name}"

    def hint(self, lost: str) -> str:
        """Return what helps against what `lost` has told; empty if nothing here does."""
        if not self.is_ours:
            return ""
        if "exit code 52" in lost:
            return 'exit code 52 is a heap that is too small: set a higher "spark.driver.memory" in [spark.conf]'
        return (
            "SIGKILL mostly comes from the kernel, for want of memory (see dmesg): "
            'set a lower "spark.driver.memory" in [spark.conf], or add memory'
        )

    def forget(self) -> Self:
        """Forget what is lost; return another driver, to be started in its place. A driver has one life."""
        context = SparkContext._active_spark_context  # noqa: SLF001
        if context is not None:
            context._jsc = None  # noqa: SLF001 - there is nothing to stop on that side
            context.stop()
        with SparkContext._lock:  # noqa: SLF001
            gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None  # noqa: SLF001
            SparkContext._active_spark_context = None  # noqa: SLF001
        SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
        if gateway is not None:
            with contextlib.suppress(Exception):  # it tries to send the dead JVM a message
                gateway.shutdown()
        return type(self)(self.master)

    def stop(self, session: SparkSession) -> None:
        """Stop Spark: the JVM goes with this process; a server goes on, without this process's sessions."""
        if self.lost() is None:
            with contextlib.suppress(Py4JError, OSError):  # the JVM may be ending
                session.stop()

    def end(self, session: SparkSession, within_s: float) -> bool:
        """Stop Spark and have the JVM end by itself, so that another can be started; return whether it has in time."""
        process = self.process
        self.stop(session)
        if process is None or process.stdin is None:
            return False
        process.stdin.close()  # PySpark's JVM ends with the process that has the other end
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        finally:
            self.forget()
        return True

    def heap(self) -> Heap | None:
        """Return the JVM's heap; None if there is none, or it is ending."""
        context = SparkContext._active_spark_context  # noqa: SLF001
        if context is None or self.lost() is not None:
            return None
        try:
            runtime = context._gateway.jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr] # noqa: SLF001
            return Heap(runtime.totalMemory() - runtime.freeMemory(), runtime.maxMemory())
        except (Py4JError, OSError):  # it is ending
            return None

    @property
    def tasks_here(self) -> int:
        """How many tasks run on this machine at once."""
        threads = local_threads(self.master) or 0
        return threads if threads >= 0 else os.cpu_count() or 1

    def memory_bytes(self, conf: Conf) -> int:
        """Return how much memory Spark uses on this machine at most: the JVM and the Python workers of its tasks."""
        heap = _heap_bytes(conf)
        return heap + max(_JVM_OVERHEAD_BYTES, heap // 10) + self.tasks_here * _PYTHON_WORKER_BYTES

    def largest_row_bytes(self, conf: Conf) -> int | None:
        """Return the size of a row for which the heap is large enough; None if rows are elsewhere, too."""
        return None if local_threads(self.master) is None else _heap_bytes(conf) // OF_A_ROW

    def lock(self, state_dir: Path) -> contextlib.AbstractContextManager[int | None]:
        """Wait for the JVM of an earlier daemon that was killed; give the descriptor that this JVM is to inherit."""
        return spark_lock(state_dir) if self.is_ours else contextlib.nullcontext()

    def active(self, session: SparkSession) -> contextlib.AbstractContextManager[None]:
        """Have a checkpoint of a session's rows that is made within belong to that session."""
        del session  # a JVM knows
        return contextlib.nullcontext()

    def watch(self, session: SparkSession, log: FilteringBoundLogger) -> Callable[[], str | None] | None:
        """Return what tells, whenever it is called, why another driver is needed, if one is; None if nothing can."""
        del session, log
        return None


class Local(Driver):
    """A JVM whose executors are in it, or beside it (`local-cluster`)."""

    executors_here = True
    copied_bytes = 256 << 20  # one connection takes no longer than several with their Python processes

    def _open(self, conf: Conf, warehouses: Collection[str], launch: Launch) -> SparkSession:
        return start_local(self.master, settings.settings_here(conf, warehouses, launch.folder), launch)


def _heap_bytes(conf: Conf) -> int:
    return heap_bytes(str({**settings.DEFAULTS, **conf}["spark.driver.memory"]))


def _not_py4j(record: logging.LogRecord) -> bool:
    """Drop what py4j logs when the JVM is gone, a stack trace in the root logger: it raises the same error, too."""
    return record.module != "java_gateway"


_TURN_S: Final = 5.0
_PATIENCE_S: Final = 120.0
"""A collection of a heap of many gigabytes takes some seconds, a machine that swaps a minute. It is counted in turns,
so that a machine which was asleep is not taken for a JVM that is."""


class JvmWatch(Closing):
    """Asks the JVM every few seconds, as long as it is open. A Spark Connect server is not ours to kill.

    Args:
        log: Is told why it is killed.
        driver: Is asked for its heap, which may hang.
        patience_s: How long an answer may take.
        turn_s: How long to wait before it is asked again.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        driver: Driver,
        *,
        patience_s: float = _PATIENCE_S,
        turn_s: float = _TURN_S,
    ) -> None:
        self._log, self._driver = log, driver
        self._patience_s, self._turn_s = patience_s, turn_s
        self._answers = 0
        self._latest = Latest(lambda: self._count(driver.heap()), interval_s=turn_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jvm watch", daemon=True)
        if driver.process is not None:
            self._latest.start()
            self._thread.start()

    def close(self) -> None:
        """Stop asking."""
        self._stop.set()
        self._latest.close()

    def _count(self, answer: object | None) -> object | None:
        self._answers += answer is not None
        return answer

    def _run(self) -> None:
        silent_s, answers = 0.0, 0
        while not self._stop.wait(self._turn_s):
            silent_s = 0.0 if self._answers != answers or self._driver.lost() is not None else silent_s + self._turn_s
            answers = self._answers
            if silent_s >= self._patience_s:
                self._log.error("Spark's JVM does not answer; it is killed, and started again", silent_s=silent_s)
                self._driver.kill()
                return

"""The Spark session: one for each process, forked for each subscription; and the JVM behind it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from bridge.config.spark_master import local_threads
from bridge.runtime.errors import ConfigError
from bridge.runtime.warehouse import FORGETS, IMPLEMENTATION, IN_MEMORY, SPARK_CATALOG, catalogs, with_metastore
from bridge.spark import connect, executors, launch
from bridge.spark.outcome import SPARK_ERRORS, lost_in
from bridge.spark.s3 import with_s3

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_ENDING_S = 10.0  # Spark's hooks take some seconds on a loaded machine
_JVM_OVERHEAD_BYTES = 384 << 20  # spark.driver.memoryOverhead: at least this, else a tenth of the heap
_PYTHON_WORKER_BYTES = 100 << 20  # as measured
_SIZE = re.compile(r"(\d+)([kmgt]?)b?")

_companions: WeakKeyDictionary[SparkSession, dict[str, SparkSession]] = WeakKeyDictionary()
_lock = threading.Lock()

CHECKSUM_WRITER = "spark.sql.streaming.checkpointFileManagerClass"

REQUIRED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Timestamps become text and dates in UTC, as on the wire.
    "spark.sql.session.timeZone": "UTC",
    # Dates before 1582 are PostgreSQL's, in the proleptic Gregorian calendar, without rebasing.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Spark's default, INT96 in nanoseconds, is read by others as 64 bits: they end in 2262, and then wrap.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A value that does not fit is an error; it never wraps or becomes NULL.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # ${…} in a name is part of the name, in statements too.
    "spark.sql.variable.substitute": "false",
}
"""Settings that the results depend on. They override the configuration's `[spark.conf]`."""

CHECKPOINT_INTERVAL = "spark.databricks.delta.properties.defaults.checkpointInterval"
"""After so many commits Delta writes a checkpoint of a table, which has the setting's value from its creation. Without
it, `bridge.lake.ddl` chooses."""

DEFAULTS = {
    "spark.app.name": "pgbridge",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # Idle Python workers of copies; further ones end with their task, these after a minute.
    "spark.python.factory.idleWorkerMaxPoolSize": "4",
    # PostgreSQL's names are case-sensitive; Delta refuses two that differ only in case.
    "spark.sql.caseSensitive": "true",
    # Spark's defaults are for more data than a batch has: with them, planning takes longer than the work.
    "spark.sql.shuffle.partitions": "4",
    # Four tables' commits have 70 generated classes: with Spark's 100, twenty tables would compile theirs each time.
    "spark.sql.codegen.cache.maxEntries": "5000",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Delta writes a checksum after each commit; on a local disk Spark's default starts a dozen `readlink` for that.
    CHECKSUM_WRITER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "true",
    "spark.sql.debug.maxToStringFields": "200",
    # Spark describes the plan of each query, which nobody reads unless its UI is on: 3 % of a small commit.
    "spark.sql.ui.explainMode": "simple",
    # Pages of a fifth of Parquet's own: who looks for a row by its key reads one, where files are sorted by it.
    "parquet.page.row.count.limit": "4000",
    # Parquet would hold a hundred rows before it looks how large they are: of 50 MB each, no heap has room for them.
    "parquet.page.size.row.check.min": "1",
}
"""Settings that suit the bridge. The configuration's `[spark.conf]` overrides them."""


def start(
    master: str,
    conf: Mapping[str, str | float | bool],
    *,
    warehouses: Iterable[str] = (),
    log: Path | None = None,
    keep_open: int | None = None,
    new_archive: Path | None = None,
) -> SparkSession:
    """Start Spark with Delta, or connect to a Spark Connect server (`master = "sc://…"`).

    At the first start on a machine Spark fetches Delta's jars from Maven Central, and those that the warehouses need.

    Args:
        master: Where Spark's tasks run.
        conf: Settings over `DEFAULTS`.
        warehouses: Where Delta tables are, as configured.
        log: Gets what Spark's processes print; None for this process's standard error.
        keep_open: A file descriptor that the JVM inherits, so that it has the file open until it ends.
        new_archive: Where a JVM on this machine writes an archive of its classes when it ends (see `prepare`).

    Raises:
        ConfigError: A warehouse is in Spark's own catalog, and that is in memory only.
    """
    warehouses = [*warehouses]
    session = _started(master, conf, warehouses, log, keep_open, new_archive)
    if SPARK_CATALOG in catalogs(warehouses) and session.conf.get(IMPLEMENTATION) == IN_MEMORY:
        stop(session)
        raise ConfigError(
            f"the Spark at {master} has no metastore: {FORGETS}", hint=f'start it with "{IMPLEMENTATION}" = "hive"'
        )
    return session


def _started(
    master: str,
    conf: Mapping[str, str | float | bool],
    warehouses: Sequence[str],
    log: Path | None,
    keep_open: int | None,
    new_archive: Path | None,
) -> SparkSession:
    logging.getLogger().addFilter(_not_py4j)
    if connect.is_connect(master):
        return connect.start(master, _settings(conf), REQUIRED, conf.keys())
    settings = settings_here(conf, warehouses)
    executors.choose_python(settings)
    if not on_cluster(master):
        session = launch.start_local(master, settings, log=log, keep_open=keep_open, new_archive=new_archive)
    else:
        builder = SparkSession.builder.master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = launch.started(launch.with_packages(builder, settings), log=log, keep_open=keep_open)
        executors.send_package(session.sparkContext, None if log is None else log.parent)
    session.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    return session


def _settings(conf: Mapping[str, str | float | bool]) -> dict[str, str]:
    return {**DEFAULTS, **{key: _text(value) for key, value in conf.items()}, **REQUIRED}


def settings_here(conf: Mapping[str, str | float | bool], warehouses: Sequence[str]) -> dict[str, str]:
    """All settings of a driver on this machine.

    Args:
        conf: Settings over `DEFAULTS`.
        warehouses: Where Delta tables are, as configured.
    """
    settings = with_metastore(_settings(conf), warehouses)
    # a catalog's tables are below this folder, unless their namespace says otherwise
    places = [*warehouses, settings.get("spark.sql.warehouse.dir", "")] if catalogs(warehouses) else warehouses
    return with_s3(settings, places, own_spark=launch.is_own_spark())


def _not_py4j(record: logging.LogRecord) -> bool:
    """Drop what py4j logs when the JVM is gone, a stack trace in the root logger: it raises the same error, too."""
    return record.module != "java_gateway"


def _process() -> subprocess.Popen[bytes] | None:
    """Return the JVM's process; None before it is launched, and with Spark Connect."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    return process


def kill() -> bool:
    """Kill the JVM; return False if there is none yet."""
    process = _process()
    if process is None:
        return False
    process.kill()
    process.wait()
    return True


def died() -> str | None:
    """Return how the JVM has ended, or why the sessions on a Connect server are lost; None while they can be used."""
    if connect.is_used():
        return connect.lost()
    process = _process()
    if process is None or process.poll() is None:
        return None
    if process.returncode >= 0:
        return f"it ended with exit code {process.returncode}"
    return f"it was killed by {signal.Signals(-process.returncode).name}"


def lost(error: BaseException) -> str | None:
    """Return how the JVM has ended, or why the sessions are lost, if that may be the cause of an error; else None.

    A JVM's connections break a moment before the process ends, so this waits for the end. On a Connect server, an error
    that says so is enough: the sessions must not be used any more, because an operation may still run in them.
    """
    if connect.is_used():
        return connect.lost(error)
    process = _process()
    if process is not None and lost_in(error) is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
    return died()


def lost_text(lost: str) -> str:
    """Return what `died` or `lost` has found, as a sentence."""
    if connect.is_used():
        return f"the connection to the Spark Connect server is lost: {lost}"
    return f"Spark's JVM has died: {lost}"


def lost_hint(lost: str) -> str:
    """Return what helps against what `died` has found; empty for a Connect server."""
    if connect.is_used():
        return ""
    if "exit code 52" in lost:
        return 'exit code 52 is a heap that is too small: set a higher "spark.driver.memory" in [spark.conf]'
    return (
        "SIGKILL mostly comes from the kernel, for want of memory (see dmesg): "
        'set a lower "spark.driver.memory" in [spark.conf], or add memory'
    )


def forget() -> None:
    """Forget a dead JVM, or lost sessions on a Connect server, so that `start` makes others in their place."""
    if connect.is_used():
        connect.forget()
        return
    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark knows one JVM in a process's life
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


def stop(session: SparkSession) -> None:
    """Stop Spark; the JVM goes with this process. A Connect server goes on, without this process's sessions."""
    if connect.is_used():
        if connect.lost() is None:
            connect.forget()
        return
    if died() is None:
        with contextlib.suppress(Py4JError, OSError):  # the JVM may be ending
            session.stop()


def end(session: SparkSession, within_s: float) -> bool:
    """Stop Spark and have the JVM end by itself, so that `start` makes another; return whether it has ended in time."""
    process = _process()
    stop(session)
    if process is None or process.stdin is None:
        return False
    process.stdin.close()  # PySpark's JVM ends with the process that has the other end
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    finally:
        forget()
    return True


def memory_bytes(master: str, conf: Mapping[str, str | float | bool]) -> int:
    """Return how much memory Spark uses on this machine at most: the JVM and the Python workers of its tasks."""
    if connect.is_connect(master):
        return 0
    heap = _size_bytes(_text({**DEFAULTS, **conf}["spark.driver.memory"]))
    threads = local_threads(master) or 0
    tasks = threads if threads >= 0 else os.cpu_count() or 1
    return heap + max(_JVM_OVERHEAD_BYTES, heap // 10) + tasks * _PYTHON_WORKER_BYTES


OF_A_ROW = 16
"""A row takes at most this many times its size of the heap: in columns, as a row, in Parquet's pages, and in buffers
that double. Measured: a text of 256 MB passes with 4 GB and not with 2, a row of 440 texts of 1 MB with 6 GB."""


def largest_row_bytes(master: str, conf: Mapping[str, str | float | bool]) -> int | None:
    """Return the size of a row for which a local master's heap is large enough; None for another master."""
    if local_threads(master) is None:
        return None
    return _size_bytes(_text({**DEFAULTS, **conf}["spark.driver.memory"])) // OF_A_ROW


def _size_bytes(text: str) -> int:
    """Parse a size of Spark's configuration: `2g`, `512m`, or a number of MiB; 0 for what Spark will refuse."""
    size = _SIZE.fullmatch(text.strip().lower())
    return int(size[1]) << {"k": 10, "g": 30, "t": 40}.get(size[2], 20) if size else 0


def fork(session: SparkSession) -> SparkSession:
    """Return a session with its own settings and views, on the same cluster."""
    return connect.another(session) if connect.is_used() else session.newSession()


def fork_exact(session: SparkSession) -> SparkSession:
    """Fork a session that others have started, with the settings that the values of changes and filters depend on."""
    forked = fork(session)
    for key in (
        "spark.sql.session.timeZone",
        "spark.sql.ansi.enabled",
        "spark.sql.storeAssignmentPolicy",
        "spark.sql.variable.substitute",
        "spark.sql.caseSensitive",
    ):
        forked.conf.set(key, {**DEFAULTS, **REQUIRED}[key])
    return forked


def companion(session: SparkSession, name: str, settings: Mapping[str, str]) -> SparkSession:
    """Return the companion of a session by this name: a session with settings that differ. It is made once."""
    with _lock:
        companions = _companions.setdefault(session, {})
        if name not in companions:
            made = fork(session)
            for key, value in settings.items():
                made.conf.set(key, value)
            companions[name] = made
        return companions[name]


@dataclass(frozen=True, slots=True)
class Heap:
    """The JVM's heap: what is in use, and what it may grow to."""

    used_bytes: int
    max_bytes: int


def heap() -> Heap | None:
    """Return the heap of the JVM that runs here; None if none does, or with Spark Connect."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark knows one JVM in a process's life
    if context is None or _process() is None or died() is not None:
        return None
    try:
        runtime = context._gateway.jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr] # noqa: SLF001
        return Heap(runtime.totalMemory() - runtime.freeMemory(), runtime.maxMemory())
    except (Py4JError, OSError):  # it is ending
        return None


def on_cluster(master: str) -> bool:
    """Whether a driver that runs here has its tasks run elsewhere; not with Spark Connect, whose driver is not ours."""
    return not (master.startswith("local") or connect.is_connect(master))


def interrupt(session: SparkSession) -> None:
    """Interrupt the running jobs of a session and of its companions."""
    with _lock:
        sessions = [session, *_companions.get(session, {}).values()]
    _interrupt(sessions)


def interrupt_companion(session: SparkSession, name: str) -> None:
    """Interrupt the running jobs of one companion, if it was made."""
    with _lock:
        companion = _companions.get(session, {}).get(name)
    _interrupt([] if companion is None else [companion])


def _interrupt(sessions: Iterable[SparkSession]) -> None:
    for companion in sessions:
        if connect.lost() is None:
            with contextlib.suppress(*SPARK_ERRORS, OSError):  # it may be gone
                companion.interruptAll()


def _text(value: str | float | bool) -> str:
    """Return a setting as Spark's configuration has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The Spark session: one for the process, forked for each subscription."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from delta import configure_spark_with_delta_pip
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

REQUIRED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A timestamp's text and its day are those of UTC, as on the wire.
    "spark.sql.session.timeZone": "UTC",
    # Dates before 1582 are PostgreSQL's, in the proleptic Gregorian calendar, without rebasing.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Values must fit or fail; never wrap, never become NULL.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # A name with ${…} in it is that name, in statements too.
    "spark.sql.variable.substitute": "false",
}
"""What the bridge's results depend on; a user's setting of these is overridden."""

DEFAULTS = {
    "spark.app.name": "pgbridge",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # Names differ in case on the wire; the target refuses two that differ only in it.
    "spark.sql.caseSensitive": "true",
    # A batch is small next to what Spark's defaults are made for: with them, planning takes longer than work.
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "true",
    "spark.sql.debug.maxToStringFields": "200",
}
"""Settings that suit the bridge; the configuration's `[spark.conf]` wins over them."""


def start(master: str, conf: Mapping[str, str | float | bool]) -> SparkSession:
    """Start Spark with Delta, or connect to a Spark Connect server (`master = "sc://…"`).

    The first start on a machine fetches Delta's jars from Maven Central.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what it logs, with a stack trace, it raises as well
    settings = {**DEFAULTS, **{key: _text(value) for key, value in conf.items()}, **REQUIRED}
    builder = SparkSession.builder
    if master.startswith("sc://"):
        remote = builder.remote(master)
        session = remote.create()
        for key in (
            "spark.sql.session.timeZone",
            "spark.sql.ansi.enabled",
            "spark.sql.storeAssignmentPolicy",
            "spark.sql.variable.substitute",
        ):
            session.conf.set(key, REQUIRED[key])
        return session
    if master.startswith("local"):
        # The initial copy's readers import this package: they run under the Python that runs it. PySpark takes
        # this from the environment only.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = configure_spark_with_delta_pip(builder).getOrCreate()
    session.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    return session


def _process() -> subprocess.Popen[bytes] | None:
    """The JVM, where it is a child of this process and has come up."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    return process


def kill() -> bool:
    """End the JVM at once; False when there is none yet."""
    process = _process()
    if process is None:
        return False
    process.kill()
    process.wait()
    return True


def stop(session: SparkSession) -> None:
    """Stop Spark; the JVM goes with this process."""
    with contextlib.suppress(Py4JError, OSError):  # it may be gone
        session.stop()


def fork(session: SparkSession) -> SparkSession:
    """A session with settings and views of its own, on the same cluster."""
    return session.newSession()


def interrupt(session: SparkSession) -> None:
    """Cut short what a session's jobs do now."""
    with contextlib.suppress(Py4JError, OSError):  # a JVM that is gone does nothing
        session.interruptAll()


def _text(value: str | float | bool) -> str:
    """A setting as Spark's configuration has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

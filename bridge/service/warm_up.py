"""Does beforehand what the first batch, or each start of Spark, would take long for.

A subscription's first batch finds what it needs loaded and compiled: commits to a scratch table have been made
(`WarmUp`). `pgbridge prepare` fetches Delta's jars once, and archives the classes that the JVM loads.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.check.machine import not_started
from pgbridge.bridge.commands.status import size_text
from pgbridge.bridge.config.daemon_tables import Spark
from pgbridge.bridge.effects.events import INSERT, NO_OLD, UPDATE
from pgbridge.bridge.lake import ddl, schema, source
from pgbridge.bridge.lake.commit.apply_table import apply_table
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamped
from pgbridge.bridge.runtime.errors import BridgeError, ConfigError
from pgbridge.bridge.spark import outcome, session
from pgbridge.bridge.spark.driver import Local
from pgbridge.bridge.spark.launch import DeltaJars, Launch, delta_jars
from pgbridge.bridge.spark.settings import settings_here
from pgbridge.bridge.targets.target import Target, TargetColumn, target_schema
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pgbridge.bridge.config.config import Config

ROWS: Final = 6_000
MERGED_ROWS: Final = 60_000
"""So many are merged, if their table is large."""

_MERGED_BYTES: Final = 256 << 20
"""A larger table on the server's disk has more than 64 MiB in Delta's files, as a rule, and is merged into."""


class WarmUp:
    """Warms a young Spark up, once, by a fork of a session, while its user waits for something else."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._begun = False

    def begin(self, table_bytes: Iterable[int]) -> None:
        """Begin in a thread of its own, unless it was begun before or Spark is elsewhere.

        The way to commit to the tables that follow depends on their sizes.
        """
        with self._lock:
            if self._begun:
                return
            self._begun = True
        if session.driver_of(self._spark).executors_here:
            largest_bytes = max(table_bytes, default=0)
            threading.Thread(target=self._run, args=(largest_bytes,), name="warm-up", daemon=True).start()

    def _run(self, largest_bytes: int) -> None:
        with suppress(Exception):  # a real commit tells what is wrong; or Spark was stopped meanwhile
            warm_up(session.fork(self._spark), MERGED_ROWS if largest_bytes > _MERGED_BYTES else ROWS)


def warm_up(spark: SparkSession, rows: int = ROWS) -> None:
    """Commit an INSERT and an UPDATE of so many rows to a scratch table, in a session that nobody else uses."""
    with source.scratch_folder() as folder:
        path = str(folder / "table")
        columns = (TargetColumn("id", resolve(20, -1)), TargetColumn("value", resolve(25, -1)))
        fields = [(column.name, column.type.arrow) for column in columns]
        ddl.create_table(spark, path, schema.spark_schema(fields))
        target = Target("pgbridge", "warm_up", path, target_schema(fields))
        for number, op in enumerate((INSERT, UPDATE), start=1):
            with stamped(spark, CommitStamp("pgbridge/warm_up", Lsn(number - 1), Lsn(number))):
                apply_table(spark, TableChanges(target, columns, (0,), _changes(op, rows)))


def _changes(op: int, rows: int) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "seq": numbers,
            "op": np.full(rows, op, np.int16),
            "old": np.full(rows, NO_OLD, np.int16),
            "new_0": numbers,
            "new_1": pa.array([str(number) for number in numbers]),
        }
    )


_DAEMONS: Final = ("spark.jars.", "spark.driver.memory", "spark.driver.extraJavaOptions")
"""Settings of the daemon that jars, or whether an archive suits a JVM, depend on."""

_TABLES: Final = (MERGED_ROWS, ROWS, 100)
"""Tables that are committed to, by their rows. Each is written in another way, and the first is merged into."""

_ENDING_S: Final = 300.0  # an archive has 200 MB


def prepare(config: Config | None, environment: Mapping[str, str]) -> list[str]:
    """Fetch the jars that a daemon with this configuration needs, and archive the classes that it will load.

    Args:
        config: The configuration; None for warehouses on a local disk and pgbridge's own settings.
        environment: The process's environment variables.

    Returns:
        What was done, for people.

    Raises:
        ConfigError: Spark is not started here, or its jars are not pgbridge's to choose.
        SparkLost: Spark does not start, or fails.
        BridgeError: The jars cannot be remembered, or Java makes no archive.
    """
    spark = Spark() if config is None else config.spark
    driver = session.driver_for(spark.master)
    if not driver.is_ours:
        raise ConfigError("there is nothing to prepare: a Spark Connect server has jars of its own")
    warehouses = [] if config is None else [subscription.warehouse for subscription in config.subscription.values()]
    settings = settings_here(spark.conf, warehouses)
    jars = delta_jars(settings)
    if jars is None:
        raise ConfigError("there is nothing to prepare: the environment, or spark.jars, says which jars Spark has")
    conf = {key: value for key, value in settings.items() if key.startswith(_DAEMONS)}
    with _explained(jars, environment):
        jars.folder.mkdir(parents=True, exist_ok=True)
        said = [f"Spark's packages are on this machine: {len(_fetched(jars, conf))} jars"]
        if driver.executors_here:  # on a cluster Ivy is asked each time, and sends executors the jars
            size_bytes = _archived(jars, conf)
            said.append(f"Spark starts with the classes in {jars.archive} ({size_text(size_bytes)})")
    return said


def _fetched(jars: DeltaJars, conf: dict[str, str]) -> list[str]:
    """Have Ivy fetch the jars, if they are not known."""
    if jars.known() is None:
        with _started(jars, conf):
            pass
    known = jars.known()
    if known is None:
        raise BridgeError(
            f"the jars are fetched, but cannot be remembered in {jars.record}",
            hint="see that the folder can be written, and that spark.jars.packages has fixed versions",
        )
    return known


def _archived(jars: DeltaJars, conf: dict[str, str]) -> int:
    """Have a JVM archive the classes that it has loaded for some commits; return the archive's size in bytes."""
    new = jars.archive.with_suffix(".new")  # what a command that was killed leaves is replaced by the next one
    try:
        with _started(jars, conf, new) as spark:
            for rows in _TABLES:
                warm_up(session.fork(spark), rows)
            spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()  # as a copy, by Python workers
        if not new.exists():
            raise BridgeError(
                "Java has made no archive of its classes", hint=f"see {_log_of(jars)}; pgbridge works without one"
            )
        size_bytes = new.stat().st_size
        new.replace(jars.archive)
    finally:
        new.unlink(missing_ok=True)
    return size_bytes


@contextmanager
def _started(jars: DeltaJars, conf: dict[str, str], new_archive: Path | None = None) -> Iterator[SparkSession]:
    """Spark, which has ended afterwards."""
    driver = Local("local[2]")
    spark = driver.start(conf, launch=Launch(_log_of(jars), new_archive=new_archive, folder=jars.folder))
    try:
        yield spark
    finally:
        ended = driver.end(spark, _ENDING_S)
    if not ended:  # an archive may be half written
        raise BridgeError(f"Spark's JVM has not ended within {_ENDING_S:g} s", hint=f"see {_log_of(jars)}")


@contextmanager
def _explained(jars: DeltaJars, environment: Mapping[str, str]) -> Iterator[None]:
    """Errors within, as people want them."""
    try:
        yield
    except OSError as error:
        raise BridgeError(f"{jars.folder} cannot be written: {error.strerror}", hint="correct HOME") from error
    except outcome.SPARK_ERRORS as error:
        raise not_started(error, environment, _log_of(jars)) from error


def _log_of(jars: DeltaJars) -> Path:
    return jars.folder / "prepare.log"

"""Does once what each start of Spark would take long for: fetches jars, and archives the classes that the JVM loads."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bridge.check.machine import not_started
from bridge.commands.status import size_text
from bridge.config.config import Config, Spark
from bridge.runtime.errors import BridgeError, ConfigError
from bridge.service.warm_up import MERGED_ROWS, ROWS, warm_up
from bridge.spark.driver import Local
from bridge.spark.launch import Launch, delta_jars
from bridge.spark.outcome import SPARK_ERRORS
from bridge.spark.session import driver_for, fork
from bridge.spark.settings import settings_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bridge.spark.jars import DeltaJars

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
    driver = driver_for(spark.master)
    if not driver.is_ours:
        raise ConfigError("there is nothing to prepare: a Spark Connect server has jars of its own")
    warehouses = [] if config is None else [one.warehouse for one in config.subscription.values()]
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
                warm_up(fork(spark), rows)
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
    spark = driver.start(conf, launch=Launch(_log_of(jars), new_archive=new_archive))
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
    except SPARK_ERRORS as error:
        raise not_started(error, environment, _log_of(jars)) from error


def _log_of(jars: DeltaJars) -> Path:
    return jars.folder / "prepare.log"

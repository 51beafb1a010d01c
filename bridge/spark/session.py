"""Spark's sessions: one for each process, forked for each subscription; and which driver they have."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark.sql.utils import is_remote

from pgbridge.bridge.config.spark_master import CONNECT
from pgbridge.bridge.runtime.errors import SparkLost, TargetError
from pgbridge.bridge.runtime.log import get
from pgbridge.bridge.runtime.threads import Turns
from pgbridge.bridge.spark.cluster import LOOK_INTERVAL_S, Cluster
from pgbridge.bridge.spark.connect import Connect
from pgbridge.bridge.spark.driver import DRIVERS, Conf, Driver, Local
from pgbridge.bridge.spark.launch import Launch
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, summary
from pgbridge.bridge.spark.settings import DEFAULTS, REQUIRED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pgbridge.bridge.config.config import Config, Subscription

_EXACT: Final = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.variable.substitute",
    "spark.sql.caseSensitive",
)
"""Settings that the values of changes and filters depend on."""

_companions: WeakKeyDictionary[SparkSession, dict[str, SparkSession]] = WeakKeyDictionary()
_lock = threading.Lock()


def driver_for(master: str) -> Driver:
    """Return a driver of the kind that a master asks for; it has not started."""
    kind = Connect if master.startswith(CONNECT) else Local if master.startswith("local") else Cluster
    return kind(master)


def driver_of(session: SparkSession) -> Driver:
    """Return the driver of a session, also of one that others have made."""
    driver = DRIVERS.get(session)
    if driver is None:
        DRIVERS[session] = driver = driver_for(CONNECT if is_remote() else str(session.sparkContext.master))
    return driver


def start(
    master: str = "local[*]",
    conf: Conf | None = None,
    *,
    warehouses: Collection[str] = (),
    log: Path | None = None,
) -> SparkSession:
    """Start Spark with Delta, or connect to a Spark Connect server (`master = "sc://…"`).

    At the first start on a machine Spark fetches Delta's jars from Maven Central, and those that the warehouses need.

    Args:
        master: Where Spark's tasks run.
        conf: Settings over `DEFAULTS`.
        warehouses: Where Delta tables are, as configured.
        log: Gets what Spark's processes print; None for this process's standard error.

    Raises:
        ConfigError: A warehouse is in Spark's own catalog, and that is in memory only.
    """
    return driver_for(master).start(conf or {}, warehouses, Launch(log))


def fork(session: SparkSession) -> SparkSession:
    """Return a session with its own settings and views, on the same cluster."""
    driver = driver_of(session)
    forked = driver.another(session)
    DRIVERS[forked] = driver
    return forked


def fork_exact(session: SparkSession) -> SparkSession:
    """Fork a session that others have started, with the settings that the values of changes and filters depend on."""
    forked = fork(session)
    for key in _EXACT:
        forked.conf.set(key, {**DEFAULTS, **REQUIRED}[key])
    return forked


def companion(session: SparkSession, name: str, settings: Mapping[str, str]) -> SparkSession:
    """Return the companion of a session by this name: a session with settings that differ. It is made once.

    What values depend on is as in the session, whose Spark others may have started.
    """
    with _lock:
        companions = _companions.setdefault(session, {})
        if name not in companions:
            made = fork(session)
            for key, value in {**{key: session.conf.get(key) for key in _EXACT}, **settings}.items():
                made.conf.set(key, str(value))
            companions[name] = made
        return companions[name]


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the JVM in this process, which PySpark has no other way to.

    Args:
        name: The class with its package. (For `jvm.a.b.C` py4j would look for the classes `a` and `a.b` first, in every
            jar: 2 ms for one of Delta's, instead of 0.05.)
    """
    return getattr(spark._jvm, name)  # noqa: SLF001


def scala_object(spark: SparkSession, name: str) -> Any:
    """Return an object of Scala's, named as a class is for `java_class`."""
    return getattr(java_class(spark, f"{name}$"), "MODULE$")


def interrupt(session: SparkSession, name: str | None = None) -> None:
    """Interrupt the running jobs of a session and of its companions; or of the companion of a name, if it was made."""
    with _lock:
        companions = dict(_companions.get(session, {}))
    for chosen in [session, *companions.values()] if name is None else [companions[name]] if name in companions else []:
        if driver_of(chosen).lost() is None:
            with contextlib.suppress(*SPARK_ERRORS, OSError):  # it may be gone
                chosen.interruptAll()


@contextlib.contextmanager
def told(session: SparkSession) -> Iterator[None]:
    """Turn Spark's errors into BridgeErrors, so that a damaged table of one subscription is told as its failure.

    Raises:
        SparkLost: Spark has ended.
        TargetError: Any other error of Spark.
    """
    try:
        yield
    except (*SPARK_ERRORS, ConnectionError) as error:  # py4j cannot connect to a JVM that has died
        driver = driver_of(session)
        if (lost := driver.lost(error)) is not None:
            raise SparkLost(f"{driver.loss}: {lost}", hint=driver.hint(lost)) from error
        if isinstance(error, ConnectionError):
            raise
        raise TargetError(summary(error)) from error


@contextlib.contextmanager
def command_session(
    config: Config, subscriptions: Sequence[Subscription], *, log: str, commits: bool = False
) -> Iterator[SparkSession]:
    """Start the session that the configuration describes.

    Args:
        subscriptions: Those whose tables are read.
        log: The name of the file, in the state directory, that gets what Spark prints.
        commits: The command commits to the tables in the daemon's place. It then waits for the JVM of a daemon that was
            killed, as a daemon does.
    """
    driver = driver_for(config.spark.master)
    warehouses = [subscription.warehouse for subscription in subscriptions]
    if sys.stderr.isatty():  # it takes some ten seconds, in which nothing else would be seen
        sys.stderr.write("starting Spark\n")
    with driver.lock(config.state_dir) if commits else contextlib.nullcontext() as keep_open:
        session = driver.start(
            config.spark.conf, warehouses, Launch(config.state_dir / log, keep_open, folder=config.state_dir)
        )
        try:
            with _watched(driver, session):
                yield session
        finally:
            driver.stop(session)


@contextlib.contextmanager
def _watched(driver: Driver, session: SparkSession) -> Iterator[None]:
    """Log what a command's jobs wait for: it would say nothing else."""
    watch = driver.watch(session, get())
    if watch is None:
        yield
        return

    told = set[str]()

    def look() -> float:
        if (why := watch()) is not None and why not in told:
            told.add(why)
            get().error(why, hint="stop this command and run it again, unless the cluster is to give executors yet")
        return LOOK_INTERVAL_S

    turns = Turns("watch", 0.0)
    turns.begin(look, LOOK_INTERVAL_S)
    try:
        yield
    finally:
        turns.end(look)

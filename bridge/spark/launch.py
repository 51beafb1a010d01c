"""Launches Spark's JVM on this machine: with Delta's jars, without asking Ivy for them each time.

Ivy resolves the same versions to the same files each time, which takes seconds. The record of a resolution lies in a
cache folder, `$XDG_CACHE_HOME/pgbridge` or `~/.cache/pgbridge`. It holds for one set of packages, as long as its files
are there and have their sizes. A user who has PySpark start another Spark, or names jars, gets PySpark's own start.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import unquote, urlsplit

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_VERSION = re.compile(r"-\d[^/]*\.jar$")
_RESOLUTION: Final = "spark.jars."
"""Settings that Ivy's answer depends on begin with this."""

_DYNAMIC = re.compile(r"SNAPSHOT|latest|[+\[\](]")
"""A version that may mean another file tomorrow."""


@dataclass(frozen=True, slots=True)
class DeltaJars:
    """The jars of one set of packages.

    Attributes:
        folder: The cache folder; it need not exist.
        packages: What Ivy is asked for: all settings and versions that its answer depends on.
    """

    folder: Path
    packages: Mapping[str, str]

    @property
    def record(self) -> Path:
        """The record's file."""
        return self.folder / f"jars-{self._hash}.json"

    @property
    def archive(self) -> Path:
        """The place of an archive of their classes, whether or not one was made."""
        return self.folder / f"classes-{self._hash}.jsa"

    @property
    def _hash(self) -> str:
        text = json.dumps(dict(self.packages), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def known(self) -> list[str] | None:
        """Return the jars' paths; None if no resolution is recorded, or if one of its files is missing or differs."""
        try:
            record: Any = json.loads(self.record.read_text(encoding="utf-8"))
            jars = [(str(path), int(size)) for path, size in record["jars"]]
            unchanged = all(Path(path).stat().st_size == size for path, size in jars)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return [path for path, _ in jars] if unchanged and jars else None

    def class_path(self, known: Sequence[str]) -> tuple[list[str], Path]:
        """The jars in an order for which there is an archive, if one was made; and its place.

        Without an archive of all of them, as with those that a store needs, Delta's jars come first: for its class
        path the archive of these alone is good, too.

        Args:
            known: Their paths.
        """
        if not self.archive.is_file():
            users = {name for name in self.packages if name.startswith(_RESOLUTION)}
            deltas = replace(self, packages={name: self.packages[name] for name in self.packages.keys() - users})
            first = deltas.known()
            if first is not None and frozenset(first).issubset(known):
                return list(dict.fromkeys((*first, *known))), deltas.archive
        return list(known), self.archive

    def remember(self, jars: Iterable[str]) -> None:
        """Record a resolution, as paths or `file:` URIs.

        It is left out if it may change, or if the folder cannot be written.
        """
        if any(_DYNAMIC.search(value) for value in self.packages.values()):
            return
        paths = [unquote(urlsplit(jar).path) for jar in jars]
        with contextlib.suppress(OSError):
            sizes = [(path, Path(path).stat().st_size) for path in paths]
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"packages": dict(self.packages), "jars": sizes}, indent=1)
            with tempfile.NamedTemporaryFile("w", dir=self.folder, encoding="utf-8", delete=False) as file:
                file.write(text)
            Path(file.name).rename(self.record)  # others see all of it or nothing


# --- An archive of the classes that Spark's JVM loads, so that later starts neither read nor verify them one by one.
#
# It is HotSpot's (JEP 350). The JVM uses it if it is of the same build, and if its class path begins with the same jars
# as the one that made it; else it starts as without it.

_OWN_CHOICE: Final = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_NO_WARNINGS: Final = "-Xlog:cds=error -Xlog:cds+dynamic=error"
"""An archive that does not suit a JVM is no matter, and one that is made leaves out classes by hundreds."""


def using_archive(options: str, archive: Path) -> str:
    """A JVM's options, so that it uses an archive if there is one. What they say of archives already stands."""
    if any(choice in options for choice in _OWN_CHOICE) or not archive.is_file():
        return options
    return _with(options, "SharedArchiveFile", archive)


def making_archive(options: str, archive: Path) -> str:
    """A JVM's options, so that it writes an archive when it ends."""
    kept = [option for option in options.split() if not any(choice in option for choice in _OWN_CHOICE)]
    return _with(" ".join(kept), "ArchiveClassesAtExit", archive)


def _with(options: str, name: str, archive: Path) -> str:
    escaped = str(archive).replace("\\", "\\\\").replace('"', '\\"')  # as Spark's launcher takes them apart
    return f'{options} -XX:{name}="{escaped}" {_NO_WARNINGS}'.lstrip()


SPARK_VERSION: Final[str] = pyspark.__version__

_SPARK_JARS: Final = Path(pyspark.__file__).parent / "jars"

_CLASS_PATH: Final = "SPARK_DIST_CLASSPATH"
"""Spark's launcher appends it to the class path: Spark's own jars come first, as they do with Ivy."""

_GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"

_OTHER_STARTS: Final = ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS", _GATEWAY_PORT, _CLASS_PATH)
"""Environment variables by which PySpark starts another Spark, or with other jars."""

_ADDRESSES: Final = ("spark.driver.host", "spark.driver.bindAddress")
_LOCAL_IP: Final = "SPARK_LOCAL_IP"

LOOPBACK: Final = "127.0.0.1"
"""Not `localhost`, whose address may be another one for each of those who look."""

_PACKAGES: Final = "spark.jars.packages"
_EXCLUDES: Final = "spark.jars.excludes"

_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"

_PYTHON: Final = "spark.pyspark.python"
_PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"

_FEW_CORES: Final = 2

_COLLECTOR: Final = "-XX:+UseParallelGC -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=50 -XX:MetaspaceSize=256m"
"""On few cores a collector that works beside Spark's tasks takes their time: a tenth of a small commit's. One that
stops them, and then has all cores, takes less than one that has one core. Without a bound of what is free the heap
grows to a gigabyte while a hundred megabytes live, and no time is saved by that. Metaspace of the size that Spark's
classes need is not collected while they are loaded."""

_COMPILER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000"
)
"""Ten times as many calls as by default, before a method is compiled for the second time. Under a small load methods
reach Java's own limits one after the other, for hours: a quarter of the CPU time of a young JVM. Loops over rows reach
these in a second."""

ON_FEW_CORES: Final = f"{_COLLECTOR} {_COMPILER}"
"""The JVM's options with at most `_FEW_CORES`, if the user gives none."""

_FETCHES: Final = "Spark fetches its jars from Maven Central, once; `pgbridge prepare` does so beforehand"

_DOWNLOADS: Final = 3
_DOWNLOADS_WITHIN_S: Final = 60.0
"""A machine without access to Maven Central is told soon."""

_TOLD_EVERY_S: Final = 5.0

_LOG_BYTES: Final = 10 << 20
"""A log of this size is set aside at the next start, as `<name>.1`."""


def is_own_spark() -> bool:
    """Whether PySpark starts the Spark that it brings."""
    return not any(name in os.environ for name in _OTHER_STARTS)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a JVM is launched.

    Attributes:
        log: Gets what Ivy, the JVM and the Python workers print; None for this process's standard error.
        keep_open: A file descriptor that the JVM inherits, so that it has the file open until it ends.
        new_archive: Where it writes an archive of its classes when it ends, if Delta's jars are known; None to use the
            archive that was made of them (see `prepare`).
        folder: Gets what else Spark leaves; None for the current folder, as in a program of somebody's own.
    """

    log: Path | None = None
    keep_open: int | None = None
    new_archive: Path | None = None
    folder: Path | None = None


class Starting:
    """A start of Spark as it goes on.

    Args:
        log: The file that gets what Ivy and the JVM print.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._before_bytes = log.stat().st_size if log.exists() else 0
        self._begun_s = self._told_s = time.monotonic()

    def news(self) -> dict[str, object]:
        """What to tell of it, every few seconds, as the fields of a log line; nothing in between."""
        if (now_s := time.monotonic()) < self._told_s + _TOLD_EVERY_S:
            return {}
        self._told_s = now_s
        try:
            printed = self._log.read_bytes()
        except OSError:
            printed = b""
        printed = printed[self._before_bytes if len(printed) >= self._before_bytes else 0 :]  # it may be a new file
        told: dict[str, object] = {"seconds": round(now_s - self._begun_s)}
        if jars := printed.count(b"\tfound "):
            told["jars"] = jars
        if b"\ndownloading " in printed:
            told |= {"jars_fetched": printed.count(b"[SUCCESSFUL ]"), "hint": _FETCHES}
        return told


def start_local(master: str, settings: Mapping[str, str], launch: Launch) -> SparkSession:
    """Start Spark in a JVM on this machine, or return the session if it runs.

    Args:
        master: Where its tasks run.
        settings: Spark's settings.
        launch: How the JVM is launched.
    """
    own = dict(settings)
    if (os.cpu_count() or 1) <= _FEW_CORES:
        own.setdefault(_JVM_OPTIONS, ON_FEW_CORES)
    jars = delta_jars(settings)
    known = None if jars is None else jars.known()
    with _on_loopback(own):
        if jars is None or known is None:
            session = _downloading(lambda: start_by_ivy(master, own, launch))
            if jars is not None:
                jars.remember((session.sparkContext.getConf().get("spark.jars") or "").split(","))
            return session
        own.pop(_PACKAGES, None)
        options, new = own.get(_JVM_OPTIONS, ""), launch.new_archive
        if new:
            own[_JVM_OPTIONS] = making_archive(options, new)
        else:
            known, archive = jars.class_path(known)
            own[_JVM_OPTIONS] = using_archive(options, archive)
        with _environment(_CLASS_PATH, os.pathsep.join(known)):
            return started(_builder(master, own), launch)


def start_by_ivy(master: str, settings: Mapping[str, str], launch: Launch) -> SparkSession:
    """Start Spark as PySpark does: Ivy finds Delta's jars, and sends them to executors."""
    return started(with_packages(_builder(master, settings), settings), launch)


def _downloading(start: Callable[[], SparkSession]) -> SparkSession:
    """Start Spark, and again if the JVM ends at once: Ivy gives up at the first download that is cut off."""
    stop = stop_after_attempt(_DOWNLOADS) | stop_after_delay(_DOWNLOADS_WITHIN_S)
    return Retrying(retry=retry_if_exception(_has_not_begun), stop=stop, reraise=True)(start)


def _has_not_begun(error: BaseException) -> bool:
    return isinstance(error, PySparkRuntimeError) and error.getCondition() == "JAVA_GATEWAY_EXITED"


def started(builder: SparkSession.Builder, launch: Launch) -> SparkSession:
    """Start Spark as a builder says, or return the session if it runs."""
    settings = builder._options  # noqa: SLF001 - PySpark launches the JVM by them, and offers no way to redirect it
    choose_python(settings)
    if launch.log is not None and SparkContext._gateway is None and _GATEWAY_PORT not in os.environ:  # noqa: SLF001
        conf = SparkConf(loadDefaults=False)
        for key, value in settings.items():
            conf.set(key, value)
        with _opened(launch.log) as output:
            inherited = () if launch.keep_open is None else (launch.keep_open,)
            options = {"stdout": output, "stderr": subprocess.STDOUT, "pass_fds": inherited}
            gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as SparkContext(gateway=…) does
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    return session


def choose_python(settings: Mapping[str, str]) -> None:
    """Have PySpark use a Python for executors: the configuration's, the environment's, or the path of this one.

    PySpark takes it from the environment only, when its context is made.
    """
    os.environ[_PYTHON_VARIABLE] = settings.get(_PYTHON) or os.environ.get(_PYTHON_VARIABLE) or sys.executable


def _opened(log: Path) -> BinaryIO:
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return os.fdopen(descriptor, "ab")


def with_packages(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    """Have Ivy resolve Delta, and the user's packages beside it.

    What PySpark's Spark has itself, in whatever version, is not fetched: Spark's class loader takes its own first.
    """
    packages, excludes = ([name for name in settings.get(key, "").split(",") if name] for key in (_PACKAGES, _EXCLUDES))
    if is_own_spark():
        named = {part for name in packages for part in re.split("[:/]", name)}
        artifacts = {_VERSION.sub("", jar.name) for jar in _SPARK_JARS.iterdir()}
        excludes += (f"*:{artifact}" for artifact in sorted(artifacts - named))
    return configure_spark_with_delta_pip(builder.config(_EXCLUDES, ",".join(excludes)), packages)


def _builder(master: str, settings: Mapping[str, str]) -> SparkSession.Builder:
    builder = SparkSession.builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


@contextlib.contextmanager
def _on_loopback(settings: dict[str, str]) -> Iterator[None]:
    """Have a JVM that is launched within listen on loopback alone, unless the settings say where.

    Its ports run what they are sent, without asking for a password.
    """
    if names_address(settings, os.environ):
        yield
        return
    settings.update(dict.fromkeys(_ADDRESSES, LOOPBACK))
    with _environment(_LOCAL_IP, LOOPBACK):  # where its UI listens
        yield


def names_address(settings: Mapping[str, object], environment: Mapping[str, str]) -> list[str]:
    """Return the addresses that settings or the environment give a JVM on this machine."""
    named = [str(settings[name]) for name in _ADDRESSES if name in settings]
    return [*named, *([environment[_LOCAL_IP]] if _LOCAL_IP in environment else [])]


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Have a JVM that is launched within have an environment variable that this process does not have."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def delta_jars(settings: Mapping[str, str]) -> DeltaJars | None:
    """Return the jars that Ivy finds for Delta and the user's packages; None if they are not ours to give."""
    if "spark.jars" in settings or not is_own_spark():
        return None
    asked = {key: value for key, value in settings.items() if key.startswith(_RESOLUTION)}
    asked |= {"pyspark": pyspark.__version__, "delta-spark": importlib.metadata.version("delta-spark")}
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return None
    return DeltaJars(cache / "pgbridge", asked | {"jars": str(_SPARK_JARS)})

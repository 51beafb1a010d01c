"""The bridge under test: in this process on the shared Spark session, or as a daemon of its own that may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from unittest import mock

import psutil
import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.config import Config, Subscription
from tests.bridge.configurations import placed
from tests.fix_spark import YOUNG_JVM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from pgbridge.bridge.service.subscriber import SubscriptionWorker
    from pgbridge.protocol.lsn import Lsn
    from tests.fix_postgres import Publisher
    from tests.oracle.memory_tables import MemoryTables

ROOT = Path(__file__).parents[1]
_CATCH_UP_TIMEOUT_S = 240


class Source(Protocol):
    """What a subscription needs to know of its publisher; `Publisher` is one."""

    @property
    def name(self) -> str:
        """The name of the subscription."""

    @property
    def conninfo(self) -> str:
        """A libpq connection string."""


class Pipeline:
    """One subscription run in this process: each `catch_up` is one life of it, as `run --until-caught-up`."""

    def __init__(self, spark: SparkSession | MemoryTables, publisher: Source, folder: Path, **options: Any) -> None:
        self.spark: Any = spark
        self.folder = folder
        given = {"batch__max_age_s": 0.0, "publications": ("pub",), "warehouse": str(folder / "lake"), **options}
        self.subscription = Subscription(name=publisher.name, connection=publisher.conninfo, **placed(given))
        self.catalog = Catalog(catalog_path(folder / "state"))
        self.catalog.register(self.subscription.name, enabled=True)

    def worker(self, *, until_caught_up: bool = True) -> SubscriptionWorker:
        """A worker that is not started yet."""
        from pgbridge.bridge.service.subscriber import SubscriptionWorker
        from pgbridge.bridge.spark.session import fork

        session = fork(self.spark)
        worker = SubscriptionWorker(self.subscription, session, self.catalog, until_caught_up=until_caught_up)
        stop = worker._commit_log.stop
        # what a daemon appends at the end takes a second of each of a thousand lives
        worker._commit_log.stop = lambda **_: stop()  # type: ignore[method-assign]
        return worker

    def catch_up(self) -> None:
        """Run until everything the publisher has flushed is applied.

        Raises:
            Exception: What the worker failed with.
        """
        worker = self.worker()
        worker.thread.start()
        worker.thread.join(_CATCH_UP_TIMEOUT_S)
        if worker.thread.is_alive():
            worker.stop()
            pytest.fail(f"not caught up in {_CATCH_UP_TIMEOUT_S} s: {self.catalog.last_error(self.subscription.name)}")
        if worker.error is not None:
            raise worker.error

    def path(self, table: str) -> str:
        """The location of a table's Delta table, by `namespace.name` or a name in public."""
        rels = {rel.qualified_name: rel.path for rel in self.catalog.rels(self.subscription.name)}
        return rels[table if "." in table else f"public.{table}"]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """A table's rows."""
        from tests.oracle.delta import delta_table

        rows: list[dict[str, Any]] = delta_table(self.spark, self.path(table)).to_pylist()
        return rows

    def state(self, table: str) -> str:
        """A table's state."""
        return {rel.name: rel.state for rel in self.catalog.rels(self.subscription.name)}[table]

    def commits(self, table: str) -> list[dict[str, Any]]:
        """A Delta table's log, a dictionary of actions for each version; of one in memory, what that has of it."""
        if log := getattr(self.spark, "log", None):
            commits: list[dict[str, Any]] = log(self.path(table))
            return commits
        files = sorted(Path(self.path(table), "_delta_log").glob("*.json"))
        return [
            {key: value for line in file.read_text().splitlines() for key, value in json.loads(line).items()}
            for file in files
        ]

    def remote_lsn(self) -> Lsn:
        """The origin's LSN."""
        lsn = self.catalog.remote_lsn(self.subscription.name)
        assert lsn is not None
        return lsn


class WithoutCommitLog(Pipeline):
    """A subscription without the table of its commits, which has nothing of the rows and costs as much as they do."""

    def worker(self, *, until_caught_up: bool = True) -> SubscriptionWorker:
        """A worker that is not started yet."""
        worker = super().worker(until_caught_up=until_caught_up)
        worker._commit_log = mock.create_autospec(worker._commit_log)
        return worker


_OF_A_JVM = {"spark.driver.memory": "1g", **YOUNG_JVM}


class DaemonProcess:
    """`python -m bridge run` in a folder with a pgbridge.toml; its log is `daemon.log` there."""

    def __init__(
        self,
        folder: Path,
        publisher: Publisher,
        name: str = "sub",
        *,
        master: str = "local[2]",
        spark_conf: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        self.folder = folder
        self.name = name
        self.log = folder / "daemon.log"
        self.config = folder / "pgbridge.toml"
        self.program = (sys.executable, "-m", "pgbridge")
        self._process: subprocess.Popen[bytes] | None = None
        options = {"connection": publisher.conninfo, "publications": ["pub"], "warehouse": "./lake", **options}
        own = {} if master.startswith("sc://") else _OF_A_JVM
        lines = [
            'state_dir = "./state"',
            "[spark]",
            f"master = {json.dumps(master)}",
            "[spark.conf]",
            *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in {**own, **spark_conf}.items()),
            f"[subscription.{name}]",
            *(f"{key.replace('__', '.')} = {json.dumps(value)}" for key, value in options.items()),
        ]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self, *arguments: str, fault: str | None = None) -> None:
        """Start it; `fault` is a fault point (and count) at which it kills itself."""
        environment = dict(os.environ)
        environment.pop("PGBRIDGE_FAULT", None)
        if fault:
            environment["PGBRIDGE_FAULT"] = fault
        command = [*self.program, "run", "--config", str(self.config), *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def jvms(self) -> list[psutil.Process]:
        """Its JVM, in a list; none while it has none."""
        return [child for child in psutil.Process(self.pid).children() if child.name() == "java"]

    def wait(self, timeout_s: float = 600) -> int:
        """Its exit code; minus the signal's number when a signal ended it."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the daemon did not end in {timeout_s} s:\n{self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self, timeout_s: float = 120) -> int:
        """SIGTERM, and its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def run_until_caught_up(self, *, fault: str | None = None) -> int:
        """A whole run."""
        self.start("--until-caught-up", fault=fault)
        return self.wait()

    def end(self) -> None:
        """Make sure it is gone."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def wait_for(self, text: str, timeout_s: float = 180) -> None:
        """Wait until the log holds a text that it did not hold at the start of this call."""
        assert self._process is not None
        begin = self.log.stat().st_size
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self.log.open("rb") as log:
                log.seek(begin)
                if text.encode() in log.read():
                    return
            if self._process.poll() is not None:
                pytest.fail(f"the daemon ended before it logged {text!r}:\n{self.log_tail()}")
            time.sleep(0.1)
        pytest.fail(f"the daemon did not log {text!r} in {timeout_s} s:\n{self.log_tail()}")

    def status(self) -> dict[str, Any]:
        """The subscription's entry in `pgbridge status --json`."""
        command = [sys.executable, "-m", "pgbridge", "status", "--json", "--config", str(self.config)]
        document = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
        entry: dict[str, Any] = next(item for item in document["subscriptions"] if item["name"] == self.name)
        return entry

    def log_tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:]

    def path(self, table: str) -> str:
        """Where a table of public is."""
        return str(self.folder / "lake" / "public" / table)


@pytest.fixture
def pipeline(spark: SparkSession, publisher: Publisher, tmp_path: Path) -> Iterator[Any]:
    """Makes `Pipeline`s over the test's publisher: `pipeline(**options)`; options are the subscription's."""
    yield from _pipelines(Pipeline, spark, publisher, tmp_path)


def _pipelines(kind: type[Pipeline], spark: Any, publisher: Publisher, folder: Path) -> Iterator[Any]:
    made: list[Pipeline] = []

    def make(**options: Any) -> Pipeline:
        made.append(kind(spark, publisher, folder / f"pipeline{len(made)}", **options))
        return made[-1]

    yield make
    for item in made:
        item.catalog.close()


@pytest.fixture
def tables() -> Iterator[MemoryTables]:
    """What stands for a Spark session where Delta has no part in a test: its tables are in memory."""
    from tests.oracle.memory_tables import in_memory

    with in_memory() as made:
        yield made


@pytest.fixture
def memory_pipeline(tables: MemoryTables, publisher: Publisher, tmp_path: Path) -> Iterator[Any]:
    """As `pipeline`, with `tables`."""
    yield from _pipelines(WithoutCommitLog, tables, publisher, tmp_path)


@pytest.fixture
def daemon(publisher: Publisher, tmp_path: Path) -> Iterator[Any]:
    """Makes `DaemonProcess`es over the test's publisher: `daemon(**options)`."""
    made: list[DaemonProcess] = []

    def make(**options: Any) -> DaemonProcess:
        folder = tmp_path / f"daemon{len(made)}"
        folder.mkdir()
        made.append(DaemonProcess(folder, publisher, **options))
        return made[-1]

    yield make
    for item in made:
        item.end()


def config_of(pipeline: Pipeline) -> Config:
    """A whole configuration with a pipeline's subscription."""
    return Config(state_dir=pipeline.folder / "state", subscription={pipeline.subscription.name: pipeline.subscription})

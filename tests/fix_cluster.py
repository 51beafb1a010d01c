"""A standalone Spark cluster for the run: a master and two workers from the pip package's jars, on loopback."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pyspark
import pytest

from pgbridge.bridge.runtime.threads import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

WORKERS: Final = 2
_SPARK_HOME: Final = Path(pyspark.__file__).parent
_STARTS_WITHIN_S: Final = 180.0
_POLL_S: Final = 0.05
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_MASTER_OPTIONS: Final = "-Dspark.master.rest.enabled=false"  # else it takes port 6066
_YOUNG: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkCluster(Closing):
    """A master and workers, each a process of its own, that can be killed and started.

    Args:
        folder: For logs and the executors' working folders.
        workers: How many, each with one core.
        memory: A worker's, for its executors.

    Attributes:
        master: Its URL, as `[spark] master`.
    """

    def __init__(self, folder: Path, workers: int = WORKERS, memory: str = "1g") -> None:
        self.folder = folder
        self._memory = memory
        self._workers: list[psutil.Popen | None] = [None] * workers
        self._starts = 0
        self._master = self._start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master: str = self._logged(r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            self.start_worker(number)

    def settings(self) -> dict[str, str]:
        """What an operator writes into [spark.conf] for a driver on loopback."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _YOUNG,
        }

    def start_worker(self, number: int) -> None:
        """Start a worker that does not run, and wait until the master has it."""
        self._workers[number] = self._start(
            "worker.Worker",
            *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", self._memory),
            *("--work-dir", str(self.folder / f"work{number}"), self.master),
        )
        self._logged("Successfully registered with master")

    def kill_worker(self, number: int) -> None:
        """`kill -9` a worker; its executors notice, and end."""
        worker = self._workers[number]
        assert worker is not None
        worker.kill()
        worker.wait()
        self._workers[number] = None

    def running(self) -> list[int]:
        """The numbers of the workers that run."""
        return [number for number, worker in enumerate(self._workers) if worker is not None]

    def workers(self) -> list[psutil.Process]:
        """The workers that run."""
        return [worker for worker in self._workers if worker is not None]

    def executors(self) -> list[psutil.Process]:
        """The executors of all applications."""
        return executors_of(self.workers())

    def close(self) -> None:
        """End all of it."""
        for process in [*self.executors(), *self.workers(), self._master]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait()

    def _start(self, name: str, *arguments: str) -> psutil.Popen:
        self._starts += 1
        command = [str(_SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        environment = {**os.environ, **_environment(self.folder)}
        with self._log.open("wb") as log:
            return psutil.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def _log(self) -> Path:
        """The log of the process that was started last."""
        return self.folder / f"{self._starts}.log"

    def _logged(self, pattern: str) -> str:
        end_s = time.monotonic() + _STARTS_WITHIN_S
        while time.monotonic() < end_s:
            if found := re.search(pattern, self._log.read_text(errors="replace")):
                return found[found.re.groups]
            time.sleep(_POLL_S)
        pytest.fail(f"the cluster does not start:\n{self._log.read_text(errors='replace')[-2000:]}")


def executors_of(workers: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The executors of some workers."""
    found = []
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child for child in worker.children() if _EXECUTOR in " ".join(_arguments(child))]
    return found


def _environment(folder: Path) -> Mapping[str, str]:
    return {
        "SPARK_HOME": str(_SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _YOUNG,
        "SPARK_MASTER_OPTS": _MASTER_OPTIONS,
    }


def _arguments(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """The cluster; it starts with the first test that asks for it."""
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found

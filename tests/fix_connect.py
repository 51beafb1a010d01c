"""A Spark Connect server of the run, from the pip package, which tests may kill and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pgbridge.bridge.runtime.threads import Closing
from tests.fix_spark import YOUNG_JVM

if TYPE_CHECKING:
    from collections.abc import Iterator

_STARTS_WITHIN_S: Final = 120.0
_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer(Closing):
    """`spark-submit --class …SparkConnectServer` on this machine, with Delta.

    Attributes:
        port: Where it listens, also after it was started again.
        log: What it prints.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.log = folder / "server.log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def master(self) -> str:
        """For `[spark]`."""
        return f"sc://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The JVM's process id: spark-submit becomes it."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start it, if it does not run."""
        if self._process is None or self._process.poll() is not None:
            environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSP"))}
            environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(self._folder / "local")}
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command(environment),
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        end_s = time.monotonic() + _STARTS_WITHIN_S
        while wait and not self._answers():
            if time.monotonic() > end_s or self._process.poll() is not None:
                pytest.fail(f"the Spark Connect server does not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: it does not answer, and goes on after `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self.kill()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _command(self, environment: dict[str, str]) -> list[str]:
        import pyspark
        from pyspark.sql import SparkSession

        from pgbridge.bridge.spark import launch
        from pgbridge.bridge.spark.settings import REQUIRED

        settings = {
            **{key: value for key, value in REQUIRED.items() if "extensions" in key or "catalog" in key},
            **YOUNG_JVM,
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
        }
        jars = launch.delta_jars({})
        known = jars.known() if jars is not None else None
        if jars is not None and known is not None:
            environment["SPARK_DIST_CLASSPATH"] = os.pathsep.join(known)
            options = settings["spark.driver.extraJavaOptions"]
            settings["spark.driver.extraJavaOptions"] = launch.using_archive(options, jars.archive)
        else:
            builder = launch.with_packages(SparkSession.builder, {})
            settings["spark.jars.packages"] = builder._options["spark.jars.packages"]
        program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        return [str(program), "--class", _CLASS, "--master", "local[2]", *words, "spark-internal"]


@pytest.fixture(scope="session")
def one_connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """The server of the run."""
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture
def connect_server(one_connect_server: ConnectServer) -> ConnectServer:
    """The server, running: a test before may have killed it."""
    one_connect_server.start()
    return one_connect_server

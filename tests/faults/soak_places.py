"""Where a run of random faults has its Spark and its tables: each kind with the faults that only it has."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

import psutil

from pgbridge.bridge.runtime.threads import Closing
from tests.faults.load import TABLES
from tests.faults.s3_proxy import S3Proxy
from tests.fix_cluster import SparkCluster
from tests.fix_connect import ConnectServer
from tests.fix_s3 import ACCESS_KEY, SECRET_KEY, Bucket, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.faults.s3_proxy import Fault
    from tests.faults.soaked_daemon import Daemon

Faults = dict[str, tuple[int, "Callable[[], None]"]]
"""By name: a weight, and what happens."""

_DRIVER: Final = {"spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}


class Place(Closing):
    """This machine: Spark in one JVM, tables on the local disk. Other kinds derive from it.

    Args:
        folder: For what the kind starts, not for the daemon.
        chance: Decides among the faults.

    Attributes:
        master: For the configuration, as all that follows.
        conf: [spark.conf].
        warehouse: The subscription's.
        reads: Settings with which a Spark on this machine reads the tables at the end.
        local: Whether the tables are in a folder that any process of this machine may write to.
        beside: Whether there are cores for `pgbridge verify` beside the daemon.
    """

    master: str = "local[2]"
    warehouse: str = "./lake"
    local: bool = True
    beside: bool = True

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.conf: Mapping[str, str] = _DRIVER
        self.reads: Mapping[str, str] = {}

    def faults(self) -> Faults:
        """The faults that this kind adds."""
        return {}

    def heal(self) -> None:
        """End the faults that last."""

    def table(self, daemon_folder: Path, name: str) -> str:
        """Where a table of public is."""
        return str(daemon_folder / "lake" / "public" / name)

    def log_files(self, daemon_folder: Path) -> int:
        """The number of files in the `_delta_log` that has most of them, of all tables."""
        return max(
            (sum(1 for _ in log.iterdir()) for log in (daemon_folder / "lake").glob("*/*/_delta_log")), default=0
        )

    def jvm(self, daemon: Daemon) -> psutil.Process | None:
        """Spark's driver; None if it does not run."""
        return daemon.java()

    def close(self) -> None:
        """End what was started."""


class OnCluster(Place):
    """A standalone cluster of a master and two workers, of which the daemon takes all cores."""

    beside = False

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self._cluster = SparkCluster(folder)
        self.master = self._cluster.master
        self.conf = {**_DRIVER, **self._cluster.settings()}

    def faults(self) -> Faults:
        """Kills of executors and of workers; the master decides where new executors run."""
        return {
            "kill -9 of an executor": (4, self._kill_executor),
            "kill -9 of all executors": (2, self._kill_executors),
            "kill -9 of a worker, another after 5 s": (4, lambda: self._kill_workers(1)),
            "kill -9 of both workers, others after 5 s": (2, lambda: self._kill_workers(2)),
        }

    def _kill_executor(self) -> None:
        if executors := self._cluster.executors():
            self.chance.choice(executors).kill()

    def _kill_executors(self) -> None:
        for executor in self._cluster.executors():
            executor.kill()

    def _kill_workers(self, count: int) -> None:
        numbers = self.chance.sample(self._cluster.running(), count)
        for number in numbers:
            self._cluster.kill_worker(number)
        time.sleep(5)
        for number in numbers:
            self._cluster.start_worker(number)

    def close(self) -> None:
        """End the cluster."""
        self._cluster.close()


class OnS3(Place):
    """Spark in one JVM here, tables on an S3 server behind a proxy."""

    local = False

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self._server = S3Server(folder)
        self._proxy = S3Proxy(self._server.port)
        bucket = Bucket("soak", self._proxy)
        self._server.make_bucket(bucket.name)
        self.warehouse = bucket.warehouse
        keys = {"fs.s3a.access.key": ACCESS_KEY, "fs.s3a.secret.key": SECRET_KEY}
        self.reads = {f"spark.hadoop.{key}": value for key, value in (bucket.settings() | keys).items()}
        self.conf = {**_DRIVER, **self.reads}

    def faults(self) -> Faults:
        """What a store does on bad days; a request may arrive although its answer does not."""
        return {
            "S3 answers a third by 503 for 10 s": (3, lambda: self._failing(0.33, ("slow down",))),
            "S3 cuts a third of the connections for 10 s": (
                3,
                lambda: self._failing(0.33, ("cut before", "cut after")),
            ),
            "S3 is away for 10 s": (2, lambda: self._failing(1.0, ("cut before",))),
            "S3 keeps its answers for 10 s": (2, lambda: self._failing(1.0, ("cut after",))),
            "S3 slow for 10 s": (2, self._slow),
        }

    def _failing(self, share: float, kinds: tuple[Fault, ...]) -> None:
        seeded = random.Random(self.chance.random())
        self._proxy.fault = lambda _method, _path: seeded.choice(kinds) if seeded.random() < share else None
        time.sleep(10)
        self.heal()

    def _slow(self) -> None:
        self._proxy.delay_s = 0.1
        time.sleep(10)
        self.heal()

    def heal(self) -> None:
        """Let every request pass."""
        self._proxy.heal()

    def table(self, daemon_folder: Path, name: str) -> str:
        """Where a table of public is."""
        del daemon_folder
        return f"{self.warehouse}/public/{name}"

    def log_files(self, daemon_folder: Path) -> int:
        """As on a disk."""
        del daemon_folder
        logs = (f"{self.warehouse.removeprefix('s3a://')}/public/{name}/_delta_log" for name in TABLES)
        return max(self._server.count_files(log) for log in logs)

    def close(self) -> None:
        """End the server and its proxy."""
        self._proxy.close()
        self._server.close()


class OnConnect(Place):
    """A Spark Connect server on this machine, which is killed and frozen; the daemon has no JVM."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self._server = ConnectServer(folder)
        self._server.start()
        self.master, self.conf = self._server.master, {}

    def faults(self) -> Faults:
        """What happens to a server that others look after."""
        return {
            "kill -9 of the Connect server, started after 5 s": (3, self._kill),
            "the Connect server frozen for 10 s": (3, self._freeze),
        }

    def _kill(self) -> None:
        self._server.kill()
        time.sleep(5)
        self._server.start()

    def _freeze(self) -> None:
        self._server.freeze()
        time.sleep(10)
        self._server.thaw()

    def jvm(self, daemon: Daemon) -> psutil.Process | None:
        """The server."""
        del daemon
        return psutil.Process(self._server.pid)

    def close(self) -> None:
        """End the server."""
        self._server.close()


PLACES: Final[Mapping[str, type[Place]]] = {"local": Place, "cluster": OnCluster, "s3": OnS3, "connect": OnConnect}
"""The kinds by name, for `--kind`."""

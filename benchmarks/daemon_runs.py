"""The measured process of catch_up: runs the daemon until it has caught up, for one folder after the other.

It is the daemon as `pgbridge run --until-caught-up` has it, except that Spark stays for the next run. Thus the first
run is that of a JVM that has just started, and later ones are those of a JVM that has applied changes before.
`python -m benchmarks.daemon_runs` takes a `Job` in JSON from each line of its standard input, and answers each with a
line, an `Applied` in JSON, on its standard output.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import sys
import threading
import time
import traceback
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import psutil

from benchmarks.bridge_folder import NAME, BridgeFolder
from benchmarks.checksum import in_delta
from benchmarks.disturbed import busy_s, stolen_s
from benchmarks.processes import Meter, tree_cpu_s
from pgbridge.bridge.config.config import load
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.supervisor import StopSignals
from pgbridge.bridge.service.daemon import Daemon
from pgbridge.bridge.spark import session
from pgbridge.bridge.spark.driver import Driver
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Job:
    """A folder whose subscription is to catch up.

    Attributes:
        folder: The folder, as `BridgeFolder` has it.
        end_lsn: The run's time ends when this LSN is durable.
        tables: The tables to compute checksums of afterwards, with their columns.
        server_pid: The publisher's postmaster.
        rest_s: Pause before the run.
    """

    folder: str
    end_lsn: str
    tables: dict[str, list[tuple[str, str]]]
    server_pid: int
    rest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Applied:
    """The measurement, from the daemon's start (with Spark there) until the LSN is durable.

    Attributes:
        seconds: Wall clock.
        stolen_s: CPU time that the host gave to others.
        others_s: CPU time of this machine's processes that do not belong to the run.
        python_cpu_s: See `processes.Usage`, as the next four.
        jvm_cpu_s: …
        python_peak_bytes: …
        jvm_peak_bytes: …
        written_bytes: …
        checksums: Of the Delta tables, by name.
    """

    seconds: float
    stolen_s: float
    others_s: float
    python_cpu_s: float
    jvm_cpu_s: float
    python_peak_bytes: int
    jvm_peak_bytes: int
    written_bytes: int
    checksums: dict[str, tuple[int, int]]


class _Watch:
    """Watches a folder's catalog in a thread of its own, and measures until an LSN is durable."""

    def __init__(self, folder: BridgeFolder, end_lsn: Lsn, server_pid: int) -> None:
        self._folder, self._end_lsn = folder, end_lsn
        self._server = psutil.Process(server_pid)
        self._over = threading.Event()
        self.measured: dict[str, float] | None = None
        self._meter = Meter(os.getpid())
        self._stolen_s, self._others_s = stolen_s(), busy_s() - tree_cpu_s(self._server)
        self._started_s = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with closing(self._folder.catalog()) as catalog:
            while not self._over.wait(_POLL_S):
                if self._take((catalog.remote_lsn(NAME) or 0) >= self._end_lsn):
                    return
            self._take((catalog.remote_lsn(NAME) or 0) >= self._end_lsn)

    def _take(self, durable: bool) -> bool:
        if durable:
            seconds = time.perf_counter() - self._started_s
            usage = self._meter.usage()
            others_s = busy_s() - tree_cpu_s(self._server) - self._others_s - usage.python_cpu_s - usage.jvm_cpu_s
            self.measured = {
                "seconds": seconds,
                "stolen_s": stolen_s() - self._stolen_s,
                "others_s": max(0.0, others_s),
                **dataclasses.asdict(usage),
            }
        return durable

    def end(self) -> None:
        """The daemon has ended."""
        self._over.set()
        self._thread.join()


def catch_up(job: Job) -> Applied:
    """Run the daemon until its subscription has caught up.

    Raises:
        RuntimeError: It failed, or ended before the LSN was durable.
    """
    folder, end_lsn = BridgeFolder(Path(job.folder)), Lsn.parse(job.end_lsn)
    config = load(folder.config_file)
    spark: SparkSession = session.start(config.spark.master, config.spark.conf)
    time.sleep(job.rest_s)
    with mock.patch.object(Driver, "stop"):  # Spark stays
        watch = _Watch(folder, end_lsn, job.server_pid)
        try:
            code = Daemon(config, StopSignals(), until_caught_up=True).run()
        finally:
            watch.end()
    if code != 0 or watch.measured is None:
        raise RuntimeError(f"the daemon ended with {code} before {end_lsn}: {folder.last_error()}")
    return Applied(**watch.measured, checksums=in_delta(spark, job.tables, folder.paths()))  # type: ignore[arg-type]


def main() -> None:
    """Answer each line."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that the JVM's output is not among the answers
        log.configure()
        lines: queue.Queue[str | None] = queue.Queue()
        idle = threading.Event()
        idle.set()
        threading.Thread(target=_read, args=(lines, idle), name="read", daemon=True).start()
        while (line := lines.get()) is not None:
            idle.clear()
            try:
                applied = catch_up(Job(**json.loads(line)))
            except Exception:  # noqa: BLE001 - told while the answers are open: the caller reads the log when they end
                traceback.print_exc()
                sys.exit(1)
            print(json.dumps(dataclasses.asdict(applied)), file=answers, flush=True)
            idle.set()


def _read(lines: queue.Queue[str | None], idle: threading.Event) -> None:
    """Hand over the lines of standard input; if it ends during a run, nobody wants the result any more."""
    for line in sys.stdin:
        lines.put(line)
    if not (idle.is_set() and lines.empty()):
        os._exit(1)
    lines.put(None)


if __name__ == "__main__":
    main()

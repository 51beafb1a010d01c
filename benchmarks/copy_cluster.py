"""The initial copy on a standalone cluster: how long it takes, and what goes by the driver.

`python -m benchmarks.copy_cluster` starts a master and one or two workers on this machine, fills W1's table on a
private server, and copies it with the bridge's own `TableSync`, each time with a driver of its own. Spark's event log
tells what the executors have sent to the driver and what they have written.
"""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer

from benchmarks import report
from benchmarks.copy import FilledTable, check, copy_to, fill
from benchmarks.processes import Meter
from benchmarks.workloads import SETTINGS
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.spark import session
from tests.fix_cluster import SparkCluster

_WARM_ROWS: Final = 300_000
_REPORTS: Final = Path(__file__).with_name("reports")
_MEMORY: Final = {"spark.driver.memory": "1g", "spark.executor.memory": "1g"}

_METHOD: Final = """\
Each line is one copy, from the creation of a slot with a snapshot to the commit, by executors of one core each, after a
copy of 300 000 rows with the same driver. Server, driver, master and workers share the machine. **To the driver** is
the sum of the tasks' results (Spark's event log), and **written** what executors wrote to files. Peaks are of the
resident sets of the driver's JVM (heap at most 1 GiB) and of the Python process that stands for the daemon."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What one copy took.

    Attributes:
        rows: The table's.
        workers: Of the cluster.
        seconds: From the slot to the commit.
        results_bytes: What tasks have sent to the driver.
        written_bytes: What tasks have written.
        jvm_peak_bytes: Of the driver.
        python_peak_bytes: Of the process that stands for the daemon.
    """

    rows: int
    workers: int
    seconds: float
    results_bytes: int
    written_bytes: int
    jvm_peak_bytes: int
    python_peak_bytes: int


def copied(warm: FilledTable, table: FilledTable, master: str, settings: dict[str, str], workers: int) -> Copy:
    """Copy the table; for a process of its own, which has a driver of its own."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory(prefix="pgbridge-copy-") as name:
        folder = Path(name)
        events = folder / "events"
        events.mkdir()
        log = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        }
        spark = session.start(master, {**settings, **_MEMORY, **log}, log=folder / "spark.log")
        check(spark, warm, copy_to(spark, warm, folder / "warm"))
        meter = Meter(os.getpid())
        began_ms, started_s = time.time() * 1000, time.perf_counter()
        path = copy_to(spark, table, folder / "copied")
        seconds, ended_ms = time.perf_counter() - started_s, time.time() * 1000
        usage = meter.usage()
        check(spark, table, path)
        session.driver_of(spark).stop(spark)
        results, written = _sent(events, began_ms, ended_ms)
        return Copy(table.rows, workers, seconds, results, written, usage.jvm_peak_bytes, usage.python_peak_bytes)


def _sent(events: Path, began_ms: float, ended_ms: float) -> tuple[int, int]:
    """Sum what tasks that began within have sent to the driver, and have written."""
    results = written = 0
    for file in (path for path in events.rglob("events_*") if path.is_file()):
        for line in file.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and began_ms <= event["Task Info"]["Launch Time"] <= ended_ms:
                metrics = event["Task Metrics"]
                results += metrics["Result Size"]
                written += metrics["Output Metrics"]["Bytes Written"]
    return results, written


def main(
    rows: Annotated[list[int] | None, typer.Option("--rows", min=1, help="Sizes of the table.")] = None,
    to: Annotated[Path | None, typer.Option("--report", help="File to write the report to.", metavar="FILE")] = None,
) -> None:
    """Measure, print, and write a report."""
    today = dt.datetime.now(dt.UTC).date()
    measured: list[Copy] = []
    with (
        tempfile.TemporaryDirectory(prefix="pgbridge-cluster-") as folder,
        EmbeddedPostgres(settings=SETTINGS, fsync=False) as server,
    ):
        warm = fill(server, _WARM_ROWS)
        tables = [fill(server, number) for number in rows or (1_000_000, 10_000_000)]
        for workers in (1, 2):
            place = Path(folder, str(workers))
            place.mkdir()
            with SparkCluster(place, workers, memory="1g") as cluster:
                for table in tables:
                    spawn = multiprocessing.get_context("spawn")
                    with ProcessPoolExecutor(1, spawn) as pool:
                        one = pool.submit(copied, warm, table, cluster.master, cluster.settings(), workers).result()
                    measured.append(one)
                    typer.echo(str(one), err=True)
        facts = {"date": str(today), **report.facts(server.version, {"fsync": "off", **SETTINGS})}
    typer.echo(f"\n{lines(measured)}\n")
    path = to or _REPORTS / f"{today}-copy-cluster.md"
    path.write_text(render(measured, facts), encoding="utf-8")
    typer.echo(f"wrote {os.path.relpath(path)}")


def lines(measured: list[Copy]) -> str:
    """Return a Markdown table: a line for each copy."""
    head = (
        "| rows | workers | seconds | rows/s | to the driver | written | peak of the driver's JVM | peak of Python |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    )
    found = [
        f"| {report.grouped(one.rows)} | {one.workers} | {one.seconds:.1f} | {report.grouped(one.rows / one.seconds)} "
        f"| {one.results_bytes / 1024:.0f} KiB | {one.written_bytes >> 20} MiB "
        f"| {one.jvm_peak_bytes >> 20} MiB | {one.python_peak_bytes >> 20} MiB |"
        for one in measured
    ]
    return "\n".join([*head, *found])


def render(measured: list[Copy], facts: dict[str, str]) -> str:
    """Return the whole report."""
    told = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    return f"# The initial copy on a standalone cluster\n\n{told}\n\n{_METHOD}\n\n{lines(measured)}\n"


if __name__ == "__main__":
    typer.run(main)

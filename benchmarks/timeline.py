"""Draws one batch of a steady load: what the daemon does, and Spark's jobs meanwhile, by the time.

The daemon's fault points tell when it passes them, and Spark's event log when jobs begin and end. `python -m
benchmarks.timeline CONFIG NOTES` is the daemon that notes them.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.bridge_folder import BridgeFolder, is_copied
from benchmarks.database import database
from benchmarks.measure import BenchmarkError
from benchmarks.steady import Load, write
from benchmarks.workloads import PUBLICATION
from pgbridge.bridge.config.config import load as load_config
from pgbridge.bridge.runtime import faults, log
from pgbridge.bridge.runtime.supervisor import StopSignals
from pgbridge.bridge.service.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pgbridge.bridge.demo.server import EmbeddedPostgres

_ROOT: Final = Path(__file__).parents[1]
_SLOT: Final = "bench_timeline"
_COPY_S: Final = 300.0
_POLL_S: Final = 0.1
_LAST_S: Final = 30.0
"""The batches of the last part of the load are looked at: the JVM is warm."""


class Event(NamedTuple):
    """A thread of the daemon has passed a fault point."""

    at_s: float
    point: str
    thread: str


class Job(NamedTuple):
    """A job of Spark's."""

    number: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One batch.

    Attributes:
        received_s: When its first transaction was received.
        begun_s: When it was recorded.
        tables: For each table, when its commit was begun and made.
        committed_s: When all tables were committed, and flushed.
        durable_s: When the origin was recorded.
        jobs: Spark's meanwhile.
    """

    received_s: float
    begun_s: float
    tables: Sequence[tuple[float, float]]
    committed_s: float
    durable_s: float
    jobs: Sequence[Job] = ()

    @property
    def steps_s(self) -> dict[str, float]:
        """How long each step took."""
        first, last = min(begin for begin, _ in self.tables), max(end for _, end in self.tables)
        return {
            "its first transaction waits": self.begun_s - self.received_s,
            "to the first table": first - self.begun_s,
            "tables": last - first,
            "flush": self.committed_s - last,
            "the origin": self.durable_s - self.committed_s,
        }

    @property
    def seconds(self) -> float:
        """From its beginning until it is durable."""
        return self.durable_s - self.begun_s


def measure(
    server: EmbeddedPostgres, load: Load, folder: Path, *, say: Callable[[str], None] = lambda _: None
) -> list[Timeline]:
    """Apply a load, and return the batches of its last part.

    Raises:
        BenchmarkError: The daemon has ended, or there was no batch.
    """
    folder.mkdir(parents=True)
    events = folder / "spark"
    events.mkdir()
    notes, bridge = folder / "notes", BridgeFolder(folder / "bridge")
    with database(server, f"bench_timeline_{load.name}") as connection:
        load.prepare(server, connection.info.dbname)
        conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
        conf |= {"spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false"}
        conninfo = server.conninfo(connection.info.dbname)
        bridge.configure(conninfo, PUBLICATION, slot_name=_SLOT, spark=conf)
        with (folder / "daemon.log").open("wb") as to:
            command = [sys.executable, "-m", "benchmarks.timeline", str(bridge.config_file), str(notes)]
            daemon = subprocess.Popen(command, cwd=_ROOT, stdout=to, stderr=to)
        try:
            _wait_for_copies(bridge, daemon)
            say("tables copied")
            write(server, connection.info.dbname, load, load.seconds)
            end_s = time.time()
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
    jobs = jobs_of(line for path in events.iterdir() for line in path.read_text(encoding="utf-8").splitlines())
    made = [one for one in batches(events_of(notes), jobs) if end_s - _LAST_S <= one.begun_s <= end_s]
    if not made:
        raise BenchmarkError(f"no batch was applied:\n{(folder / 'daemon.log').read_text()[-2000:]}")
    say(f"{len(made)} batches")
    return made


def _wait_for_copies(bridge: BridgeFolder, daemon: subprocess.Popen[bytes]) -> None:
    began_s = time.monotonic()
    catalog = bridge.catalog()
    try:
        while not is_copied(catalog):
            if daemon.poll() is not None or time.monotonic() - began_s > _COPY_S:
                raise BenchmarkError("the tables are not copied")
            time.sleep(_POLL_S)
    finally:
        catalog.close()


def events_of(notes: Path) -> list[Event]:
    """The points that a daemon has noted."""
    lines = (line.split(" ", 2) for line in notes.read_text(encoding="utf-8").splitlines())
    return [Event(float(at_s), point, thread) for at_s, point, thread in lines]


def jobs_of(lines: Iterable[str]) -> list[Job]:
    """The jobs of Spark's event log that have ended."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    for line in lines:
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            begun[event["Job ID"]] = event["Submission Time"] / 1000
        elif event["Event"] == "SparkListenerJobEnd":
            ended[event["Job ID"]] = event["Completion Time"] / 1000
    return [Job(number, begun[number], end_s) for number, end_s in sorted(ended.items())]


def batches(events: Iterable[Event], jobs: Sequence[Job]) -> list[Timeline]:
    """The batches that events tell, each with its jobs."""
    made: list[Timeline] = []
    received: list[float] = []
    began: dict[str, float] = {}
    tables: list[tuple[float, float]] = []
    begun_s = committed_s = first_s = 0.0
    for at_s, point, thread in events:
        match point:
            case "after_receive":
                received.append(at_s)
            case "batch_begun":
                first_s, received, tables, begun_s = (received or [at_s])[0], [], [], at_s
            case "table_begun":
                began[thread] = at_s
            case "table_committed" if thread in began:
                tables.append((began.pop(thread), at_s))
            case "batch_committed":
                committed_s = at_s
            case "before_confirm" if tables and begun_s < committed_s:
                during = [job for job in jobs if job.begin_s < at_s and job.end_s > begun_s]
                made.append(Timeline(first_s, begun_s, tables, committed_s, at_s, during))
                tables = []
    return made


def middle(made: Sequence[Timeline]) -> Timeline:
    """The batch that took as long as the median."""
    return sorted(made, key=lambda one: one.seconds)[len(made) // 2]


# --- the drawing ------------------------------------------------------------------------------------------------------

_WIDTH, _LEFT, _ROW = 900, 150, 22
_COLOURS: Final = {"wait": "#bbbbbb", "daemon": "#336791", "table": "#00add4", "job": "#e25a1c"}


def svg(one: Timeline) -> str:
    """The batch as an SVG picture, in milliseconds since its beginning."""
    steps = one.steps_s
    first, last = one.begun_s + steps["to the first table"], one.committed_s - steps["flush"]
    lanes = [
        ("to the first table", "daemon", [(one.begun_s, first)]),
        *((f"table {number}", "table", [span]) for number, span in enumerate(sorted(one.tables), 1)),
        *((f"Spark's jobs {number}", "job", row) for number, row in enumerate(_rows(one.jobs), 1)),
        ("flush", "daemon", [(last, one.committed_s)]),
        ("the origin", "daemon", [(one.committed_s, one.durable_s)]),
    ]
    scale = (_WIDTH - _LEFT - 20) / one.seconds
    height = _ROW * (len(lanes) + 2)
    size = f'width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect {size} fill="#ffffff"/>',
    ]
    step_ms = next(each for each in (50, 100, 200, 500, 1000, 5000) if one.seconds * 1000 / each <= 16)
    for ms in range(0, round(one.seconds * 1000) + 1, step_ms):
        x = _LEFT + ms / 1000 * scale
        parts.append(f'<line x1="{x:.1f}" y1="{_ROW}" x2="{x:.1f}" y2="{height - 6}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{_ROW - 7}" text-anchor="middle">{ms} ms</text>')
    for number, (name, kind, spans) in enumerate(lanes, 1):
        y = _ROW * number + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{name}</text>')
        for begin_s, end_s in spans:
            x = _LEFT + max(0.0, begin_s - one.begun_s) * scale
            width = max(1.0, (end_s - max(begin_s, one.begun_s)) * scale)
            title = f"<title>{(end_s - begin_s) * 1000:.0f} ms</title>"
            colour = _COLOURS[kind]
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="15" fill="{colour}">{title}</rect>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rows(jobs: Sequence[Job]) -> list[list[tuple[float, float]]]:
    """Jobs in as many rows as there are at the same time."""
    rows: list[list[tuple[float, float]]] = []
    for job in sorted(jobs, key=lambda each: each.begin_s):
        free = next((row for row in rows if row[-1][1] <= job.begin_s), None)
        if free is None:
            rows.append(free := [])
        free.append((job.begin_s, job.end_s))
    return rows


def render(made: Sequence[Timeline], load: Load, picture: str, *, facts: str) -> str:
    """The report, in Markdown, with the file of the picture."""
    one, count = middle(made), len(made)
    lines = ["| step | median ms | p95 ms |", "|---|---:|---:|"]
    for step in one.steps_s:
        values = sorted(each.steps_s[step] * 1000 for each in made)
        lines.append(
            f"| {step} | {statistics.median(values):.0f} | {values[min(count - 1, round(0.95 * count))]:.0f} |"
        )
    jobs = statistics.median(len(each.jobs) for each in made)
    return (
        f"# What a small batch does\n\n{facts}\n\n"
        f"{load.text[0].upper()}{load.text[1:]}: {load.rate:g} transactions a second, with `commit_interval_s = "
        f"{load.commit_interval_s:g}`. Of the {count} batches of the last {_LAST_S:g} s: how long each step takes, and "
        f"{jobs:g} jobs of Spark's (median). The batch that took as long as the median, with Spark's jobs as its event "
        f"log has them:\n\n![a batch]({picture})\n\n" + "\n".join(lines) + "\n"
    )


# --- the daemon -------------------------------------------------------------------------------------------------------


def main(config_file: Path, notes: Path) -> int:
    """Run the daemon, and note each fault point that it passes."""
    log.configure()
    with notes.open("w", encoding="utf-8", buffering=1) as to:
        lock = threading.Lock()

        def note(point: str) -> None:
            with lock:
                to.write(f"{time.time():.6f} {point} {threading.current_thread().name}\n")

        faults.install(note)
        return Daemon(load_config(config_file), StopSignals()).run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

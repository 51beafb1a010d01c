"""What grows while random faults happen: sampled, drawn, and compared; and months that pass while nothing runs.

A process begins anew after a kill, so memory, descriptors and threads are compared within the night: the last part of a
run, in which no fault ends the daemon. What is on disks stays, so it is compared over the whole run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from tests.faults.load import Beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.faults.soaked_daemon import Daemon

NIGHT: Final = 0.6
"""So much of a run is over when the night begins."""

MONTH_S: Final = 31 * 86_400
"""Longer than Delta keeps a table's log."""

_EVERY_S: Final = 10.0
_MOST_GROWTH: Final = 1.5

Sample = Mapping[str, float]
"""A value for each measure that could be taken, and `at_s` since the begin."""


class Measure(NamedTuple):
    """What is looked at.

    Attributes:
        slack: So much more is no growth: one large transaction, or a checkpoint's distance.
        stays: It is on a disk, not in a process.
    """

    name: str
    slack: float
    stays: bool


MEASURES: Final = (
    Measure("Python MiB", 100, stays=False),
    Measure("JVM MiB", 200, stays=False),
    Measure("Python descriptors", 40, stays=False),
    Measure("JVM descriptors", 100, stays=False),
    Measure("Python threads", 20, stays=False),
    Measure("JVM threads", 60, stays=False),
    Measure("state catalog KiB", 1024, stays=True),
    Measure("its WAL KiB", 5120, stays=True),  # SQLite begins it anew after 4 MiB
    Measure("spool KiB", 20_480, stays=True),
    Measure("Spark's log KiB", 512, stays=True),
    Measure("files in _delta_log", 600, stays=True),
    Measure("seconds a batch", 60.0, stays=True),  # most of them come after a fault
)


class Sampler(Beside):
    """Looks every ten seconds, in a thread.

    Args:
        daemon: The daemon under test.
        jvm: Returns Spark's JVM, wherever it is; None if it is not there.
        log_files: Returns the number of files in the `_delta_log` that has most of them.
    """

    def __init__(
        self, daemon: Daemon, jvm: Callable[[], psutil.Process | None], log_files: Callable[[], float]
    ) -> None:
        self._daemon, self._jvm, self._log_files = daemon, jvm, log_files
        self._begin_s = time.monotonic()
        self._read_bytes = 0
        self.samples: list[Sample] = []
        super().__init__("sampler")

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            with contextlib.suppress(OSError, ValueError):  # the next look may succeed
                self.samples.append(self._sample())

    def _sample(self) -> Sample:
        state = self._daemon.folder / "state"
        sample = {
            "at_s": time.monotonic() - self._begin_s,
            "state catalog KiB": _size_bytes(state.glob("catalog.sqlite")) / 1024,
            "its WAL KiB": _size_bytes(state.glob("catalog.sqlite-wal")) / 1024,
            "spool KiB": _size_bytes((state / "spool").rglob("*")) / 1024,
            "Spark's log KiB": _size_bytes(state.glob("spark.log*")) / 1024,
        }
        processes: dict[str, Callable[[], psutil.Process | None]] = {
            "Python": lambda: psutil.Process(self._daemon.pid),
            "JVM": self._jvm,
        }
        for name, process_of in processes.items():
            with contextlib.suppress(psutil.Error):
                if (process := process_of()) is not None:
                    sample[f"{name} MiB"] = process.memory_info().rss / 2**20
                    sample[f"{name} descriptors"] = process.num_fds()
                    sample[f"{name} threads"] = process.num_threads()
        with contextlib.suppress(OSError):
            sample["files in _delta_log"] = self._log_files()
        if batches_s := self._batches_s():
            sample["seconds a batch"] = statistics.median(batches_s)
        return sample

    def _batches_s(self) -> list[float]:
        """How long each batch took that the daemon has logged since the last look."""
        with (self._daemon.folder / "daemon.log").open("rb") as log:
            log.seek(self._read_bytes)
            content = log.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        found: list[float] = []
        for line in whole.splitlines():
            if b'"batch applied"' in line:
                with contextlib.suppress(ValueError, KeyError):
                    found.append(json.loads(line)["seconds"])
        return found


def _size_bytes(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


class Growth(NamedTuple):
    """The medians of two parts of a run."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How much it has grown; 1 for not at all."""
        return self.after / self.before if self.before else 1.0


def growth(samples: Sequence[Sample], measure: Measure) -> Growth | None:
    """How a measure has grown: within the night, or over the run; None if there are too few samples to tell."""
    if not samples:
        return None
    end_s = samples[-1]["at_s"]
    bounds = ((0.2, 0.4), (0.8, 1.0)) if measure.stays else ((NIGHT, 0.8), (0.8, 1.0))
    parts = []
    for begin, end in bounds:
        values = [s[measure.name] for s in samples if measure.name in s and begin * end_s <= s["at_s"] <= end * end_s]
        if not values:
            return None
        parts.append(statistics.median(values))
    return Growth(*parts)


def grown(samples: Sequence[Sample]) -> list[str]:
    """What has grown, or could not be told, as lines."""
    lines = []
    for measure in MEASURES:
        found = growth(samples, measure)
        if found is None:
            lines.append(f"{measure.name}: nobody knows whether it has grown")
        elif found.ratio > _MOST_GROWTH and found.after - found.before > measure.slack:
            lines.append(f"{measure.name}: grown from {found.before:.1f} to {found.after:.1f}")
    return lines


def table(samples: Sequence[Sample]) -> list[str]:
    """The growths, in Markdown."""
    lines = ["| | least | most | before | after | ratio |", "|---|---:|---:|---:|---:|---:|"]
    for measure in MEASURES:
        values = [sample[measure.name] for sample in samples if measure.name in sample]
        found = growth(samples, measure)
        if values and found is not None:
            figures = (min(values), max(values), found.before, found.after)
            shown = " | ".join(f"{value:.4g}" if value < 1000 else f"{value:.0f}" for value in figures)
            lines.append(f"| {measure.name} | {shown} | {found.ratio:.2f} |")
    return lines


_WIDTH, _HEIGHT, _COLUMNS, _EDGE = 300, 130, 3, 34


def draw(samples: Sequence[Sample]) -> str:
    """One plot for each measure, beside each other, as an SVG picture; the night is grey."""
    shown = [measure.name for measure in MEASURES if any(measure.name in sample for sample in samples)]
    width, height = _COLUMNS * _WIDTH, -(-len(shown) // _COLUMNS) * _HEIGHT
    end_s = max((sample["at_s"] for sample in samples), default=1.0)
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        f'<rect {size} fill="#ffffff"/>',
    ]
    for number, name in enumerate(shown):
        left, top = number % _COLUMNS * _WIDTH + _EDGE, number // _COLUMNS * _HEIGHT + 22
        wide, high = _WIDTH - _EDGE - 12, _HEIGHT - 44
        points = [(sample["at_s"], sample[name]) for sample in samples if name in sample]
        most = max(value for _, value in points) or 1.0
        places = " ".join(f"{left + at / end_s * wide:.1f},{top + high - v / most * high:.1f}" for at, v in points)
        night = f'x="{left + NIGHT * wide:.1f}" y="{top}" width="{(1 - NIGHT) * wide:.1f}" height="{high}"'
        parts += [
            f'<rect {night} fill="#eeeeee"/>',
            f'<text x="{left}" y="{top - 7}">{name}, at most {most:.4g}</text>',
            f'<path d="M{left} {top}V{top + high}H{left + wide}" stroke="#888888" fill="none"/>',
            f'<polyline points="{places}" stroke="#336791" fill="none"/>',
            f'<text x="{left + wide}" y="{top + high + 13}" text-anchor="end">{end_s / 60:.0f} min</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def age(folder: Path, by_s: int = MONTH_S) -> None:
    """Make all files in a folder older."""
    for path in folder.rglob("*"):
        if path.is_file():
            at_ns = path.stat().st_mtime_ns - by_s * 10**9
            os.utime(path, ns=(at_ns, at_ns))


def age_maintenance(catalog: Path, by_s: int = MONTH_S) -> None:
    """Make what the state says of tables' maintenance older; the daemon must not run."""
    with contextlib.closing(sqlite3.connect(catalog)) as db, db:
        db.execute(
            "UPDATE maintenance SET since = since - ?1, optimized = optimized - ?1, vacuumed = vacuumed - ?1", (by_s,)
        )

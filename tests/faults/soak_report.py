"""The report of a run of random faults, in Markdown."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.faults import soak_day
from tests.faults.soaked_daemon import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.faults.soak import Soak

_TOLD = ("batch", "slot", "timeline", "optimize", "vacuum")
"""What of the log's other events the report counts."""


def report(
    soak: Soak,
    kind: str,
    seconds: float,
    seed: int,
    found: dict[str, tuple[int, list[str]]],
    samples: Sequence[soak_day.Sample],
    picture: Path | None,
) -> str:
    """Return the report; `picture` is where its plots are."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = [
        "# Random faults under load",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d}",
        f"- where Spark and the tables are: {kind} (tests/faults/soak_places.py)",
        f"- machine: {platform.machine()}, {os.cpu_count()} cores",
        f"- versions: PostgreSQL {soak.pair.primary.version}, Python {platform.python_version()}",
        f"- pgbridge: {commit.stdout.strip()}",
        f"- seconds of faults: {seconds:.0f}; seed: {seed}",
        f"- peak memory of the daemon's Python process: {soak.daemon.peak_bytes >> 20} MiB",
        "",
        "| fault | times |",
        "|---|---:|",
        *(f"| {name} | {count} |" for name, count in sorted(soak.counts.items())),
        "",
        "| load | times |",
        "|---|---:|",
        *(f"| {name} | {count} |" for name, count in sorted(soak.load.counts.items())),
        "",
        "| table | rows in PostgreSQL | differences |",
        "|---|---:|---:|",
        *(f"| {table} | {rows} | {len(different)} |" for table, (rows, different) in found.items()),
        "",
        "What may grow: medians of two fifths of the run, the second and the last one. Processes begin anew after",
        "kills, so theirs are of the night, in which no fault ends the daemon: the fourth fifth and the last one.",
        "",
        *soak_day.table(samples),
        *(["", f"![what may grow]({picture.name})"] if picture else []),
        "",
        "What the daemon logged as a warning or an error, or about batches and slots:",
        "",
        "| event | times |",
        "|---|---:|",
        *(
            f"| {' '.join(event.split())[:110].replace('|', '/')} | {count} |"
            for event, count in sorted(soak.daemon.log_counts().items())
            if not event.startswith("info") or any(word in event for word in _TOLD)
        ),
        *(["", *(f"- {note}" for note in soak.notes)] if soak.notes else []),
    ]
    return "\n".join(lines) + "\n"

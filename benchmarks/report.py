"""The report: machine, versions, and a table for each workload, in Markdown."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import psutil

from benchmarks.measure import RECVLOGICAL, VARIANTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.measure import Measured, Run

_PACKAGES: Final = ("psycopg", "numpy", "pyarrow")
_CPUINFO: Final = Path("/proc/cpuinfo")

_METHOD: Final = """\
Every run has a clone of a slot that was made before the workload was written, over the Unix socket, `binary`, protocol
version 1, in a process of its own, which does nothing for 3 s before; the variants take turns in being first.
**pg_recvlogical** writes what comes to /dev/null. **receive only** is the bridge's receiver with its queue of whole
transactions, which are thrown away. **receive + decode** forms batches of them, of 50 000 rows, as Arrow tables. Times
and CPU seconds are medians over the rounds, from START_REPLICATION to the workload's end; **stolen s** is what the host
gave of the machine's cores to others meanwhile: a run that lost more than a tenth of its time to them is left out and
made again, up to three times. The ratio is pg_recvlogical's time over the variant's in the same round: its median, and
from the worst to the best."""


class Timed(Protocol):
    """A variant's run."""

    @property
    def variant(self) -> str:
        """What ran."""

    @property
    def seconds(self) -> float:
        """Wall clock."""


def render(measured: Sequence[Measured], *, facts: Mapping[str, str]) -> str:
    """Return the whole report.

    Args:
        measured: A section for each.
        facts: Machine, versions and settings, a line for each.
    """
    parts = ["# Receive and decode, beside pg_recvlogical", "\n".join(f"- {k}: {v}" for k, v in facts.items()), _METHOD]
    for one in measured:
        parts += [f"## {one.workload.name}", _described(one), table(one)]
    return "\n\n".join(parts) + "\n"


def table(measured: Measured) -> str:
    """Return a row for each variant: seconds, rows/s, CPU seconds of both processes, stolen seconds, ratio."""
    lines = [
        "| variant | seconds | rows/s | CPU s | walsender CPU s | stolen s | ratio to pg_recvlogical |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for variant in VARIANTS:
        runs = [_of(variant, runs) for runs in measured.rounds]
        seconds = statistics.median(run.seconds for run in runs)
        cpu_s = statistics.median(run.cpu_s for run in runs)
        walsender_s = statistics.median(run.walsender_cpu_s for run in runs)
        stolen_s = statistics.median(run.stolen_s for run in runs)
        ratios = [_of(RECVLOGICAL, runs).seconds / _of(variant, runs).seconds for runs in measured.rounds]
        ratio = "1" if variant == RECVLOGICAL else spread(ratios)
        rate = grouped(measured.rows / seconds)
        times = f"{cpu_s:.2f} | {walsender_s:.2f} | {stolen_s:.2f}"
        lines.append(f"| {variant} | {seconds:.2f} | {rate} | {times} | {ratio} |")
    return "\n".join(lines)


def round_ratios(rounds: Sequence[Sequence[Timed]], variant: str, reference: str) -> list[float]:
    """Return for each round the variant's time over the reference's."""
    times = [{run.variant: run.seconds for run in runs} for runs in rounds]
    return [seconds[variant] / seconds[reference] for seconds in times]


def spread(ratios: Sequence[float]) -> str:
    """Return the median, the least and the greatest."""
    return f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"


def grouped(number: float) -> str:
    """Return a number without decimals, with spaces between thousands."""
    return f"{number:,.0f}".replace(",", " ")


def _described(measured: Measured) -> str:
    rows, transactions = grouped(measured.rows), grouped(measured.transactions)
    left_out = [sum(run.variant == variant for run in measured.left_out) for variant in VARIANTS]
    disturbed = sum(run.disturbed for runs in measured.rounds for run in runs)
    return (
        f"{measured.workload.text[0].upper()}{measured.workload.text[1:]}.\nHere: {rows} rows in {transactions}"
        f" transactions, written in {measured.load_s:.0f} s; {len(measured.rounds)} rounds. Runs left out:"
        f" {', '.join(map(str, left_out))} (in the order of the table); disturbed ones that were not: {disturbed}."
    )


def _of(variant: str, runs: Sequence[Run]) -> Run:
    return next(run for run in runs if run.variant == variant)


def facts(server_version: str, settings: Mapping[str, object]) -> dict[str, str]:
    """Return the machine, the versions and the server's settings."""
    memory_gib = psutil.virtual_memory().total / (1 << 30)
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}"
        f" {platform.release()}",
        "versions": f"PostgreSQL {server_version}, Python {platform.python_version()}, {packages}",
        "pgbridge": _commit(),
        "server's settings": ", ".join(f"{name} = {value}" for name, value in settings.items()),
    }


def _processor() -> str:
    names = [line.partition(":")[2].strip() for line in _lines(_CPUINFO) if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _commit() -> str:
    """Return the checkout's commit, and whether files have changed since."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=10"],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return described.stdout.strip() or "no commit"

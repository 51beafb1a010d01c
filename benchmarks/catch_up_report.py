"""The report of catch_up, in Markdown."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.catch_up import NATIVE, VARIANTS
from benchmarks.disturbed import is_disturbed
from benchmarks.report import grouped, round_ratios, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.catch_up import Measured, Run

_METHOD: Final = """\
Every run has a clone of one slot, and tables that are equal to the published ones at the slot's LSN: the initial copy
of `pgbridge`, and a dump for PostgreSQL. Variants take turns in being first, and nothing runs for 3 s before each.
Times run from the start of the subscription until its last transaction is durable, by the catalog's origin, or by what
PostgreSQL's subscription confirms as flushed. **PostgreSQL's subscription** (`binary = true`) is on a second server,
with `fsync`. **pgbridge** is the daemon with its default configuration; **cold**, its JVM has just started; **warm**,
the same process has applied the same workload at least once. Counts and checksums of all tables agree with the
publisher's after every run. CPU seconds are those of the Python process (or of the subscriber's server), of the JVM,
and of other processes of this machine meanwhile, which should have used next to nothing. Peaks are resident sets. A run
that lost more than a tenth of its time to other machines of the host is made again, up to three times. Columns are
medians; the ratio is the variant's time over PostgreSQL's in the same round: its median, and from the best to the
worst."""


def render(measured: Sequence[Measured], *, facts: Mapping[str, str]) -> str:
    """Return the whole report.

    Args:
        measured: A section for each.
        facts: Machine, versions and settings, a line for each.
    """
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    parts = ["# Catching up, beside PostgreSQL's own subscription", lines, _METHOD]
    for one in measured:
        parts += [f"## {one.case.name}", _described(one), table(one)]
    return "\n\n".join(parts) + "\n"


def table(measured: Measured) -> str:
    """Return a row for each variant that ran."""
    lines = [
        "| variant | seconds | CPU s | JVM CPU s | others' CPU s | peak MiB | JVM's peak MiB | Delta commits | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for variant in VARIANTS:
        runs = [run for runs in measured.rounds for run in runs if run.variant == variant]
        if not runs:
            continue
        cells = [
            f"{statistics.median(run.seconds for run in runs):.2f}",
            f"{statistics.median(run.cpu_s for run in runs):.1f}",
            _median(runs, lambda run: run.jvm_cpu_s, "{:.1f}"),
            _median(runs, lambda run: run.others_s, "{:.1f}"),
            _median(runs, lambda run: run.peak_bytes and run.peak_bytes / 2**20, "{:.0f}"),
            _median(runs, lambda run: run.jvm_peak_bytes and run.jvm_peak_bytes / 2**20, "{:.0f}"),
            _median(runs, lambda run: run.commits, "{:.0f}"),
            "1" if variant == NATIVE else spread(round_ratios(measured.rounds, variant, NATIVE)),
        ]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(runs: Sequence[Run], of: Callable[[Run], float | None], form: str) -> str:
    values = [value for run in runs if (value := of(run)) is not None]
    return form.format(statistics.median(values)) if values else ""


def _described(measured: Measured) -> str:
    case = measured.case
    times = f"{case.times} times: " if case.times > 1 else ""
    disturbed = sum(is_disturbed(run) for runs in measured.rounds for run in runs)
    text = f"{times}{case.workload.text}"
    return (
        f"{text[0].upper()}{text[1:]}.\nHere: {grouped(measured.rows)} rows in {grouped(measured.transactions)}"
        f" transactions; {len(measured.rounds)} rounds. Runs left out: {len(measured.left_out)}; disturbed ones that"
        f" were not: {disturbed}."
    )

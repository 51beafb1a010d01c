"""The report of start, in Markdown."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.disturbed import is_disturbed
from benchmarks.report import round_ratios, spread
from benchmarks.start import NATIVE, TRANSACTIONS, VARIANTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.start import Measured

_METHOD: Final = f"""\
Variants take turns in being first, and nothing runs for 3 s before each. **{NATIVE}** begins with CREATE SUBSCRIPTION
(`binary = true`) on a second server. **pgbridge run** begins as a process, with the default configuration and a new
folder. Times run from there until the copy of one table is complete, and until those of all tables are. Then pgbench
makes {TRANSACTIONS} transactions of four rows: the **first batch** runs from its last commit until that is durable.
Columns are medians; the ratio is that of both times together, all tables' and the first batch's, in the same round: its
median, and from the best to the worst."""


def render(measured: Measured, *, facts: Mapping[str, str]) -> str:
    """Return the whole report.

    Args:
        measured: The runs.
        facts: Machine, versions and settings, a line for each.
    """
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    disturbed = sum(is_disturbed(run) for runs in measured.rounds for run in runs)
    described = (
        f"pgbench's tables of scale {measured.scale}; {len(measured.rounds)} rounds. Runs left out:"
        f" {len(measured.left_out)}; disturbed ones that were not: {disturbed}."
    )
    return "\n\n".join(["# From the start to the first batch", lines, _METHOD, described, table(measured)]) + "\n"


def table(measured: Measured) -> str:
    """Return a row for each variant."""
    lines = [
        "| variant | first table s | all tables s | first batch s | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    for variant in VARIANTS:
        runs = [run for runs in measured.rounds for run in runs if run.variant == variant]
        cells = [
            f"{statistics.median(run.first_table_s for run in runs):.2f}",
            f"{statistics.median(run.copied_s for run in runs):.2f}",
            f"{statistics.median(run.first_batch_s for run in runs):.2f}",
            "1" if variant == NATIVE else spread(round_ratios(measured.rounds, variant, NATIVE)),
        ]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)

"""The report of apply, in Markdown."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.report import grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.apply import Cost, Measured

_METHOD: Final = """\
Tables have W1's eight columns, in files of a million rows; serial keys are bigint, random ones texts of 36 characters,
as a uuid column becomes. Tables of 128 MiB and more have deletion vectors; those with random keys are sorted by them,
as the copy of a large table leaves them. **update** and **delete** are of the newest rows if keys are serial, and of
any rows if they are random; **insert** is of new rows; **mixed** is 70 % updates, 20 % inserts and 10 % deletes. One
Spark session (local[2]) commits all cases once before the measurement, then once in each round, taking turns in being
first; after each commit the table is restored. Columns are medians; seconds also have the least and the greatest. CPU
seconds are those of the JVM and of Python, files and MB what was written beside the log. The ratio is the seconds over
those of the smallest table with such keys, in the same round: its median."""


def render(measured: Sequence[Measured], *, facts: Mapping[str, str]) -> str:
    """Return the whole report.

    Args:
        measured: The cases' commits.
        facts: Machine, versions and settings, a line for each.
    """
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    return "\n\n".join(["# What a commit costs", lines, _METHOD, table(measured)]) + "\n"


def table(measured: Sequence[Measured]) -> str:
    """Return a row for each case."""
    lines = [
        "| changes | kind | keys | rows of the table | seconds | ratio | CPU s | jobs | files | MB |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    order = sorted(measured, key=lambda m: (m.case.kind, m.case.number, m.case.size.keys, m.case.size.rows))
    for one in order:
        case, costs = one.case, one.costs
        seconds = [cost.seconds for cost in costs]
        cells = [
            grouped(case.number),
            case.kind,
            case.size.keys,
            grouped(case.size.rows),
            f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
            _ratio(one, measured),
            f"{statistics.median(cost.cpu_s for cost in costs):.2f}",
            f"{statistics.median(cost.jobs for cost in costs):g}",
            f"{statistics.median(cost.files for cost in costs):g}",
            f"{statistics.median(cost.size_bytes for cost in costs) / 1e6:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(one: Measured, measured: Sequence[Measured]) -> str:
    """The seconds over those of the smallest table with such keys; empty for that one."""
    alike = [
        other
        for other in measured
        if (other.case.kind, other.case.number, other.case.size.keys)
        == (one.case.kind, one.case.number, one.case.size.keys)
    ]
    smallest = min(alike, key=lambda other: other.case.size.rows)
    if smallest is one:
        return ""
    pairs: list[tuple[Cost, Cost]] = list(zip(one.costs, smallest.costs, strict=True))
    return f"{statistics.median(cost.seconds / reference.seconds for cost, reference in pairs):.2f}"

"""The report of many batches, in Markdown."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.report import grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.many_batches import Series

_METHOD: Final = """\
Small batches are applied to a table of W1's eight columns, of 100 000 rows at first: three of ten changes insert rows,
the others update any of the rows. Serial keys are bigint, random ones texts of 36 characters, as a uuid column becomes.
One Spark session (local[2]) applies other batches before, to other tables. Each line is a tenth of the batches: the
median of their seconds, the longest, and the number of data files that the table had at most. Tables are maintained as
those of a stream that is never idle; a batch's seconds have the maintenance before it, which is where the longest come
from. The ratio is the median of the last twentieth over that of the first."""


def render(measured: Sequence[Series], *, facts: Mapping[str, str]) -> str:
    """Return the whole report.

    Args:
        measured: The batches on each table.
        facts: Machine, versions and settings, a line for each.
    """
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    return "\n\n".join(["# Many batches on one table", lines, _METHOD, *map(table, measured)]) + "\n"


def table(series: Series) -> str:
    """Return a row for each tenth."""
    number, ratio = grouped(len(series.seconds)), f"{series.ratio():.2f}"
    lines = [
        f"**{series.keys} keys**, {number} batches: the last over the first **{ratio}**",
        "",
        "| batches | seconds | longest | files at most |",
        "|---|---:|---:|---:|",
    ]
    first = 1
    for seconds, files in series.parts(10):
        last = first + len(seconds) - 1
        cells = [
            f"{grouped(first)} to {grouped(last)}",
            f"{statistics.median(seconds):.2f}",
            f"{max(seconds):.2f}",
            str(max(files)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
        first = last + 1
    return "\n".join(lines)

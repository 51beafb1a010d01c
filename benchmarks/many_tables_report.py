"""The report of many tables and many subscriptions, in Markdown."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.many_tables import CHANGED_ROWS, CHANGING, ROWS
from benchmarks.report import grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.many_tables import Measured

_METHOD: Final = f"""\
Tables of {ROWS} rows are published. `pgbridge run` is a process with the default configuration, on a new folder:
**copied** runs from its start until all tables are copied and all subscriptions stream. It is stopped and started
again: **restart** runs until all subscriptions stream. Then transactions change {CHANGED_ROWS} rows of {CHANGING}
tables each: **a batch** runs from a commit until it is durable; the column has the median, and the ratio to the first
line's. Memory is the resident set after that; **threads** and **descriptors** are those of Python and of the JVM.
**Idle** is the CPU time of the daemon and its JVM while nothing happens, as a part of one core. It begins a minute
after the batches: until then commits are recorded, and maintenance looks at tables with eight of them."""


def render(measured: Sequence[Measured], *, facts: Mapping[str, str], title: str) -> str:
    """Return the whole report.

    Args:
        measured: A line for each.
        facts: Machine, versions and settings, a line for each.
        title: Its title.
    """
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    return "\n\n".join([f"# {title}", lines, _METHOD, table(measured)]) + "\n"


def table(measured: Sequence[Measured]) -> str:
    """Return a row for each size."""
    names = ("tables", "subscriptions", "copied s", "restart s", "a batch s", "ratio", "Python MiB", "JVM MiB")
    columns = (*names, "threads", "descriptors", "idle")
    lines = [f"| {' | '.join(columns)} |", "|" + "---:|" * len(columns)]
    first_s = statistics.median(measured[0].batch_s)
    for one in measured:
        batch_s, held = statistics.median(one.batch_s), one.footprint
        lines.append(
            f"| {grouped(one.size.tables)} | {one.size.subscriptions} | {one.copied_s:.0f} | {one.restart_s:.0f} |"
            f" {batch_s:.2f} | {batch_s / first_s:.2f} | {held.python_bytes >> 20} | {held.jvm_bytes >> 20} |"
            f" {held.threads} + {held.jvm_threads} | {held.descriptors} + {held.jvm_descriptors} |"
            f" {one.idle_cpu:.3f} |"
        )
    return "\n".join(lines)

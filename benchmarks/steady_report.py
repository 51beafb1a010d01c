"""The report of steady, in Markdown."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.report import grouped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.steady import Steady

_GROWS: Final = 1.25
_GROWS_S: Final = 1.0
_QUARTERS: Final = 4
_LAGS: Final = 50
"""Times in a quarter at which the lag is computed."""

_METHOD: Final = f"""\
`pgbridge run` is a process with the default configuration, and has copied the tables; then pgbench writes at a rate,
for a minute before the measurement, too. Five times a second the publisher's LSN is read; **commit → durable** is the
time until the catalog's origin, read fifty times a second, has passed it. The **lag** at a time is the age of the
oldest commit that is not durable then. It grows if its mean in the last quarter is more than {_GROWS} times that of the
first one, and a second more. CPU is that of the daemon's processes, as a part of one core;
peaks are resident sets."""


def render(measured: Sequence[Steady], *, facts: Mapping[str, str]) -> str:
    """Return the whole report.

    Args:
        measured: A section for each.
        facts: Machine, versions and settings, a line for each.
    """
    lines = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    parts = ["# A steady load: from commit to durable", lines, _METHOD, *map(section, measured)]
    return "\n\n".join(parts) + "\n"


def section(one: Steady) -> str:
    """Return a load's section."""
    return "\n\n".join([f"## {one.load.name}", described(one), table(one), quarters(one)])


def described(one: Steady) -> str:
    """Return what was written, and whether the lag grows."""
    seconds = one.end_s - one.start_s
    grows = "The lag grows." if lag_grows(one) else "The lag does not grow."
    return (
        f"{one.load.text[0].upper()}{one.load.text[1:]}: {one.load.rate:g} transactions a second for {seconds:.0f} s"
        f", with `commit_interval_s = {one.load.commit_interval_s:g}`"
        f" ({grouped(one.transactions)} transactions with those before). {one.stolen_s:.1f} s of CPU time were stolen."
        f" {grows}"
    )


def table(one: Steady) -> str:
    """Return the latencies, and what the daemon used."""
    seconds = one.end_s - one.start_s
    found = one.latencies()
    cells = [
        *(second(found.percentile(percent)) for percent in (50, 95, 100)),
        f"{one.usage.python_cpu_s / seconds:.2f}",
        f"{one.usage.jvm_cpu_s / seconds:.2f}",
        f"{one.usage.python_peak_bytes / 2**20:.0f}",
        f"{one.usage.jvm_peak_bytes / 2**20:.0f}",
        f"{one.delta_commits}",
    ]
    return (
        "| p50 s | p95 s | max s | Python's CPU | JVM's CPU | Python's peak MiB | JVM's peak MiB | Delta commits |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        f"| {' | '.join(cells)} |"
    )


def quarters(one: Steady) -> str:
    """Return a row for each quarter of the time: its latencies, its mean lag, and the lag at its end."""
    lines = ["| quarter | p50 s | p95 s | mean lag s | lag at its end s |", "|---|---:|---:|---:|---:|"]
    for number in range(_QUARTERS):
        found = one.latencies(number / _QUARTERS, (number + 1) / _QUARTERS)
        seconds = (
            found.percentile(50),
            found.percentile(95),
            mean_lag_s(one, number),
            one.lag_s((number + 1) / _QUARTERS),
        )
        lines.append(f"| {number + 1} | {' | '.join(map(second, seconds))} |")
    return "\n".join(lines)


def lag_grows(one: Steady) -> bool:
    """Whether the lag is greater in the last quarter than in the first one."""
    first_s, last_s = mean_lag_s(one, 0), mean_lag_s(one, _QUARTERS - 1)
    return last_s > max(first_s * _GROWS, first_s + _GROWS_S)


def mean_lag_s(one: Steady, quarter: int) -> float:
    """Return the mean of the lag in a quarter, counted from 0."""
    return statistics.fmean(one.lag_s((quarter + (number + 0.5) / _LAGS) / _QUARTERS) for number in range(_LAGS))


def second(seconds: float) -> str:
    """Return seconds as text; those of a commit that was not durable when watching ended are unknown."""
    return f"{seconds:.2f}" if math.isfinite(seconds) else "not durable"

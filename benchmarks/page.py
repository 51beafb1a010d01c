"""The page of benchmarks, `docs/benchmarks.md`: what others measure, beside PostgreSQL and Debezium; what costs what.

One command makes it. Each run ends with a proof: counts and checksums of all tables agree with the publisher's, or the
command fails.
"""

from __future__ import annotations

import json
import statistics
import textwrap
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks import catch_up, steady
from benchmarks.catch_up import COLD, DEBEZIUM, NATIVE, VARIANTS, WARM, Case, Measured, Run
from benchmarks.published import PUBLISHED, SHAPES
from benchmarks.report import grouped
from benchmarks.steady_report import second

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.steady import Steady
    from benchmarks.workloads import Workload
    from pgbridge.bridge.demo.server import EmbeddedPostgres

    Servers = tuple[EmbeddedPostgres, EmbeddedPostgres]

RATES: Final = (10, 100, 500)
"""Transactions a second, of pgbench."""
_RATE_S: Final = 60.0
_PATIENCE_S: Final = 600.0
_LARGE: Final = frozenset({"taxi"})
"""Workloads of which one round takes minutes."""
_MILLION: Final = 1_000_000

_INTRO: Final = """\
# Benchmarks

What pgbridge does with workloads that others publish figures of, beside PostgreSQL's own subscription and Debezium.

All take turns on one machine, from one slot. PostgreSQL's subscription applies to tables of a second server. Debezium's
embedded engine makes JSON of each change, and throws it away: a pipeline behind it takes longer.

**Every run ends with a proof**: counts and checksums of all tables, computed by PostgreSQL and by Spark, agree with the
publisher's, and Debezium's changes are counted; else there is no page. `python -m benchmarks page` makes it anew, in
about {minutes:.0f} minutes here; what it needs is in [CONTRIBUTING.md](../CONTRIBUTING.md). More measurements, each
with its method, are in [benchmarks/reports](../benchmarks/reports)."""

_READ: Final = """\
Times run from the subscription's start until its last transaction is durable: with `fsync`, on a local disk. **warm**:
the daemon has applied the same work before; **cold**: its JVM has just started. The publisher shares the cores. CPU is
that of the daemon with its JVM, of the subscriber's server, or of Debezium's JVM; memory the peak of their resident
sets together; **written** what they had the kernel write. The ratio is that of the times in the same round, as medians.
"""

_OTHERS: Final = """\
Read in August 2026; not the same machine, and mostly not the same rows. pgbridge's figures above are of {cores} cores,
which the publisher shares.

| who | what | figure | machine |
|---|---|---|---|
| OLake | taxi rows into Iceberg, change data capture | 55 555 rows/s | 64 vCPU and 128 GiB, PostgreSQL on 32 more |
| OLake | the same, full load | 580 113 rows/s | the same |
| pg_duckpipe | sysbench's inserts into DuckLake | 10 102 transactions/s, 3.3 MB of lag | M1 Pro |
| pg_duckpipe | oltp_read_write | 627 transactions/s, 171 MB of lag | M1 Pro |
"""


class How(NamedTuple):
    """How it is measured: rounds, which part of each workload, what gets a line for each run; machine and versions."""

    rounds: int
    scale: float
    say: Callable[[str], None]
    facts: Mapping[str, str]


class Rate(NamedTuple):
    """What one rate of a steady load has shown: latencies, cores in use, and the peaks of memory together."""

    p50_s: float
    p95_s: float
    cores: float
    peak_bytes: int


@dataclass
class Page:
    """All measurements, in a file: what is measured is there at once, and is not measured again.

    Attributes:
        path: The file, JSON. Another one is another page.
    """

    path: Path
    _raw: dict[str, Any] = field(default_factory=lambda: {"facts": {}, "seconds": 0.0, "measured": {}, "rates": {}})

    def __post_init__(self) -> None:
        if self.path.exists():
            self._raw = json.loads(self.path.read_text(encoding="utf-8"))

    @property
    def facts(self) -> dict[str, str]:
        """Machine, versions and settings."""
        return dict(self._raw["facts"])

    @property
    def seconds(self) -> float:
        """How long all of it took."""
        return float(self._raw["seconds"])

    def measured(self, workload: Workload) -> Measured | None:
        """A workload's runs, if they are there."""
        raw = self._raw["measured"].get(workload.name)
        if raw is None:
            return None
        rounds = [[Run(**run) for run in runs] for runs in raw["rounds"]]
        return Measured(Case(workload.name, workload), raw["rows"], raw["transactions"], rounds)

    def rates(self) -> dict[float, Rate]:
        """What rates have shown, by the rate."""
        return {float(rate): Rate(*values) for rate, values in self._raw["rates"].items()}

    def measure(self, servers: Servers, names: Iterable[str], folder: Path, how: How) -> None:
        """Measure what is not there yet: workloads of others, by their names, then shapes and rates."""
        wanted: list[tuple[Workload, Sequence[str]]] = [(PUBLISHED[name], (*VARIANTS, DEBEZIUM)) for name in names]
        wanted += [(workload, (NATIVE, WARM)) for workloads in SHAPES.values() for workload in workloads.values()]
        for workload, variants in wanted:
            if self.measured(workload) is None:
                self._measure(servers, workload, variants, folder / workload.name, how)
        for rate in RATES:
            if rate not in self.rates():
                began_s, load = time.monotonic(), steady.loads(how.scale)["pgbench"].at(rate, _RATE_S * how.scale)
                path, warm_up_s = folder / f"rate{rate}", load.seconds / 2
                one = steady.measure(servers[0], load, path, warm_up_s=warm_up_s, patience_s=_PATIENCE_S, say=how.say)
                self._keep("rates", f"{rate}", _rate(one), how, began_s)

    def _measure(self, servers: Servers, workload: Workload, variants: Sequence[str], folder: Path, how: How) -> None:
        rounds, began_s = (1 if workload.name in _LARGE else how.rounds), time.monotonic()
        one = catch_up.measure(
            servers,
            Case(workload.name, workload),
            folder,
            variants=variants,
            rounds=rounds,
            scale=how.scale,
            say=how.say,
        )
        raw: dict[str, Any] = {"rows": one.rows, "transactions": one.transactions}
        raw["rounds"] = [[asdict(run) for run in runs] for runs in one.rounds]
        self._keep("measured", workload.name, raw, how, began_s)

    def _keep(self, kind: str, name: str, raw: object, how: How, began_s: float) -> None:
        self._raw["facts"] = dict(how.facts)
        self._raw["seconds"] += time.monotonic() - began_s
        self._raw[kind][name] = raw
        self.path.write_text(json.dumps(self._raw, indent=1) + "\n", encoding="utf-8")


def _rate(one: Steady) -> Rate:
    seconds, latencies, usage = one.end_s - one.start_s, one.latencies(), one.usage
    cores = (usage.python_cpu_s + usage.jvm_cpu_s) / seconds
    peak_bytes = usage.python_peak_bytes + usage.jvm_peak_bytes
    return Rate(latencies.percentile(50), latencies.percentile(95), cores, peak_bytes)


def render(page: Page, *, cores: int) -> str:
    """Return the page, in Markdown, of what is measured."""
    parts = [
        _INTRO.format(minutes=page.seconds / 60),
        "\n".join(f"- {key}: {value}" for key, value in page.facts.items()),
        "## The workloads of others",
        _READ.rstrip(),
    ]
    for workload in PUBLISHED.values():
        if (one := page.measured(workload)) is not None:
            parts += [f"### {workload.name}", _described(one), table(one)]
    parts += ["## What a table's shape costs", _SHAPED]
    for quantity, workloads in SHAPES.items():
        made = {value: one for value, workload in workloads.items() if (one := page.measured(workload)) is not None}
        parts.append(shape(quantity, made))
    parts += ["## Lag by rate", _RATED, rates(page.rates())]
    parts += ["## What others publish", _OTHERS.format(cores=cores).rstrip()]
    return "\n\n".join(parts) + "\n"


_SHAPED: Final = """\
The same work on tables of other shapes, warm, beside PostgreSQL's subscription: seconds of CPU for a million changes of
rows, and the time as a ratio to PostgreSQL's. These are small loads, so they show what commits cost: a batch is one for
each of its tables, of a third of a second here, and a hundred tables have a hundred."""

_RATED: Final = """\
pgbench's transactions at a steady rate, with the default configuration: the time from a commit until it is durable in
Delta, and what the daemon and its JVM use, in cores."""


def table(measured: Measured) -> str:
    """Return a row for each variant that ran."""
    lines = [
        "| | seconds | rows/s | ratio | CPU s | CPU s for 1 M rows | memory MiB | written MiB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for variant in (NATIVE, WARM, COLD, DEBEZIUM):
        runs = [run for runs in measured.rounds for run in runs if run.variant == variant]
        if not runs:
            continue
        seconds = statistics.median(run.seconds for run in runs)
        cpu_s = statistics.median(map(_cpu_s, runs))
        cells = [
            f"{seconds:.1f}",
            grouped(round(measured.rows / seconds)),
            f"{_ratio(measured, variant):.2f}",
            f"{cpu_s:.1f}",
            f"{cpu_s * _MILLION / measured.rows:.1f}",
            _mib([None if run.peak_bytes is None and run.jvm_peak_bytes is None else _peak(run) for run in runs]),
            _mib([run.written_bytes for run in runs]),
        ]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shape(quantity: str, measured: Mapping[int, Measured]) -> str:
    """Return a row for each value of a quantity."""
    lines = [
        f"| {quantity} | rows/s | CPU s for 1 M rows | PostgreSQL's | ratio | written bytes a row |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for value, one in measured.items():
        warm, native = ([run for runs in one.rounds for run in runs if run.variant == v] for v in (WARM, NATIVE))
        written = statistics.median(run.written_bytes or 0 for run in warm)
        cells = [
            grouped(round(one.rows / statistics.median(run.seconds for run in warm))),
            *(f"{statistics.median(map(_cpu_s, runs)) * _MILLION / one.rows:.1f}" for runs in (warm, native)),
            f"{_ratio(one, WARM):.2f}",
            grouped(round(written / one.rows)),
        ]
        lines.append(f"| {grouped(value)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rates(measured: Mapping[float, Rate]) -> str:
    """Return a row for each rate."""
    lines = ["| transactions/s | p50 s | p95 s | cores | memory MiB |", "|---:|---:|---:|---:|---:|"]
    for rate, one in measured.items():
        cells = [second(one.p50_s), second(one.p95_s), f"{one.cores:.2f}", f"{one.peak_bytes / 2**20:.0f}"]
        lines.append(f"| {rate:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cpu_s(run: Run) -> float:
    return run.cpu_s + (run.jvm_cpu_s or 0.0)


def _peak(run: Run) -> int:
    return (run.peak_bytes or 0) + (run.jvm_peak_bytes or 0)


def _mib(sizes_bytes: Sequence[int | None]) -> str:
    known = [size for size in sizes_bytes if size is not None]
    return grouped(round(statistics.median(known) / 2**20)) if known else ""


def _ratio(measured: Measured, variant: str) -> float:
    """The median of a variant's time over PostgreSQL's in the same round."""
    ratios = []
    for runs in measured.rounds:
        by_variant = {run.variant: run.seconds for run in runs}
        ratios.append(by_variant[variant] / by_variant[NATIVE])
    return statistics.median(ratios)


def _described(measured: Measured) -> str:
    text = measured.case.workload.text
    rounds = "round" if len(measured.rounds) == 1 else "rounds"
    here = f"{grouped(measured.rows)} rows in {grouped(measured.transactions)} transactions"
    return textwrap.fill(f"{text[0].upper()}{text[1:]}. Here: {here}, {len(measured.rounds)} {rounds}.", 120)

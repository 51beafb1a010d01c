"""The command line of the benchmarks."""

from __future__ import annotations

import datetime as dt
import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import report
from benchmarks.measure import BenchmarkError, measure
from benchmarks.workloads import SETTINGS, WORKLOADS
from bridge.demo.server import EmbeddedPostgres

_REPORTS = Path(__file__).with_name("reports")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
WorkloadName = enum.Enum("WorkloadName", {name: name for name in WORKLOADS})  # type: ignore[misc]  # typer wants one


@app.command()
def run(
    *,
    workload: Annotated[
        list[WorkloadName] | None, typer.Option(help="Workload; may be repeated. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each variant.")] = 5,
    scale: Annotated[float, typer.Option(min=0.0001, help="Part of the workload to run: 1 for all.")] = 1.0,
    to: Annotated[Path | None, typer.Option("--report", help="File to write the report to.", metavar="FILE")] = None,
) -> None:
    """Compare receiving and decoding with pg_recvlogical, on a private server; write a report."""
    chosen = [WORKLOADS[item.value] for item in workload] if workload else list(WORKLOADS.values())
    today = dt.datetime.now(dt.UTC).date()
    path = to or _REPORTS / f"{today}.md"
    measured = []
    try:
        with EmbeddedPostgres(settings=SETTINGS, fsync=False) as server:
            facts = {"date": str(today), **report.facts(server.version, {"fsync": "off", **SETTINGS})}
            for one in chosen:
                measured.append(measure(server, one, rounds=rounds, scale=scale, say=_say))
                typer.echo(f"\n{report.table(measured[-1])}\n")
    except BenchmarkError as error:
        typer.echo(f"benchmarks: {error}", err=True)
        sys.exit(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.render(measured, facts=facts), encoding="utf-8")
    typer.echo(f"wrote {path}")


def _say(text: str) -> None:
    typer.echo(text, err=True)

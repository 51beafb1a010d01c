"""The command line of the benchmarks."""

from __future__ import annotations

import datetime as dt
import enum
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks import catch_up as catching_up
from benchmarks import catch_up_report, native, report
from benchmarks.measure import BenchmarkError, measure
from benchmarks.workloads import SETTINGS, WORKLOADS
from bridge.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

_REPORTS = Path(__file__).with_name("reports")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Measure, and write a report.")
WorkloadName = enum.Enum("WorkloadName", {name: name for name in WORKLOADS})  # type: ignore[misc]  # typer wants one
CaseName = enum.Enum("CaseName", {name: name for name in catching_up.CASES})  # type: ignore[misc]  # as above

Scale = Annotated[float, typer.Option(min=0.0001, help="Part of the workload to run: 1 for all.")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of runs of each variant.")]
Report = Annotated[Path | None, typer.Option("--report", help="File to write the report to.", metavar="FILE")]


@app.command()
def receive(
    *,
    workload: Annotated[
        list[WorkloadName] | None, typer.Option(help="Workload; may be repeated. Default: all.")
    ] = None,
    rounds: Rounds = 5,
    scale: Scale = 1.0,
    to: Report = None,
) -> None:
    """Compare receiving and decoding with pg_recvlogical, on a private server."""
    chosen = [WORKLOADS[item.value] for item in workload] if workload else list(WORKLOADS.values())
    measured = []
    with _failures_in_words(), EmbeddedPostgres(settings=SETTINGS, fsync=False) as server:
        facts = _facts(server)
        for one in chosen:
            measured.append(measure(server, one, rounds=rounds, scale=scale, say=_say))
            typer.echo(f"\n{report.table(measured[-1])}\n")
    _write(report.render(measured, facts=facts), to, "receive")


@app.command()
def catch_up(
    *,
    case: Annotated[list[CaseName] | None, typer.Option(help="Workload; may be repeated. Default: all.")] = None,
    cold: Annotated[bool, typer.Option(help="Run the bridge cold, too, in a JVM that has just started.")] = True,
    rounds: Rounds = 3,
    scale: Scale = 1.0,
    to: Report = None,
) -> None:
    """Compare catching up with PostgreSQL's own subscription, on two private servers."""
    chosen = [catching_up.CASES[item.value] for item in case] if case else list(catching_up.CASES.values())
    variants = [variant for variant in catching_up.VARIANTS if cold or variant != catching_up.COLD]
    measured = []
    with (
        _failures_in_words(),
        tempfile.TemporaryDirectory(prefix="pgbridge-catch-up-") as folder,
        EmbeddedPostgres(settings=SETTINGS, fsync=False) as publisher,
        EmbeddedPostgres(settings=native.SETTINGS) as subscriber,
    ):
        facts = _facts(publisher)
        facts["subscriber's settings"] = ", ".join(f"{name} = {value}" for name, value in native.SETTINGS.items())
        for one in chosen:
            found = catching_up.measure(
                (publisher, subscriber),
                one,
                Path(folder, one.name),
                variants=variants,
                rounds=rounds,
                scale=scale,
                say=_say,
            )
            measured.append(found)
            typer.echo(f"\n{one.name}\n{catch_up_report.table(found)}\n")
    _write(catch_up_report.render(measured, facts=facts), to, "catch-up")


@contextmanager
def _failures_in_words() -> Iterator[None]:
    """Write a failure to standard error, and exit with 1."""
    try:
        yield
    except BenchmarkError as error:
        typer.echo(f"benchmarks: {error}", err=True)
        sys.exit(1)


def _facts(server: EmbeddedPostgres) -> dict[str, str]:
    return {"date": str(_today()), **report.facts(server.version, {"fsync": "off", **SETTINGS})}


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def _write(text: str, to: Path | None, name: str) -> None:
    path = to or _REPORTS / f"{_today()}-{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {path}")


def _say(text: str) -> None:
    typer.echo(text, err=True)

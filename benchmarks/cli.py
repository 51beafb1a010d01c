"""The command line of the benchmarks."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks import (
    apply as applying,
    apply_report,
    catch_up as catching_up,
    catch_up_report,
    many_batches as many,
    many_batches_report,
    many_tables as existing,
    many_tables_report,
    native,
    page as paging,
    report,
    start as starting,
    start_report,
    steady as steadily,
    steady_report,
    synchronous as synchronously,
    timeline as timelines,
)
from benchmarks.apply_tables import KEYS, KINDS, Case, Size
from benchmarks.measure import BenchmarkError, measure
from benchmarks.published import PUBLISHED
from benchmarks.workloads import SETTINGS, WORKLOADS
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.runtime.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_REPORTS = Path(__file__).with_name("reports")
_PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_PATIENCE_S = 600.0
"""How long the daemon may take, after a load's end, to make all of it durable."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Measure, and write a report.")
WorkloadName = enum.Enum("WorkloadName", {name: name for name in WORKLOADS})  # type: ignore[misc]  # typer wants one
CaseName = enum.Enum("CaseName", {name: name for name in catching_up.CASES})  # type: ignore[misc]  # as above

LoadName = enum.Enum("LoadName", {name: name for name in steadily.loads(1)})  # type: ignore[misc]  # as above

PublishedName = enum.Enum("PublishedName", {name: name for name in PUBLISHED})  # type: ignore[misc]  # as above

KindName = enum.Enum("KindName", {name: name for name in KINDS})  # type: ignore[misc]  # as above
KeysName = enum.Enum("KeysName", {name: name for name in KEYS})  # type: ignore[misc]  # as above

_TABLE_ROWS = (1_000_000, 10_000_000)
_CHANGES = (100, 1_000, 10_000, 100_000, 500_000)

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
        _servers() as (publisher, subscriber),
    ):
        facts = _facts(publisher, subscriber)
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


@app.command()
def steady(
    *,
    load: Annotated[list[LoadName] | None, typer.Option(help="Load; may be repeated. Default: all.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Transactions per second, instead of the load's.")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="How long it is measured, instead of the load's.")
    ] = None,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of the load before the measurement.")] = 60,
    commit_interval: Annotated[float, typer.Option(min=0, help="The subscription's batch.commit_interval_s.")] = 1,
    scale: Scale = 1.0,
    to: Report = None,
) -> None:
    """Measure the time from commit to durable under a steady load of pgbench."""
    known = steadily.loads(scale)
    measured = []
    with (
        _failures_in_words(),
        tempfile.TemporaryDirectory(prefix="pgbridge-steady-") as folder,
        EmbeddedPostgres(settings=SETTINGS, fsync=False) as server,
    ):
        facts = _facts(server)
        for name in [item.value for item in load] if load else known:
            one = dataclasses.replace(
                known[name],
                rate=rate or known[name].rate,
                seconds=seconds or known[name].seconds,
                commit_interval_s=commit_interval,
            )
            found = steadily.measure(
                server, one, Path(folder, name), warm_up_s=warm_up * scale, patience_s=_PATIENCE_S, say=_say
            )
            measured.append(found)
            typer.echo(f"\n{steady_report.section(found)}\n")
    _write(steady_report.render(measured, facts=facts), to, "steady")


@app.command()
def synchronous(
    *,
    clients: Annotated[list[int] | None, typer.Option(min=1, help="Number of clients; may be repeated.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each number of clients is measured.")] = 60,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of the load before the measurement.")] = 60,
    to: Report = None,
) -> None:
    """Measure how long a COMMIT takes that waits for Delta, as synchronous_standby_names has it."""
    with (
        _failures_in_words(),
        tempfile.TemporaryDirectory(prefix="pgbridge-synchronous-") as folder,
        EmbeddedPostgres(settings=SETTINGS, fsync=False) as server,
    ):
        facts = _facts(server)
        measured = synchronously.measure(
            server, Path(folder, "bridge"), clients=clients or [1, 8], seconds=seconds, warm_up_s=warm_up, say=_say
        )
    typer.echo(f"\n{synchronously.table(measured)}\n")
    _write(synchronously.render(measured, facts=facts), to, "synchronous")


@app.command()
def start(*, rounds: Rounds = 3, scale: Scale = 1.0, to: Report = None) -> None:
    """Measure the time from `pgbridge run` to the first batch, beside PostgreSQL's own subscription."""
    with (
        _failures_in_words(),
        tempfile.TemporaryDirectory(prefix="pgbridge-start-") as folder,
        _servers() as (publisher, subscriber),
    ):
        facts = _facts(publisher, subscriber)
        measured = starting.measure(
            (publisher, subscriber), Path(folder, "start"), rounds=rounds, scale=scale, say=_say
        )
    typer.echo(f"\n{start_report.table(measured)}\n")
    _write(start_report.render(measured, facts=facts), to, "start")


@app.command()
def apply(
    *,
    kind: Annotated[list[KindName] | None, typer.Option(help="Kind of change; may be repeated. Default: all.")] = None,
    keys: Annotated[list[KeysName] | None, typer.Option(help="Kind of keys; may be repeated. Default: all.")] = None,
    changes: Annotated[list[int] | None, typer.Option(min=10, help="Number of changes; may be repeated.")] = None,
    rows: Annotated[list[int] | None, typer.Option(min=10, help="Rows of the table; may be repeated.")] = None,
    rounds: Rounds = 3,
    to: Report = None,
) -> None:
    """Measure what commits cost, by kind and number of changes and by the table's size and keys. No server runs."""
    cases = [
        Case(Size(table_rows, key), one, number)
        for table_rows in rows or _TABLE_ROWS
        for key in _chosen(keys, KEYS)
        for one in _chosen(kind, KINDS)
        for number in changes or _CHANGES
        if number <= table_rows
    ]
    with tempfile.TemporaryDirectory(prefix="pgbridge-apply-") as folder:
        measured = applying.measure(Path(folder), cases, rounds=rounds, say=_say)
    typer.echo(f"\n{apply_report.table(measured)}\n")
    facts = {"date": str(_today()), **report.facts("not used", {})}
    del facts["server's settings"]
    _write(apply_report.render(measured, facts=facts), to, "apply")


@app.command()
def many_batches(
    *,
    batches: Annotated[int, typer.Option(min=20, help="Number of batches on each table.")] = 2_000,
    changes: Annotated[int, typer.Option(min=2, max=100_000, help="Number of changes in a batch.")] = 100,
    warm_up: Annotated[int, typer.Option(min=0, help="Number of batches before, on other tables.")] = 100,
    keys: Annotated[list[KeysName] | None, typer.Option(help="Kind of keys; may be repeated. Default: all.")] = None,
    to: Report = None,
) -> None:
    """Measure whether the last of many batches takes as long as the first, and count files. No server runs."""
    with tempfile.TemporaryDirectory(prefix="pgbridge-many-batches-") as folder:
        measured = many.measure(
            Path(folder),
            list(_chosen(keys, KEYS)),
            batches=batches,
            changes=changes,
            warm_up=warm_up,
            say=_say,
        )
    typer.echo("\n" + "\n\n".join(many_batches_report.table(series) for series in measured) + "\n")
    facts = {"date": str(_today()), **report.facts("not used", {})}
    del facts["server's settings"]
    _write(many_batches_report.render(measured, facts=facts), to, "many-batches")


@app.command()
def many_tables(
    *,
    tables: Annotated[list[int] | None, typer.Option(min=1, help="Number of tables; may be repeated.")] = None,
    subscriptions: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Instead: number of subscriptions of two tables each; may be repeated."),
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="Number of measured batches.")] = 5,
    idle: Annotated[float, typer.Option(min=1, help="Seconds for which the idle daemon is watched.")] = 30,
    to: Report = None,
) -> None:
    """Measure what tables and subscriptions cost that exist and do not change."""
    each = existing.TABLES_EACH
    sizes = [existing.Size(number * each, number) for number in subscriptions or ()]
    sizes = sizes or [existing.Size(number) for number in tables or (10, 100, 1_000)]
    settings = {**SETTINGS, **existing.SETTINGS}
    measured = []
    with (
        _failures_in_words(),
        tempfile.TemporaryDirectory(prefix="pgbridge-many-tables-") as folder,
        EmbeddedPostgres(settings=settings, fsync=False) as server,
    ):
        facts = _facts(server)
        for number, size in enumerate(sizes):
            path = Path(folder, str(number))
            measured.append(existing.measure(server, path, size, batches=batches, idle_s=idle, say=_say))
            typer.echo(f"\n{many_tables_report.table(measured)}\n")
    name = "many-subscriptions" if subscriptions else "many-tables"
    title = "Many subscriptions" if subscriptions else "Many tables"
    _write(many_tables_report.render(measured, facts=facts, title=title), to, name)


@app.command()
def timeline(
    *,
    rate: Annotated[float, typer.Option(min=0.1, help="Transactions per second.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, help="How long the load lasts.")] = 90,
    to: Report = None,
) -> None:
    """Draw one batch of a steady load of pgbench, and tell how long its steps take."""
    path = to or _REPORTS / f"{_today()}-timeline.md"
    load = steadily.loads(1)["pgbench"].at(rate, seconds)
    with (
        _failures_in_words(),
        tempfile.TemporaryDirectory(prefix="pgbridge-timeline-") as folder,
        EmbeddedPostgres(settings=SETTINGS, fsync=False) as server,
    ):
        facts = "\n".join(f"- {key}: {value}" for key, value in _facts(server).items())
        made = timelines.measure(server, load, Path(folder, "run"), say=_say)
    picture = path.with_suffix(".svg")
    picture.write_text(timelines.svg(timelines.middle(made)), encoding="utf-8")
    _write(timelines.render(made, load, picture.name, facts=facts), path, "timeline")


@app.command()
def page(
    *,
    workload: Annotated[
        list[PublishedName] | None, typer.Option(help="Workload of others; may be repeated. Default: all.")
    ] = None,
    rounds: Rounds = 3,
    scale: Scale = 1.0,
    raw: Annotated[
        Path | None, typer.Option(help="File of the measurements; those that are there are not made again.")
    ] = None,
    to: Annotated[Path, typer.Option("--page", help="File to write the page to.", metavar="FILE")] = _PAGE,
) -> None:
    """Make the page of benchmarks: the workloads of others, what shapes cost, and lag by rate."""
    made = paging.Page(raw or _REPORTS / f"{_today()}-page.json")
    with (
        _failures_in_words(),
        tempfile.TemporaryDirectory(prefix="pgbridge-page-") as folder,
        _servers() as servers,
    ):
        how = paging.How(rounds, scale, _say, _facts(*servers))
        made.measure(servers, _chosen(workload, PUBLISHED), Path(folder), how)
    to.write_text(paging.render(made, cores=os.cpu_count() or 1), encoding="utf-8")
    typer.echo(f"wrote {to}")


@contextmanager
def _servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """Run the publisher's server and the subscriber's."""
    with (
        EmbeddedPostgres(settings=SETTINGS, fsync=False) as publisher,
        EmbeddedPostgres(settings=native.SETTINGS) as subscriber,
    ):
        yield publisher, subscriber


@contextmanager
def _failures_in_words() -> Iterator[None]:
    """Write a failure to standard error, and exit with 1."""
    try:
        yield
    except (BenchmarkError, BridgeError) as error:
        typer.echo(f"benchmarks: {error}", err=True)
        sys.exit(1)


def _facts(server: EmbeddedPostgres, subscriber: EmbeddedPostgres | None = None) -> dict[str, str]:
    facts = {"date": str(_today()), **report.facts(server.version, {"fsync": "off", **SETTINGS})}
    if subscriber is not None:
        settings = ", ".join(f"{name} = {value}" for name, value in native.SETTINGS.items())
        facts["subscriber's settings"] = f"fsync = on, {settings}"
    return facts


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def _chosen(named: Sequence[enum.Enum] | None, every: Iterable[str]) -> Iterable[str]:
    """What to measure: everything unless some is named."""
    return [item.value for item in named] if named else every


def _write(text: str, to: Path | None, name: str) -> None:
    path = to or _REPORTS / f"{_today()}-{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {path}")


def _say(text: str) -> None:
    typer.echo(text, err=True)

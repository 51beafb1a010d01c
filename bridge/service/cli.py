"""The command line: arguments, help and exit codes. `bridge.commands` does the work; Spark is loaded where it is used.

Exit codes: 0 for success, 1 for an error, 2 for wrong arguments or a wrong configuration, 3 when Spark is lost.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pgbridge.bridge.commands.alter import set_enabled, set_skip, waits
from pgbridge.bridge.commands.init import write
from pgbridge.bridge.commands.state import opened, opened_for
from pgbridge.bridge.config import config
from pgbridge.bridge.runtime import __version__, log, remedies, supervisor
from pgbridge.bridge.runtime.errors import BridgeError, ConfigError, InvalidLsn, SparkLost
from pgbridge.bridge.service import cli_shared as shared, cli_tables

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    help="Keep Delta Lake tables equal to published PostgreSQL tables.",
)


@app.callback(invoke_without_command=True)
def _root(
    *,
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"pgbridge {__version__}")
        raise typer.Exit


@app.command()
def init(
    *,
    connection: Annotated[str, typer.Option(help="libpq connection string or URI of the publisher.")],
    publication: Annotated[list[str], typer.Option(help="Publication to subscribe to; may be repeated.")],
    warehouse: Annotated[str, typer.Option(help="Folder or URI for the Delta tables, or catalog:CATALOG.NAMESPACE.")],
    name: Annotated[str, typer.Option(help="Name of the subscription. The default is the first publication's.")] = "",
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Write a short, commented configuration file."""
    write(config_file, name=name, connection=connection, publications=publication, warehouse=warehouse)
    typer.echo(f"wrote {config_file}; start with: {remedies.run()}")


@app.command()
def run(
    *,
    until_caught_up: Annotated[
        bool, typer.Option(help="Exit once everything that the publisher had flushed at the start is applied.")
    ] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait until no other machine streams, and go on in its place.")
    ] = False,
    unfenced: Annotated[
        bool,
        typer.Option(
            "--unfenced",
            help="With --standby: also on a store that cannot keep out what the other machine still commits.",
        ),
    ] = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Run all enabled subscriptions, until SIGTERM or SIGINT.

    The first signal ends the process after the current batch, a second one at once.
    """
    if standby and until_caught_up:
        raise typer.BadParameter("--standby waits for another daemon's end, and --until-caught-up for none")
    if unfenced and not standby:
        raise typer.BadParameter("--unfenced goes with --standby")
    signals = supervisor.StopSignals().install()  # before Spark is loaded, which takes seconds
    from pgbridge.bridge.service.daemon import Daemon  # noqa: PLC0415 - Spark takes seconds to load; other commands need none

    log.configure()
    bars = None
    if sys.stderr.isatty():
        from pgbridge.bridge.commands.status import CopyProgressBars  # noqa: PLC0415 - for a terminal only

        bars = CopyProgressBars(Console(stderr=True))
    settings = config.load(config_file)
    read = partial(config.load, config_file)
    if standby and not unfenced:
        from pgbridge.bridge.recovery.standby import check_fencing  # noqa: PLC0415 - as above

        for subscription in settings.subscription.values():
            check_fencing(subscription.warehouse, settings.spark.conf)
    daemon = Daemon(settings, signals, until_caught_up=until_caught_up, standby=standby, bars=bars, read=read)
    raise typer.Exit(daemon.run())


@app.command()
def prepare(
    *,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Configuration file. Needed if it has spark.jars.packages or an S3 warehouse.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Fetch the jars that Spark needs, and make its later starts on this machine shorter."""
    from pgbridge.bridge.service import warm_up as command  # noqa: PLC0415 - as above

    settings = None if config_file is None else config.load(config_file)
    for line in command.prepare(settings, os.environ):
        shared.echo(line)


@app.command()
def reload(*, config_file: shared.ConfigFile = shared.DEFAULT_FILE) -> None:
    """Have the running daemon read the configuration file again, as SIGHUP does."""
    from pgbridge.bridge.commands import alter as command  # noqa: PLC0415 - as below

    outcome = command.reload(config.load(config_file))
    for line in outcome.lines:
        shared.echo(line)
    raise typer.Exit(outcome.code)


@app.command()
def check(
    name: shared.OptionalName = None,
    *,
    as_json: shared.AsJson = False,
    print_sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL that makes a role with no more privileges than needed.")
    ] = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Look at servers, tables and this machine before the first run.

    Nothing is created.
    """
    from pgbridge.bridge.check import report  # noqa: PLC0415 - reads Spark's settings, so it loads Spark's Python part

    settings = config.load(config_file)
    chosen = settings.choose(name)
    if print_sql:
        for subscription in chosen:
            _echo_script(report.role_script(subscription))
        return
    document = report.collect(settings, chosen, config_file, os.environ)
    shared.print_document(document, report.render, as_json=as_json)
    raise typer.Exit(document["exit_code"])


@app.command()
def status(
    seconds: Annotated[
        float | None, typer.Argument(metavar="SECONDS", help="Seconds between two looks of --watch; 2 without it.")
    ] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    as_json: shared.AsJson = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Show each subscription's state, positions, tables and last error."""
    if watch:
        _watch(config_file, seconds, as_json=as_json)
        return
    if seconds is not None:
        raise typer.BadParameter("seconds are for --watch")
    from pgbridge.bridge.commands.status import render  # noqa: PLC0415 - rich's tables, for this command only
    from pgbridge.bridge.monitor.document import collect  # noqa: PLC0415 - psycopg, as above

    with opened(config_file) as state:
        document = collect(state.config, state.catalog, running=state.running)
    shared.print_document(document, render, as_json=as_json)


def _watch(config_file: Path, seconds: float | None, *, as_json: bool) -> None:
    from pgbridge.bridge.commands import status as command  # noqa: PLC0415 - as above

    interval_s = command.DEFAULT_S if seconds is None else seconds
    if not command.LEAST_S <= interval_s <= command.MOST_S:
        raise typer.BadParameter(f"the seconds of --watch are {command.LEAST_S:g} to {command.MOST_S:g}")
    command.watch(config_file, interval_s, as_json=as_json)


@app.command()
def publications(
    name: shared.OptionalName = None,
    *,
    as_json: shared.AsJson = False,
    dump: Annotated[
        bool, typer.Option("--dump", help="Print the server's publications as CREATE PUBLICATION statements.")
    ] = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Show what is published of each table: actions, row filter, columns."""
    from pgbridge.bridge.commands import publications as command  # noqa: PLC0415 - as above

    chosen = config.load(config_file).choose(name)
    if dump:
        text, errors = command.dump(chosen)
        _echo_script(text)
        for error in errors:
            shared.echo_error(BridgeError(error))
        raise typer.Exit(bool(errors))
    document = command.collect(chosen)
    shared.print_document(document, command.render, as_json=as_json)
    if command.is_refused(document):
        raise typer.Exit(1)


@app.command()
def enable(name: shared.Name, *, config_file: shared.ConfigFile = shared.DEFAULT_FILE) -> None:
    """Enable a subscription, as ALTER SUBSCRIPTION … ENABLE does; a running daemon starts it at once."""
    _set_enabled(config_file, name, enabled=True)


@app.command()
def disable(name: shared.Name, *, config_file: shared.ConfigFile = shared.DEFAULT_FILE) -> None:
    """Disable a subscription, as ALTER SUBSCRIPTION … DISABLE does; it stops after the current batch.

    Its replication slot remains, and retains WAL on the server.
    """
    _set_enabled(config_file, name, enabled=False)


@app.command()
def skip(
    name: shared.Name,
    *,
    lsn: Annotated[
        str,
        typer.Option(metavar="LSN", help='Finish LSN of the transaction, as its error shows it; or "none".'),
    ],
    show: Annotated[bool, typer.Option("--show", help="Show the changes of a transaction that was skipped.")] = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Skip a transaction that cannot be applied, as ALTER SUBSCRIPTION … SKIP does.

    None of its changes is applied to any table. What the server has sent of it is kept in the state directory.
    """
    if show:
        cli_tables.show_skipped(config_file, name, lsn)
        return
    with opened_for(config_file, name) as (subscription, state):
        shared.echo(set_skip(subscription, state, lsn))


app.command()(cli_tables.replay)
app.command()(cli_tables.recover)


@app.command()
def wait(
    name: shared.Name,
    *,
    lsn: Annotated[str | None, typer.Option(metavar="LSN", help="Up to this LSN of the server.")] = None,
    now: Annotated[bool, typer.Option("--now", help="Up to what the server has committed; the default.")] = False,
    timeout: Annotated[float, typer.Option(metavar="N", min=0.0, help="How many seconds to wait.")] = 60.0,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Wait until the Delta tables have every transaction up to an LSN, so that a program reads what it has written."""
    from pgbridge.bridge.commands import wait as command  # noqa: PLC0415 - as above

    if now and lsn is not None:
        raise typer.BadParameter("--lsn and --now name different positions")
    with opened_for(config_file, name) as (subscription, state):
        shared.echo(command.wait(state, subscription, lsn, timeout))


app.command()(cli_tables.snapshot)
app.command()(cli_tables.verify)


@app.command()
def refresh(
    name: shared.Name,
    *,
    resync: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Table to copy again (public.t or t); may be repeated."),
    ] = None,
    copy_data: Annotated[
        bool | None,
        typer.Option(
            "--copy-data/--no-copy-data",
            help="Copy the rows of added tables, or not. The default is copy_data of the configuration.",
        ),
    ] = None,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Follow tables that were added to the publications, and no removed ones (ALTER SUBSCRIPTION … REFRESH).

    With --resync, only copy the named tables again.
    """
    from pgbridge.bridge.commands import refresh as command  # noqa: PLC0415 - as above

    with opened_for(config_file, name) as (subscription, state):
        lines = command.ask(
            subscription,
            state.catalog,
            resync=resync or [],
            copy_data=copy_data,
            when=state.when,
            waits=waits(subscription, state),
        )
    for line in lines:
        shared.echo(line)


@app.command()
def resync(name: shared.Name, *, config_file: shared.ConfigFile = shared.DEFAULT_FILE) -> None:
    """Begin a subscription afresh: create another slot and copy all its tables again.

    Use it when the slot, or WAL that it needs, is lost. Readers see each table's rows until its copy replaces them
    by one commit.
    """
    from pgbridge.bridge.commands import refresh as command  # noqa: PLC0415 - as above

    with opened_for(config_file, name) as (subscription, state):
        for line in command.resync(subscription, state):
            shared.echo(line)


@app.command()
def drop(
    name: shared.Name,
    *,
    keep_slot: Annotated[
        bool, typer.Option("--keep-slot", help="Leave the slot on a server that cannot be reached.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Drop it even if tables hold a part of an unfinished batch.")
    ] = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """End a subscription for good: drop its slot on the server and forget its state.

    Its Delta tables stay. This is PostgreSQL's DROP SUBSCRIPTION.
    """
    from pgbridge.bridge.commands import refresh as command  # noqa: PLC0415 - as above

    with opened_for(config_file, name) as (subscription, state):
        for line in command.drop(subscription, state, keep_slot=keep_slot, force=force):
            shared.echo(line)


app.command()(cli_tables.origin)


@app.command()
def demo(
    *,
    directory: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the demo's Delta tables.")] = Path("demo"),
    seconds: Annotated[float, typer.Option(metavar="N", min=0.0, help="How many seconds the load runs.")] = 8.0,
    server_only: Annotated[bool, typer.Option(help="Run the PostgreSQL server, and nothing else.")] = False,
) -> None:
    """Try pgbridge on a private PostgreSQL: copy, stream, kill, restart, compare.

    It needs the package's extra named demo.
    """
    from pgbridge.bridge.demo import show  # noqa: PLC0415 - the embedded server is an optional dependency

    if server_only:
        show.serve(shared.echo)
    else:
        raise typer.Exit(show.run_demo(directory, seconds))


shared.add_epilogs(app)


def _set_enabled(config_file: Path, name: str, *, enabled: bool) -> None:
    with opened_for(config_file, name) as (subscription, state):
        shared.echo(set_enabled(subscription, state, enabled=enabled))


def _echo_script(text: str) -> None:
    """Print SQL: as it is for a file or a program, and without orders for a terminal."""
    # typer.echo leaves out what looks like a color
    sys.stdout.write(log.printable(text) if sys.stdout.isatty() else text)


def main() -> None:
    """Run the console script: the bridge's own errors are printed as messages, without a stack trace."""
    try:
        app()
    except BridgeError as error:
        shared.echo_error(error)
        sys.exit(2 if isinstance(error, (ConfigError, InvalidLsn)) else 3 if isinstance(error, SparkLost) else 1)

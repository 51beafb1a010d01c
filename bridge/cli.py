"""The command line: each command a few lines over what does the work; only those that need Spark load it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bridge import __version__, config, log, remedies
from bridge.errors import BridgeError, ConfigError, SkipError, SparkLost
from bridge.signals import StopSignals
from bridge.track.catalog import Catalog, catalog_path
from bridge.track.lock import is_running
from bridge.track.skip import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.config import Config, Subscription

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Keep Delta Lake tables equal to published PostgreSQL tables.",
)

ConfigFile = Annotated[Path, typer.Option("--config", help="The configuration file.", metavar="FILE")]
Name = Annotated[str, typer.Argument(metavar="SUB", help="The subscription's name.")]
DEFAULT_FILE = Path("pgbridge.toml")

_TEMPLATE = """\
# pgbridge: which PostgreSQL publications to follow, and where their Delta tables go.
# Paths are relative to this file.
state_dir = "state"                # what is applied up to where; keep it with the warehouse

[spark]
master = "local[*]"                # or spark://…, yarn, k8s://…, sc://… (Spark Connect)

[subscription.{key}]
connection = {connection}
publications = [{publications}]
warehouse = {warehouse}      # public.t1 becomes the Delta table {example}

# PostgreSQL's subscription options, with their defaults:
# slot_name = "{slot_name}"        # made on the server at the first start
# create_slot = true               # false: use an existing slot as it stands
# copy_data = true                 # copy the rows that are there already
# binary = true                    # transfer values in binary form where possible
# streaming = "off"                # "on": receive large transactions while they run
# two_phase = false                # true: receive prepared transactions at PREPARE TRANSACTION
# disable_on_error = false

# pgbridge's own:
# messages = "log"                 # pg_logical_emit_message: "off", "log", or "table" (<warehouse>/pgbridge/messages)
"""


@app.callback(invoke_without_command=True)
def _root(
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"pgbridge {__version__}")
        raise typer.Exit


@app.command()
def init(
    *,
    connection: Annotated[str, typer.Option(help="libpq connection string or URI of the publisher.")],
    publication: Annotated[list[str], typer.Option(help="A publication to subscribe to; may be repeated.")],
    warehouse: Annotated[str, typer.Option(help="Folder or URI for the Delta tables.")],
    name: Annotated[str, typer.Option(help="The subscription's name.")] = "",
    config_file: ConfigFile = DEFAULT_FILE,
) -> None:
    """Write a short commented configuration file."""
    if config_file.exists():
        raise ConfigError(f"{config_file} is there already", hint="remove it, or name another file with --config")
    name = name or config.default_slot_name(publication[0])
    text = _TEMPLATE.format(
        key=name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False),
        slot_name=config.default_slot_name(name),
        connection=json.dumps(connection, ensure_ascii=False),
        publications=", ".join(json.dumps(item, ensure_ascii=False) for item in publication),
        warehouse=json.dumps(warehouse, ensure_ascii=False),
        example=f"{warehouse.rstrip('/')}/public/t1",
    )
    try:
        config_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"configuration file {config_file} cannot be written: {error}") from error
    try:
        config.load(config_file)
    except ConfigError:
        config_file.unlink()
        raise
    typer.echo(f"wrote {config_file}; start with: {remedies.run(config_file)}")


@app.command()
def run(
    *,
    until_caught_up: Annotated[
        bool, typer.Option(help="End once everything the publisher had flushed at the start is applied.")
    ] = False,
    config_file: ConfigFile = DEFAULT_FILE,
) -> None:
    """Run all enabled subscriptions; SIGTERM stops after the batch under way."""
    signals = StopSignals().install()  # before Spark is loaded, which takes seconds
    from bridge.daemon import Daemon  # noqa: PLC0415 - Spark takes seconds to load; other commands need none

    log.configure()
    bars = None
    if sys.stderr.isatty():
        from bridge.commands.progress_bar import CopyProgressBars  # noqa: PLC0415 - for a terminal only

        bars = CopyProgressBars(Console(stderr=True))
    settings = config.load(config_file)
    raise typer.Exit(Daemon(settings, signals, until_caught_up=until_caught_up, bars=bars).run())


@app.command()
def status(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status document instead of tables.")] = False,
    config_file: ConfigFile = DEFAULT_FILE,
) -> None:
    """Show subscriptions, their positions, their tables and the last error."""
    from bridge.commands import status as report  # noqa: PLC0415 - psycopg and rich's tables, for this command only

    def show(settings: Config, catalog: Catalog, *, running: bool) -> None:
        document = report.collect(settings, catalog, running=running)
        if as_json:
            typer.echo(json.dumps(document, indent=2))
        else:
            Console().print(report.render(document))

    _with_catalog(config_file, show)


@app.command()
def publications(
    name: Annotated[
        str | None, typer.Argument(metavar="[SUB]", help="The subscription's name; all without it.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the document instead of tables.")] = False,
    dump: Annotated[
        bool, typer.Option("--dump", help="Print the server's own publications as CREATE PUBLICATION statements.")
    ] = False,
    config_file: ConfigFile = DEFAULT_FILE,
) -> None:
    """Show what is published of every table, and why; or write it down as definitions."""
    from bridge.commands import publications as report  # noqa: PLC0415 - psycopg and rich's tables, for this command only

    settings = config.load(config_file)
    chosen = list(settings.subscription.values()) if name is None else [_subscription(settings, name)]
    if dump:
        typer.echo(report.dump(chosen), nl=False)
        return
    document = report.collect(chosen)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        Console().print(report.render(document))
    if report.is_refused(document):
        raise typer.Exit(1)


@app.command()
def enable(name: Name, *, config_file: ConfigFile = DEFAULT_FILE) -> None:
    """Let a subscription run: at once if the daemon does, else at its next start."""
    _set_enabled(config_file, name, enabled=True)


@app.command()
def disable(name: Name, *, config_file: ConfigFile = DEFAULT_FILE) -> None:
    """Stop a subscription after the batch under way; its slot goes on holding WAL on the server."""
    _set_enabled(config_file, name, enabled=False)


@app.command()
def skip(
    name: Name,
    *,
    lsn: Annotated[
        str,
        typer.Option(metavar="LSN", help='Where it finished, as its error says; "none" takes it back.'),
    ],
    config_file: ConfigFile = DEFAULT_FILE,
) -> None:
    """Skip the transaction that cannot be applied, whole; what it held is kept in the state directory."""

    def change(settings: Config, catalog: Catalog, *, running: bool) -> None:
        _subscription(settings, name)
        try:
            skip_lsn = parse(lsn, catalog.remote_lsn(name))
        except ValueError as error:
            raise SkipError(str(error)) from error
        catalog.set_skip_lsn(name, skip_lsn)
        when = "now" if running else "at the daemon's next start"
        if skip_lsn is None:
            typer.echo(f'subscription "{name}": nothing is skipped')
        else:
            typer.echo(f'subscription "{name}": the transaction that finished at {skip_lsn} is skipped ({when})')

    _with_catalog(config_file, change)


@app.command()
def refresh(
    name: Name,
    *,
    resync: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Copy this table afresh instead (public.t or t); may be repeated."),
    ] = None,
    copy_data: Annotated[
        bool | None,
        typer.Option(
            "--copy-data/--no-copy-data", help="Copy what added tables hold; without it as the configuration says."
        ),
    ] = None,
    config_file: ConfigFile = DEFAULT_FILE,
) -> None:
    """Take up tables that were added to the publications, and stop those that were removed."""
    from bridge.commands import refresh as report  # noqa: PLC0415 - psycopg, for this command only

    def ask(settings: Config, catalog: Catalog, *, running: bool) -> None:
        when = "now" if running else "at the daemon's next start"
        chosen = _subscription(settings, name)
        for line in report.ask(chosen, catalog, resync=resync or [], copy_data=copy_data, when=when):
            typer.echo(line)

    _with_catalog(config_file, ask)


@app.command()
def origin(
    name: Annotated[
        str | None, typer.Argument(metavar="[SUB]", help="The subscription's name; all without it.")
    ] = None,
    *,
    advance: Annotated[
        str,
        typer.Option(metavar="LSN", help="Go on from here instead; the daemon must be stopped."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the document instead of a table.")] = False,
    config_file: ConfigFile = DEFAULT_FILE,
) -> None:
    """Show up to where every transaction is durable, or move it on by hand."""
    from bridge.commands import origin as report  # noqa: PLC0415 - psycopg and rich's tables, for this command only

    def use(settings: Config, catalog: Catalog, **_: object) -> None:
        chosen = list(settings.subscription.values()) if name is None else [_subscription(settings, name)]
        if advance:
            if name is None:
                raise ConfigError("--advance needs the subscription's name")
            typer.echo(report.advance(settings, catalog, chosen[0], advance))
            return
        document = report.collect(chosen, catalog)
        if as_json:
            typer.echo(json.dumps(document, indent=2))
        else:
            Console().print(report.render(document))

    _with_catalog(config_file, use)


@app.command()
def demo(
    *,
    directory: Annotated[Path, typer.Option(help="Where the demo's Delta tables go.")] = Path("demo"),
    seconds: Annotated[float, typer.Option(help="How long the load runs.")] = 30.0,
) -> None:
    """Show the whole job on a private PostgreSQL: copy, stream, kill, restart, proof of equality."""
    from bridge.demo.show import run_demo  # noqa: PLC0415 - the embedded server is an optional dependency

    raise typer.Exit(run_demo(directory, seconds))


def _set_enabled(config_file: Path, name: str, *, enabled: bool) -> None:
    def change(settings: Config, catalog: Catalog, *, running: bool) -> None:
        _subscription(settings, name)
        catalog.set_enabled(name, enabled=enabled)
        when = "now" if running else "at the daemon's next start"
        typer.echo(f'subscription "{name}" {"enabled" if enabled else "disabled"} ({when})')

    _with_catalog(config_file, change)


def _subscription(settings: Config, name: str) -> Subscription:
    if name not in settings.subscription:
        known = ", ".join(f'"{known}"' for known in settings.subscription)
        raise ConfigError(f'subscription "{name}" does not exist (known: {known})')
    return settings.subscription[name]


def _with_catalog(config_file: Path, use: Callable[..., None]) -> None:
    """Open the configuration and its catalog, for a command that may meet a running daemon."""
    settings = config.load(config_file)
    catalog = Catalog(catalog_path(settings.state_dir))
    try:
        for subscription in settings.subscription.values():
            catalog.register(subscription.name, enabled=subscription.enabled)
        use(settings, catalog, running=is_running(settings.state_dir))
    finally:
        catalog.close()


def main() -> None:
    """The console script: errors of the bridge are told in words, not in stack traces."""
    try:
        app()
    except BridgeError as error:
        typer.echo(f"pgbridge: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 3 if isinstance(error, SparkLost) else 1)


if __name__ == "__main__":
    main()

"""The command line of what reads or mends Delta tables, or positions, apart from the stream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pgbridge.bridge.commands.state import opened
from pgbridge.bridge.config import config
from pgbridge.bridge.runtime import errors, log
from pgbridge.bridge.service import cli_shared as shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def replay(
    name: shared.Name,
    *,
    lsn: Annotated[str, typer.Option(metavar="LSN", help="Finish LSN of a transaction that was skipped.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it would overwrite, and change nothing.")
    ] = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Apply a transaction that was skipped; stop the daemon first.

    The command shows what the transaction overwrites in the tables as they are now, then applies it.
    """
    from pgbridge.bridge.service.replay import replay as command  # noqa: PLC0415 - Spark, for this command only

    log.configure()
    settings = config.load(config_file)
    (subscription,) = settings.choose(name)
    for line in command(settings, subscription, lsn, dry_run=dry_run):
        shared.echo(line)


def recover(
    name: shared.OptionalName = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would become of each table, and change nothing.")
    ] = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Make a lost state directory anew, from the Delta tables and the replication slot; stop the daemon first.

    Tables go on where they are. What was not copied to its end is copied again.
    """
    from pgbridge.bridge.recovery.recover import recover as command  # noqa: PLC0415 - Spark, for this command only

    log.configure()
    settings = config.load(config_file)
    for line in command(settings, settings.choose(name), dry_run=dry_run):
        shared.echo(line)


def show_skipped(config_file: Path, name: str, lsn: str) -> None:
    """Print what a skipped transaction held, as lines of JSON."""
    from pgbridge.bridge.service.replay import show_skipped as command  # noqa: PLC0415 - Arrow, for this command only

    settings = config.load(config_file)
    (subscription,) = settings.choose(name)
    for line in command(settings, subscription, lsn):
        typer.echo(line)


def snapshot(
    name: shared.OptionalName = None,
    *,
    at: Annotated[
        str, typer.Option(metavar="POSITION", help='An LSN, a time (UTC if it has no zone), or "now".')
    ] = "now",
    views: Annotated[
        str, typer.Option(metavar="NAMESPACE", help="Create a view of each table's version in this namespace.")
    ] = "",
    as_json: shared.AsJson = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Show each table's Delta version as of one LSN, so that readers see whole transactions.

    It is the LSN of the last batch that ends at or before the position.
    """
    from pgbridge.bridge.snapshots import snapshot as command  # noqa: PLC0415 - Spark, for this command only

    log.configure()
    settings = config.load(config_file)
    document = command.collect(settings, settings.choose(name), at, views=views)
    shared.print_document(document, command.render, as_json=as_json)
    if command.is_incomplete(document):
        raise typer.Exit(1)


def verify(  # noqa: PLR0913 - options
    name: shared.OptionalName = None,
    *,
    table: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="Table to verify (public.t or t); may be repeated.")
    ] = None,
    max_rate: Annotated[
        str, typer.Option(metavar="BYTES/S", help="Read the source no faster than this, for example 50MB.")
    ] = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace rows that differ by the source's. Stop the daemon first.")
    ] = False,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Show when each table was verified last, and when the daemon will.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            metavar="N",
            min=0.0,
            help="Seconds to wait for each open transaction, and then for a daemon that is behind.",
        ),
    ] = 120.0,
    shown: Annotated[int, typer.Option(metavar="N", min=0, help="How many differences of each table to show.")] = 10,
    as_json: shared.AsJson = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Compare published tables with their Delta tables, as of one LSN, beside the daemon or without one."""
    if schedule:
        _show_schedule(config_file, name, as_json=as_json)
        return
    from pgbridge.bridge.verify import command  # noqa: PLC0415 - Spark, for this command only

    log.configure()  # warnings go to standard error, beside --json
    settings = config.load(config_file)
    try:
        document = command.collect(
            settings,
            settings.choose(name),
            tables=table or (),
            max_rate=command.rate_of(max_rate) if max_rate else None,
            patience_s=wait,
            repaired=repair,
            shown=shown,
            progress=_verify_progress() if sys.stderr.isatty() else lambda *_: None,
        )
    except errors.SparkLost:
        raise
    except errors.BridgeError as error:  # 1 would say that there are differences
        shared.echo_error(error)
        raise typer.Exit(command.UNVERIFIED) from error
    shared.print_document(document, command.render, as_json=as_json)
    raise typer.Exit(document["exit_code"])


def _show_schedule(config_file: Path, name: str | None, *, as_json: bool) -> None:
    from pgbridge.bridge.verify import schedule  # noqa: PLC0415 - as above, but for Spark

    with opened(config_file) as state:
        document = schedule.collect(state.catalog, state.config.choose(name))
    shared.print_document(document, schedule.render, as_json=as_json)


def _verify_progress() -> Callable[[str, float, float], None]:
    def show(relation: str, done_bytes: float, total_bytes: float) -> None:
        part = done_bytes / total_bytes if total_bytes else 1.0
        end = "\n" if part >= 1 else ""
        sys.stderr.write(f"\r{log.one_line(relation)}: {part:4.0%} of {total_bytes / (1 << 20):,.0f} MiB read{end}")
        sys.stderr.flush()

    return show


def origin(
    name: shared.OptionalName = None,
    *,
    advance: Annotated[
        str,
        typer.Option(
            metavar="LSN", help="New origin. Transactions that end before it are never applied. Stop the daemon first."
        ),
    ] = "",
    upgraded: Annotated[
        bool, typer.Option("--upgraded", help="Go on with what pg_upgrade made of the server. Stop the daemon first.")
    ] = False,
    as_json: shared.AsJson = False,
    config_file: shared.ConfigFile = shared.DEFAULT_FILE,
) -> None:
    """Show the LSN up to which every transaction is durable in Delta, or change it by hand."""
    from pgbridge.bridge.commands import origin as command  # noqa: PLC0415 - psycopg, for this command only

    with opened(config_file) as state:
        chosen = state.config.choose(name)
        if (advance or upgraded) and name is None:
            raise errors.ConfigError(f"--{'advance' if advance else 'upgraded'} needs the name of a subscription")
        if advance:
            shared.echo(command.advance(state.config, state.catalog, chosen[0], advance))
        elif upgraded:
            for line in command.upgraded(state.config, state.catalog, chosen[0]):
                shared.echo(line)
        else:
            shared.print_document(command.collect(chosen, state.catalog), command.render, as_json=as_json)

"""What the command line's modules share: arguments that several commands have, how they print, and what help shows.

Below its options a command's `--help` has exit codes of its own, and an example. `docs/commands/` is made from the same
(`python -m tests.generated_commands`).
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import typer
from rich.console import Console, RenderableType

from pgbridge.bridge.runtime import errors, log, remedies

if TYPE_CHECKING:
    from collections.abc import Callable


DEFAULT_FILE = remedies.DEFAULT_FILE


def _names(context: typer.Context, incomplete: str) -> list[str]:
    """The subscriptions' names that the shell may complete; none if the configuration cannot be read."""
    from pgbridge.bridge.config.config import load  # noqa: PLC0415 - for this only

    with suppress(errors.ConfigError):
        names = load(context.params.get("config_file") or DEFAULT_FILE).subscription
        return [name for name in names if name.startswith(incomplete)]
    return []


def _use(config_file: Path) -> Path:
    remedies.use(config_file)
    return config_file


ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="Configuration file.", metavar="FILE", callback=_use)]
Name = Annotated[str, typer.Argument(metavar="SUB", help="Name of the subscription.", autocompletion=_names)]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="SUB", help="Name of the subscription; without it, all.", autocompletion=_names)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Document = TypeVar("Document")


def echo(line: str) -> None:
    """Print a line."""
    typer.echo(log.one_line(line))


def echo_error(error: errors.BridgeError) -> None:
    """Print an error as a message on standard error, without a stack trace."""
    typer.echo(log.printable(f"pgbridge: {error}"), err=True)


def print_document(document: Document, render: Callable[[Document], RenderableType], *, as_json: bool) -> None:
    """Print a command's document, as JSON or as `render` shows it.

    Lines of text are not broken: a command or a statement is to be copied as it stands.
    """
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        Console().print(render(log.printable_document(document)), soft_wrap=True)


_WRONG: Final = "the command line or the configuration file is wrong, and nothing was started or changed"
USUAL: Final = {0: "done", 1: "an error", 2: _WRONG}
"""Exit codes of a command that has no others of its own."""

_SPARK_LOST: Final = {3: "Spark cannot be started, or is lost"}


class Help(NamedTuple):
    """The help of one command.

    Attributes:
        example: A command line that can be typed.
        exit_codes: What its exit codes mean, where that differs from `USUAL`.
    """

    example: str
    exit_codes: dict[int, str]


COMMANDS: Final = {
    "init": Help(
        'pgbridge init --connection "host=primary dbname=shop user=replicator" '
        "--publication shop_pub --warehouse ./lake",
        {},
    ),
    "check": Help(
        "pgbridge check shop_pub", {0: "all passed", 1: "there are warnings", 2: f"something failed, or {_WRONG}"}
    ),
    "prepare": Help("pgbridge prepare --config pgbridge.toml", _SPARK_LOST),
    "run": Help(
        "pgbridge run --until-caught-up",
        {
            0: "a clean stop",
            1: "an error, or with --until-caught-up: a subscription failed",
            3: "Spark cannot be started; with --until-caught-up: its JVM died thirteen times within ten minutes",
            130: "a second signal",
        },
    ),
    "reload": Help(
        "pgbridge reload",
        {
            0: "all changes are applied, or no daemon runs",
            1: "the daemon refuses a change while it runs, or has not answered within 30 seconds",
        },
    ),
    "status": Help("pgbridge status --watch 5", {}),
    "publications": Help(
        "pgbridge publications shop_pub",
        {1: "a subscription cannot be read, or its definitions cannot be applied to the stream"},
    ),
    "enable": Help("pgbridge enable shop_pub", {}),
    "disable": Help("pgbridge disable shop_pub", {}),
    "skip": Help("pgbridge skip shop_pub --lsn 0/2F52788", {}),
    "replay": Help("pgbridge replay shop_pub --lsn 0/2F52788 --dry-run", _SPARK_LOST),
    "recover": Help("pgbridge recover --dry-run", _SPARK_LOST),
    "refresh": Help("pgbridge refresh shop_pub --resync public.orders", {}),
    "resync": Help("pgbridge resync shop_pub", {}),
    "drop": Help("pgbridge drop shop_pub", {}),
    "origin": Help("pgbridge origin shop_pub --advance 0/2F696C0", {}),
    "wait": Help("pgbridge wait shop_pub --timeout 10", {1: "an error, or it was not reached in time"}),
    "snapshot": Help(
        'pgbridge snapshot shop_pub --at "2026-05-01 12:00:01"',
        {1: "an error, or a table's version is gone", **_SPARK_LOST},
    ),
    "verify": Help(
        "pgbridge verify shop_pub --table orders --max-rate 50MB",
        {
            0: "all tables are equal",
            1: "there are differences that were not repaired",
            2: f"a table could not be verified, or nothing could, or {_WRONG}",
            **_SPARK_LOST,
        },
    ),
    "demo": Help("pgbridge demo --seconds 60", {1: "an error, or a table is not equal", 130: "interrupted"}),
}
"""The help of each command, by its name."""


def add_epilogs(app: typer.Typer) -> None:
    """Give each command that is registered its epilog.

    Raises:
        KeyError: A command has no entry in `COMMANDS`.
    """
    for command in app.registered_commands:
        name = str(command.name or getattr(command.callback, "__name__", ""))
        command.epilog = epilog(name)


def epilog(name: str) -> str:
    """Return what `--help` of a command shows last."""
    example, own = COMMANDS[name]
    codes = "; ".join(f"{code} = {meaning}" for code, meaning in {**USUAL, **own}.items())
    return f"Exit codes: {codes}.\n\nExample: {example}"

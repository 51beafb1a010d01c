"""What the command line's modules share: arguments that several commands have, and how they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console, RenderableType

from bridge.runtime.log import one_line, printable, printable_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.runtime.errors import BridgeError

ConfigFile = Annotated[Path, typer.Option("--config", help="Configuration file.", metavar="FILE")]
Name = Annotated[str, typer.Argument(metavar="SUB", help="Name of the subscription.")]
OptionalName = Annotated[str | None, typer.Argument(metavar="SUB", help="Name of the subscription; without it, all.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Document = TypeVar("Document")
DEFAULT_FILE = Path("pgbridge.toml")


def echo(line: str) -> None:
    """Print a line."""
    typer.echo(one_line(line))


def echo_error(error: BridgeError) -> None:
    """Print an error as a message on standard error, without a stack trace."""
    typer.echo(printable(f"pgbridge: {error}"), err=True)


def print_document(
    document: Document,
    render: Callable[[Document], RenderableType],
    *,
    as_json: bool,
    soft_wrap: bool = False,
) -> None:
    """Print a command's document, as JSON or as `render` shows it."""
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        Console().print(render(printable_document(document)), soft_wrap=soft_wrap)

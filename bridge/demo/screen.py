"""The demo's output: on a terminal a table that is updated in place, elsewhere a line every few seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bridge.commands.status import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from bridge.demo.proof import Verdict
    from bridge.demo.watch import SubscriptionView, TableView

LINE_EVERY_S = 4.0

_STATES = {"i": "to be copied", "d": "being copied", "f": "copied", "s": "following", "r": "following"}


class Screen:
    """Prints events as they happen, and the current state below them, or between them.

    Args:
        console: The output; `is_terminal` decides on the form.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._line_due_s = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the current state; `tell` can still be used."""
        if self._live is not None:
            self._live.update(Text(), refresh=True)
            self._live.stop()
            self._live = None

    def tell(self, event: str, *, style: str = "") -> None:
        """Print an event, with the time since the start."""
        elapsed = Text(f"{time.monotonic() - self._started_s:4.0f} s  ", style="dim")
        # only a terminal wraps lines
        self._console.print(elapsed + Text(event, style=style), soft_wrap=not self._console.is_terminal)

    def show(self, views: Sequence[SubscriptionView], load: str) -> None:
        """Show the current state.

        Args:
            views: The subscriptions.
            load: How much the load has done.
        """
        if self._live is not None:
            self._live.update(render(views, load), refresh=True)
        elif time.monotonic() >= self._line_due_s:
            self._line_due_s = time.monotonic() + LINE_EVERY_S
            self.tell("; ".join([load, *map(line, views)]))

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Show the result of the comparison."""
        self._console.print(render_verdicts(verdicts), soft_wrap=not self._console.is_terminal)

    def paste(self, command: str) -> None:
        """Print a command without line breaks, so that it can be copied."""
        self._console.print(Text(command), soft_wrap=True)


def line(view: SubscriptionView) -> str:
    """Return a subscription's state as one line."""
    published = sum(table.published_rows for table in view.tables)
    arrived = sum(table.delta_rows or 0 for table in view.tables)
    return (
        f"{view.name} {view.state}, {arrived:,} rows in Delta of {published:,},"
        f" lag {size_text(view.lag_bytes)}, remote_lsn {view.remote_lsn or '-'}"
    )


def render(views: Sequence[SubscriptionView], load: str) -> RenderableType:
    """Render the state for a terminal: a line for each subscription, and below it a line for each of its tables."""
    parts: list[RenderableType] = [Text(), _columns(heading=True)]
    for view in views:
        position = f", lag {size_text(view.lag_bytes)}, remote_lsn {view.remote_lsn or '-'}"
        parts.append(Text.assemble((f"{view.name}: ", "bold"), (view.state, _style(view.state)), position))
        table = _columns(heading=False)
        for row in view.tables:
            table.add_row(*_cells(row))
        parts.append(table)
    return Group(*parts, Text(f"\n{load}"))


def _columns(*, heading: bool) -> Table:
    """Return a table with fixed column widths, so that those of all subscriptions align; 77 characters in all."""
    table = Table(box=None, pad_edge=False, show_header=heading)
    for name, width in (("", 21), ("", 12), ("rows published", 14), ("rows in Delta", 13), ("version", 9)):
        table.add_column(name, width=width, justify="right" if name else "left", no_wrap=True)
    return table


def _cells(table: TableView) -> tuple[str, ...]:
    return (
        f"  {table.name}",
        _STATES.get(table.state, "-"),
        f"{table.published_rows:,}",
        "-" if table.delta_rows is None else f"{table.delta_rows:,}",
        "-" if table.version is None else str(table.version),
    )


def _style(state: str) -> str:
    return {"streaming": "green", "stopped": "red", "error": "red"}.get(state, "yellow")


def render_verdicts(verdicts: Sequence[Verdict]) -> RenderableType:
    """Render a line for each table, then the first differences of tables that differ."""
    table = Table(box=None, pad_edge=False)
    for heading in ("subscription", "table", "columns", "rows", "equal"):
        right = heading in {"columns", "rows"}
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for verdict in verdicts:
        equal = Text("yes", style="green") if verdict.equal else Text("NO", style="bold red")
        table.add_row(verdict.subscription, verdict.table, str(verdict.columns), f"{verdict.rows:,}", equal)
    parts: list[RenderableType] = [table]
    for verdict in verdicts:
        if not verdict.equal:
            parts.append(Text(f"\n{verdict.subscription}: {verdict.table} differs:", style="bold red"))
            parts += [Text(f"  {difference}") for difference in verdict.differences]
    return Group(*parts)

"""How `pgbridge status` shows the status document (`bridge.monitor.document`) to people."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bridge.catalog.catalog_rows import CopyRow
from bridge.publication.differences import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.monitor.document import StatusDocument

STATES = {
    "i": "to be copied",
    "d": "being copied",
    "f": "copied",
    "s": "following",
    "r": "ready",
}
"""A word for each of a table's states."""

_TWO_LINES = {"confirmed_flush_lsn": "confirmed_\nflush_lsn"}


def render(document: StatusDocument) -> RenderableType:
    """Render a printable document: a table of subscriptions, a table of their Delta tables, then problems."""
    lsns = ("remote_lsn", "received_lsn", "confirmed_flush_lsn")
    return Group(overview(document, lsns), Text(), tables(document), problems(document))


def overview(document: StatusDocument, lsns: Sequence[str], *, watched: bool = False) -> Table:
    """Render the subscriptions with some of their LSNs; watched, also their rate, and how many tables follow."""
    rendered = Table(box=None, pad_edge=False)
    # On a narrow screen names wrap, LSNs do not; 80 columns hold usual ones.
    rendered.add_column("\nsubscription", min_width=8, overflow="fold")
    for heading in ("state", *lsns):
        rendered.add_column(_TWO_LINES.get(heading, f"\n{heading}"), no_wrap=True)
    for heading in ("lag", *(["applied", "follow"] if watched else []), "errors"):
        rendered.add_column(f"\n{heading}", no_wrap=True, justify="right")
    for status in document["subscriptions"]:
        values: dict[str, Any] = {**status}
        cells = [values["name"], values["state"], *(values[key] or "-" for key in lsns), size_text(status["lag_bytes"])]
        if watched:
            rate = values["applied_bytes_per_s"]
            following = sum(table["state"] in "sr" for table in status["tables"])
            cells += ["-" if rate is None else f"{size_text(rate)}/s", f"{following}/{len(status['tables'])}"]
        rendered.add_row(*map(cell, (*cells, str(status["apply_error_count"] + status["sync_error_count"]))))
    return rendered


def tables(document: StatusDocument, states: str = "idfsr") -> Table:
    """Render the Delta tables in some of the states."""
    rendered = Table(box=None, pad_edge=False)
    for heading in ("table", "state", "Delta table"):
        rendered.add_column(heading, overflow="fold")
    for status in document["subscriptions"]:
        waiting = {problem["relation"] for problem in status["problems"] if problem["kind"] == "waits"}
        differing = {problem["relation"] for problem in status["problems"] if problem["kind"] in KINDS}
        for table in (table for table in status["tables"] if table["state"] in states):
            word = "waits for its resync" if table["name"] in waiting else STATES[table["state"]]
            state = f"{table['state']} ({word}{', differs' * (table['name'] in differing)})"
            if "copy" in table:
                state += f"\n{copy_text(CopyRow(table['name'], '', **table['copy']))}"
            if kept := table.get("maintenance"):
                state += f"\n{kept['files']} files"
                state += f", optimized {kept['optimized']}" if kept["optimized"] else ""
            rendered.add_row(cell(f"{status['name']}: {table['name']}"), state, cell(table["path"]))
    return rendered


def problems(document: StatusDocument) -> Text:
    """Render what an operator should know of the subscriptions."""
    shown = Text()
    for status in document["subscriptions"]:
        for problem in status["problems"]:
            time = f", {problem['time']}" if problem["time"] else ""
            style = "bold red" if problem["level"] == "problem" else "bold yellow"
            shown.append(f"\n{status['name']}{time}: ", style=style).append(f"{problem['message']}\n")
            if problem["hint"]:
                shown.append(f"HINT:  {problem['hint']}\n")
        if status["conflicts"]:
            counts = ", ".join(f"{conflict} {count}" for conflict, count in status["conflicts"].items())
            shown.append(f"\n{status['name']}, conflicts: {counts}\n")
    return shown


def cell(text: str) -> Text:
    """A name for a table's cell: rich would read markup in a plain string."""
    return Text(text)


def copy_text(copy: CopyRow) -> str:
    """A copy's progress: percentage, rows, size, rate and time left, as far as known."""
    parts = [f"{copy.rows:,} rows".replace(",", " "), size_text(copy.bytes)]
    if copy.total_bytes_estimate:
        parts.insert(0, f"{copy.bytes / copy.total_bytes_estimate:.0%}")
    if copy.rows_per_s is not None:
        parts.append(f"{copy.rows_per_s:,.0f} rows/s".replace(",", " "))
    if copy.seconds_left is not None:
        parts.append(f"{timedelta(seconds=round(copy.seconds_left))} left")
    return ", ".join(parts)


def size_text(size_bytes: int | None) -> str:
    """A number of bytes in PostgreSQL's units, as pg_size_pretty writes it."""
    if size_bytes is None:
        return "-"
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 10240:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.0f} TB"

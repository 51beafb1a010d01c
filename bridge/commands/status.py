"""How people see the state on a terminal: `pgbridge status`, once or again and again, and the copies of `pgbridge run`.

The status document (`bridge.monitor.document`) is shown as tables. With `--watch` it is shown again and again, on a
terminal in place, else one after the other. Log lines scroll above the progress bars of copies.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from pgbridge.bridge.catalog.catalog_rows import CopyRow
from pgbridge.bridge.commands.state import opened
from pgbridge.bridge.monitor.document import StatusDocument, SubscriptionStatus, collect
from pgbridge.bridge.publication.differences import KINDS
from pgbridge.bridge.receive.slot_watch import ServerSlots
from pgbridge.bridge.runtime import errors, log
from pgbridge.bridge.runtime.listing import Listing
from pgbridge.bridge.runtime.supervisor import interruptible
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

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


def overview(document: StatusDocument, lsns: Sequence[str], *, watched: bool = False) -> Listing:
    """Render the subscriptions with some of their LSNs; watched, also their rate, and how many tables follow.

    Watched, the LSNs come last: a narrow screen cuts them.
    """
    told = ["lag", "errors", *(["applied", "follow"] if watched else [])]
    headings = ["subscription", "state", *told, *lsns] if watched else ["subscription", "state", *lsns, *told]
    rendered = Listing(*(_TWO_LINES.get(heading, f"\n{heading}") for heading in headings))
    for heading, column in zip(headings, rendered.columns, strict=True):
        column.no_wrap, column.justify = True, "right" if heading in told else "left"
    for status in document["subscriptions"]:
        values: dict[str, Any] = {key: value if value is not None else "-" for key, value in status.items()}
        values |= {
            "subscription": status["name"],
            "lag": size_text(status["lag_bytes"]),
            "errors": _errors_text(status),
        }
        if watched:
            rate = values["applied_bytes_per_s"]
            following = sum(table["state"] in "sr" for table in status["tables"])
            values["applied"] = rate if rate == "-" else f"{size_text(rate)}/s"
            values["follow"] = f"{following}/{len(status['tables'])}"
        rendered.add_row(*(cell(values[heading]) for heading in headings))
    return rendered


def _errors_text(status: SubscriptionStatus) -> str:
    """How many errors there have been; in brackets where none of them lasts."""
    count = status["apply_error_count"] + status["sync_error_count"]
    lasts = any(problem["kind"] in {"apply", "sync", "waits"} for problem in status["problems"])
    return str(count) if lasts or not count else f"({count})"


def tables(document: StatusDocument, states: str = "idfsr") -> Listing:
    """Render the Delta tables in some of the states."""
    rendered = Listing("table", "state", "Delta table")
    for column in rendered.columns:
        column.no_wrap = True
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


DEFAULT_S: Final = 2.0
LEAST_S: Final = 0.5
MOST_S: Final = 86_400.0

_SERVERS_S: Final = 3.0
"""How long a look waits for servers."""

Look = dict[str, Any]
"""The status document with its `time`, whether a daemon is `running`, and each subscription's `applied_bytes_per_s`, by
how much its `remote_lsn` has moved since the look before, in a second, None if that is not known; or `time` and `error`
if nothing could be seen."""


def watch(config_file: Path, interval_s: float, *, as_json: bool) -> None:
    """Look every `interval_s` seconds, until a signal ends it.

    Raises:
        BridgeError: The first look has failed. A later one's error is shown.
    """
    with suppress(KeyboardInterrupt), interruptible(), ExitStack() as stack:
        show = _lines if as_json else _shower(Console(), stack)
        looker = Looker(config_file)
        while True:
            show(looker.look())
            time.sleep(interval_s)


class Looker:
    """Looks again and again, whether the daemon runs or not.

    Args:
        config_file: The configuration file. It is read at each look, for it may have changed.
    """

    def __init__(self, config_file: Path) -> None:
        self._config_file = config_file
        self._servers = ServerSlots(_SERVERS_S)
        self._seen_once = False
        self._before: dict[str, Lsn] = {}
        self._before_s = 0.0

    def look(self) -> Look:
        """Look once; it takes a few seconds at most.

        Raises:
            BridgeError: Nothing can be seen, and nothing has been before.
        """
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with opened(self._config_file) as state:
                document = collect(state.config, state.catalog, running=state.running, servers=self._servers)
                look: Look = {"time": moment, "running": state.running, **document}
        except errors.BridgeError as error:
            if not self._seen_once:
                raise
            return {"time": moment, "error": str(error)}
        self._seen_once = True
        self._add_rates(look, time.monotonic())
        return look

    def _add_rates(self, look: Look, now_s: float) -> None:
        passed_s, before = now_s - self._before_s, self._before
        self._before_s, self._before = now_s, {}
        for status in look["subscriptions"]:
            name, rate = status["name"], None
            if status["remote_lsn"] is not None:
                lsn = self._before[name] = Lsn.parse(status["remote_lsn"])
                if name in before and lsn >= before[name]:
                    rate = round((lsn - before[name]) / passed_s)
            status["applied_bytes_per_s"] = rate


def _lines(look: Look) -> None:
    """Write a compact document on a line, flushed."""
    sys.stdout.write(json.dumps(look, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _shower(console: Console, stack: ExitStack) -> Callable[[Look], None]:
    """Return what shows a look: in place on a terminal, which keeps the last one; else as a block of plain text."""
    if console.is_terminal and not console.is_dumb_terminal:
        live = stack.enter_context(Live(console=console, auto_refresh=False))
        console.show_cursor(True)  # the process may be suspended
        seen: Look | None = None

        def draw(look: Look) -> None:
            nonlocal seen
            seen = seen if "error" in look else look
            live.update(frame(look, seen), refresh=True)

        return draw
    plain = Console(force_terminal=False, color_system=None)  # whatever the environment says of colours

    def write(look: Look) -> None:
        plain.print(frame(look, None if "error" in look else look), crop=False)
        plain.print()
        sys.stdout.flush()

    return write


def frame(look: Look, seen: Look | None) -> RenderableType:
    """Render a look: when it was, the subscriptions, what is wrong with them, and the copies under way.

    Args:
        seen: The last one that saw something; None for none.
    """
    source = "nothing could be read" if "error" in look else f"{'the' if look['running'] else 'no'} daemon runs"
    parts: list[RenderableType] = [Text(f"{look['time']}  {source}  (Ctrl-C ends)", no_wrap=True, overflow="ellipsis")]
    if "error" in look:
        parts.append(Text(f"\n{log.printable_document(look)['error']}", style="bold red"))
    if seen is not None:
        if seen is not look:
            parts.append(Text(f"\nas of {seen['time']}:"))
        document: Any = log.printable_document(seen)
        parts.append(overview(document, ("remote_lsn", "confirmed_flush_lsn"), watched=True))
        said = problems(document)  # before the tables: on a short screen a problem matters most
        said.rstrip()
        parts += [said] if said else []
        if any(table["state"] == "d" for status in document["subscriptions"] for table in status["tables"]):
            parts += [Text(), tables(document, "d")]
    return Group(*parts)


class CopyProgressBars:
    """One bar for each table that is being copied; the screen shows nothing while no copy runs.

    Args:
        console: The terminal. What is written to sys.stderr meanwhile is shown above the bars.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def show(self, copies: Mapping[str, Sequence[CopyRow]]) -> None:
        """Draw the copies under way, given by subscription."""
        rows = {log.one_line(f"{name}: {row.qualified_name}"): row for name, copied in copies.items() for row in copied}
        if not rows:
            self.close()
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[known]}", markup=False),
                console=self._console,
            )
            self._progress.start()
        for name in self._tasks.keys() - rows.keys():
            self._progress.remove_task(self._tasks.pop(name))
        for name, row in rows.items():
            task = self._tasks.get(name)
            if task is None:
                task = self._tasks[name] = self._progress.add_task(name, known="")
            total = row.total_bytes_estimate or None
            self._progress.update(task, completed=row.bytes, total=total, known=copy_text(row))

    def close(self) -> None:
        """Remove the bars from the screen."""
        if self._progress is not None:
            for task in self._tasks.values():
                self._progress.remove_task(task)
            self._tasks.clear()
            self._progress.stop()
            self._progress = None

"""Where `pgbridge status --watch` shows a look: in place on a terminal, as blocks of text, or as lines of JSON."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from bridge.commands.status import STATES, copy_of, copy_text, overview, problems
from bridge.runtime.log import printable, printable_document
from bridge.runtime.threads import Closing

if TYPE_CHECKING:
    from typing import Any, TextIO

    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from bridge.commands.watch import Look

_TABLE_COLUMNS = 80
"""Of an error message: its lines stay lines."""


class _NoTerminal:
    """A file or pipe: whoever reads it waits for the next look."""

    def wait(self, seconds: int) -> None:
        """Leave it to the next look to say how late it was."""

    def leave(self) -> None:
        """There is no screen."""

    def enter(self) -> None:
        """There is none."""


class JsonLines(_NoTerminal):
    """One compact document on each line, flushed.

    Args:
        stream: Where the lines go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, look: Look) -> None:
        """Write a line."""
        self._stream.write(json.dumps(look.as_json(), separators=(",", ":")) + "\n")
        self._stream.flush()


class Blocks(_NoTerminal):
    """One block of plain text for each look, an empty line between them.

    Args:
        stream: Where the text goes. Control characters do not, whatever the environment says of colours.
        width: Columns; None for what the environment says, or 80.
    """

    def __init__(self, stream: TextIO, width: int | None = None) -> None:
        self._stream = stream
        self._console = Console(file=stream, force_terminal=False, color_system=None, width=width)
        self._first = True

    def show(self, look: Look) -> None:
        """Write a block."""
        if not self._first:
            self._stream.write("\n")
        self._first = False
        self._console.print(frame(look))
        self._stream.flush()


class Screen(Closing):
    """A terminal's alternate screen, which is left with the last look below the command line.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._look: Look | None = None
        self._before: Look | None = None
        self._waiting_s = 0

    def enter(self) -> None:
        """Switch to the alternate screen, without a cursor, and draw."""
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        self._draw()

    def leave(self) -> None:
        """Switch back, with a cursor."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        """Switch back, and leave the last look there."""
        self.leave()
        if self._look is not None:
            self._console.print(frame(self._look, self._before))

    def __enter__(self) -> Self:
        self.enter()
        return self

    def show(self, look: Look) -> None:
        """Draw a look; one that could not see anything leaves what was seen before it."""
        if look.document is not None:
            self._before = look
        self._look = look
        self._waiting_s = 0
        self._draw()

    def wait(self, seconds: int) -> None:
        """Draw the same look again, with how long the next one has taken."""
        self._waiting_s = seconds
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            return
        note = f"no answer for {self._waiting_s} s" if self._waiting_s else "Ctrl-C ends"
        shown = Text(note) if self._look is None else frame(self._look, self._before, note)
        self._live.update(Cropped(shown), refresh=True)


class Cropped:
    """As many lines as the screen has; the last one says how many are missing."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._renderable, options.update(height=None), pad=False)
        height = max(1, options.height or options.max_height)
        missing = len(lines) - (height - 1) if len(lines) > height else 0
        for line in lines[: height - 1] if missing else lines:
            yield from line
            yield Segment.line()
        if missing:
            yield Text(f"… {missing} more lines", style="bold", no_wrap=True, overflow="crop")


class CutAtTheRight:
    """A table that keeps its columns on a narrow screen, which shows the first ones: narrowed, none could be read."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(width=max(options.max_width, _TABLE_COLUMNS), height=None)
        for line in console.render_lines(self._table, wide, pad=False):
            yield from Segment.adjust_line_length(line, options.max_width, pad=False)
            yield Segment.line()


def frame(look: Look, before: Look | None = None, note: str = "") -> RenderableType:
    """Render a look: where it is from, the subscriptions, what is wrong with them, and the copies under way.

    Args:
        look: The look.
        before: The last one that saw something; shown if this one did not.
        note: Stands behind the time.
    """
    head = Text(f"{look.time.isoformat(timespec='seconds')}  {_source(look)}", no_wrap=True, overflow="ellipsis")
    if note:
        head.append(f"  ({note})", style="dim")
    parts: list[RenderableType] = [head]
    if look.problem:
        parts.append(Text(f"\n{printable(look.problem)}", style="bold red"))
    seen = look if look.document is not None else before
    if seen is not None and seen.document is not None:
        if seen is not look:
            parts.append(Text(f"\nas of {seen.time.isoformat(timespec='seconds')}:"))
        document = printable_document(seen.document)
        parts.append(CutAtTheRight(overview(document, ("remote_lsn", "confirmed_flush_lsn"), rates=True)))
        for text in (problems(document), _copies(document)):  # on a short screen a problem matters most
            text.rstrip()  # each begins with an empty line
            parts += [text] if text else []
    return Group(*parts)


def _source(look: Look) -> str:
    if look.document is None:
        return "nothing could be read"
    return "the daemon runs" if look.running else "no daemon runs"


def _copies(document: dict[str, Any]) -> Text:
    """The tables that are not ready: each that is being copied, and how many are in every other state."""
    found = Text()
    for entry in document["subscriptions"]:
        name, tables = entry["name"], entry["tables"]
        counts = Counter(table["state"] for table in tables)
        if counts.keys() <= {"r"}:
            continue
        listed = ", ".join(f"{counts[state]} {word}" for state, word in STATES.items() if counts[state])
        found.append(f"\n{name}, tables: {listed}\n")
        for table in tables:
            if table["state"] == "d":
                progress = f"  {copy_text(copy_of(table))}" if "copy" in table else ""
                found.append(f"  {table['name']}{progress}\n")
    return found

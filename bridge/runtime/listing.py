"""Tables that commands print, as psql and kubectl do: no word is broken, however narrow the screen.

A path can be copied, and a line of a pipe is a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_UNBOUNDED = 1 << 20


class Listing(Table):
    """A table without lines, whose columns are no narrower than their longest word.

    On a terminal cells wrap between words, and a row that is too wide for it goes on beyond its edge; print it without
    cropping. Elsewhere nothing wraps.

    Args:
        headings: Those of the columns, as text.
    """

    def __init__(self, *headings: str) -> None:
        super().__init__(*headings, box=None, pad_edge=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render it."""
        unbounded = options.update(max_width=_UNBOUNDED)
        for column in self.columns:
            widths = [console.measure(cell, options=unbounded) for cell in (column.header, *column.cells)]
            column.min_width = max(width.maximum if column.no_wrap else width.minimum for width in widths)
        measured = console.measure(self, options=unbounded)
        needed = measured.minimum if console.is_terminal else measured.maximum
        yield from super().__rich_console__(console, options.update(max_width=max(options.max_width, needed)))

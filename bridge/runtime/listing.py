"""Tables that commands print, as psql and kubectl do: no word is broken, however narrow the screen.

A path can be copied, and a line of a pipe is a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

_UNBOUNDED = 1 << 20
_PADDING = 2
"""Between two columns."""


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
        least, most = [], []
        for column in self.columns:
            widths = [console.measure(cell, options=unbounded) for cell in (column.header, *column.cells)]
            most.append(max(width.maximum for width in widths))
            least.append(most[-1] if column.no_wrap else max(width.minimum for width in widths))
        for column, width in zip(self.columns, _fitted(least, most, self._room(console, options)), strict=True):
            column.width = width
        yield from super().__rich_console__(console, unbounded)

    def _room(self, console: Console, options: ConsoleOptions) -> int:
        return options.max_width - _PADDING * (len(self.columns) - 1) if console.is_terminal else _UNBOUNDED


def _fitted(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widths that fit as far as they can: the widest columns give way first, as Rich has it, but keep their words."""
    for cap in range(max(most, default=0), 0, -1):
        widths = [max(low, min(high, cap)) for low, high in zip(least, most, strict=True)]
        if sum(widths) <= room:
            return widths
    return list(least)

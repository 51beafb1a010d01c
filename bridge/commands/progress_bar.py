"""Progress bars of the copies under way, for `pgbridge run` on a terminal; log lines scroll above them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from bridge.commands.status import copy_text
from bridge.runtime.log import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from bridge.catalog.catalog_rows import CopyRow


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
        rows = {one_line(f"{name}: {row.qualified_name}"): row for name, some in copies.items() for row in some}
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

"""Bars on a terminal: one for each copy under way, the log above them, and nothing left behind."""

from __future__ import annotations

import io
import sys

from rich.console import Console

from bridge.catalog.catalog_rows import CopyRow
from bridge.commands.progress_bar import CopyProgressBars
from bridge.runtime import log
from tests.hostile import NAMES

T = CopyRow("public", "[red]t", 1000, 50_000, 200_000, 100.0, 30.0)


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        """It does."""
        return True


def last_frame(bars: CopyProgressBars, screen: Terminal) -> str:
    """What the bars are drawn as now."""
    assert bars._progress is not None
    bars._progress.refresh()
    return screen.getvalue().rsplit("\r", 1)[-1]


def test_bars_come_and_go(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    log.configure()
    bars = CopyProgressBars(Console(file=screen, force_terminal=True, width=120))
    bars.show({"shop": []})
    assert screen.getvalue() == ""
    bars.show({"shop": [T], "other": []})
    assert "shop: public.[red]t" in last_frame(bars, screen)
    assert "25%, 1 000 rows, 49 kB, 100 rows/s, 0:00:30 left" in last_frame(bars, screen)
    log.get("shop").info("an event above them")
    bars.show({"shop": [CopyRow("public", "u", 0, 0, 0, None, None)]})
    assert "an event above them" in screen.getvalue()
    assert "public.u" in last_frame(bars, screen)
    assert "[red]t" not in last_frame(bars, screen)
    bars.show({})
    assert sys.stderr is screen
    bars.close()


def test_a_name_does_not_order_the_terminal_about():
    screen = Terminal()
    bars = CopyProgressBars(Console(file=screen, force_terminal=True, width=200))
    bars.show({"shop": [CopyRow("public", f"a{name}", 1, 1, 1, None, None) for name in NAMES]})
    shown = last_frame(bars, screen)
    bars.close()
    assert r"new\nline\x0D\ttab \x1B[31mred\x07" in shown
    assert "\x1b[31mred" not in screen.getvalue()
    assert "\x07" not in screen.getvalue()

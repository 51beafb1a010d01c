"""What is shown, on a terminal and elsewhere."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from bridge.demo import screen
from bridge.demo.proof import Verdict
from bridge.demo.screen import Screen, render, render_verdicts
from bridge.demo.watch import SubscriptionView, TableView
from protocol.lsn import Lsn

VIEWS = [
    SubscriptionView(
        "shop",
        "streaming",
        Lsn.parse("0/16B3748"),
        123456,
        None,
        (
            TableView("public.customers", "r", 2045, 2044, 7),
            TableView("public.page_views", "d", 16000, None, None),
        ),
    ),
    SubscriptionView("vip", "stopped", None, None, None, (TableView("public.customers", "", 500, None, None),)),
]
EQUAL = Verdict("shop", "public.customers", 2045, 11, Path("lake/t"), ())
DIFFERENT = Verdict(
    "vip", "public.customers", 500, 5, Path("lake/v"), ("id = 3: name is 'a [b] c' in PostgreSQL", "more")
)


def terminal(width: int = 120) -> Console:
    """A console that takes itself for a terminal."""
    return Console(record=True, force_terminal=True, width=width, file=io.StringIO(), highlight=False)


def elsewhere() -> Console:
    """A console of a pipe, narrower than the lines."""
    return Console(record=True, force_terminal=False, width=60, file=io.StringIO(), highlight=False)


def shown_lines(console: Console) -> list[str]:
    """The lines that were shown, blanks between words made one."""
    return [" ".join(line.split()) for line in console.export_text().splitlines() if line.strip()]


def test_table_of_the_terminal():
    console = terminal()
    console.print(render(VIEWS, "1,234 transactions"))
    assert shown_lines(console) == [
        "rows published rows in Delta version",
        "shop: streaming, lag 121 kB, remote_lsn 0/16B3748",
        "public.customers following 2,045 2,044 7",
        "public.page_views being copied 16,000 - -",
        "vip: stopped, lag -, remote_lsn -",
        "public.customers - 500 - -",
        "1,234 transactions",
    ]


def test_table_fits_a_terminal_of_80_columns():
    console = terminal(80)
    console.print(render(VIEWS, "1,234 transactions"))
    lines = console.export_text().splitlines()
    assert sum("public." in line for line in lines) == 3
    assert len(lines) == 9
    assert "…" not in "".join(lines)


def test_terminal_has_the_table_in_place_and_events_above():
    """The table is drawn again and again, and gone at the end; events stay."""
    console = terminal()
    with Screen(console) as shown:
        shown.tell("it starts")
        shown.show(VIEWS, "10 transactions")
        shown.show(VIEWS, "20 transactions")
    written = console.file.getvalue()  # type: ignore[attr-defined] # a StringIO
    assert "it starts" in written
    assert "10 transactions" in written
    assert "20 transactions" in written
    assert "\x1b[1A\x1b[2K" in written  # cursor up, erase line: the table is taken away


def test_lines_elsewhere(monkeypatch):
    """One whole line an event, and one for the numbers every few seconds, without escape sequences."""
    console = elsewhere()
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with Screen(console) as shown:
        shown.tell("it starts", style="red")
        for now_s in (101.0, 102.0, 101.0 + screen.LINE_EVERY_S):
            shown.show(VIEWS, f"{now_s:.0f} transactions")
    numbers = (
        "shop streaming, 2,044 rows in Delta of 18,045, lag 121 kB, remote_lsn 0/16B3748;"
        " vip stopped, 0 rows in Delta of 500, lag -, remote_lsn -"
    )
    assert console.export_text().splitlines() == [
        "   0 s  it starts",
        f"   1 s  101 transactions; {numbers}",
        f"   5 s  105 transactions; {numbers}",
    ]
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined] # a StringIO


@pytest.mark.parametrize("console", [terminal(), elsewhere()], ids=["terminal", "elsewhere"])
def test_verdicts(console):
    with Screen(console) as shown:
        shown.verdicts([EQUAL, DIFFERENT])
    assert shown_lines(console) == [
        "subscription table columns rows equal",
        "shop public.customers 11 2,045 yes",
        "vip public.customers 5 500 NO",
        "vip: public.customers differs:",
        "id = 3: name is 'a [b] c' in PostgreSQL",
        "more",
    ]


def test_verdicts_of_equal_tables_have_no_more_to_say():
    console = terminal()
    console.print(render_verdicts([EQUAL]))
    assert len(shown_lines(console)) == 2


@pytest.mark.parametrize("console", [terminal(40), elsewhere()], ids=["terminal", "elsewhere"])
def test_command_is_never_broken(console):
    """Or it could not be copied from the terminal."""
    command = "python -c '" + "x = [1]; " * 30 + "'"
    with Screen(console) as shown:
        shown.close()
        shown.paste(command)
    assert command in console.export_text().splitlines()

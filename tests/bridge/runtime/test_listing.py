"""Tables for terminals of any width, and for pipes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pgbridge.bridge.runtime.listing import Listing

PATH, SENTENCE = "/srv/shop/lake/public/a_table_with_quite_a_long_name", "its rows are those of the published table"


def shown(width: int, *, terminal: bool, no_wrap: bool = False) -> list[str]:
    output = io.StringIO()
    listing = Listing("table", "state")
    listing.columns[1].no_wrap = no_wrap
    listing.add_row(PATH, SENTENCE)
    Console(file=output, width=width, force_terminal=terminal, color_system=None).print(listing, crop=False)
    return [line.rstrip() for line in output.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 70, 80, 200])
def test_no_word_is_broken_on_a_terminal(width):
    lines = shown(width, terminal=True)
    assert lines[1].split()[0] == PATH
    assert " ".join(lines[1:]).split() == [PATH, *SENTENCE.split()]
    assert (len(lines) == 2) == (width == 200)
    assert width < len(PATH) + 15 or max(map(len, lines)) <= width, "it fits"


@pytest.mark.parametrize("width", [40, 200])
def test_a_row_of_a_pipe_is_a_line(width):
    assert shown(width, terminal=False)[1:] == [f"{PATH}  {SENTENCE}"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_column_that_does_not_wrap(terminal):
    assert shown(40, terminal=terminal, no_wrap=True)[1:] == [f"{PATH}  {SENTENCE}"]

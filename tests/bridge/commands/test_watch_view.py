"""What a look is drawn as: in place on a terminal of any size, as plain blocks, as lines of JSON."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from bridge.commands.watch import Look
from bridge.commands.watch_view import Blocks, JsonLines, Screen

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 12, 0, 2, tzinfo=UTC)
ALTERNATE, NORMAL, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H"
HIDDEN, CURSOR = "\x1b[?25l", "\x1b[?25h"
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def entry(**values: Any) -> dict[str, Any]:
    return {
        "name": "shop",
        "enabled": True,
        "state": "streaming",
        "slot_name": "shop",
        "received_lsn": "0/300",
        "remote_lsn": "16/B374D848",
        "confirmed_flush_lsn": "16/B374D83F",
        "lag_bytes": 123456,
        "skip_lsn": None,
        "apply_error_count": 1,
        "sync_error_count": 2,
        "last_error": None,
        "tables": [],
        "applied_bytes_per_s": 20 << 20,
        **values,
    }


def look(*entries: dict[str, Any], time: datetime = NOON, **values: Any) -> Look:
    return Look(time, {"subscriptions": list(entries)}, **{"running": True, **values})


ERROR = {"message": "no\nHINT:  do", "finish_lsn": "0/14C0378", "relation": None, "time": "2026-01-02T11:00:00+00:00"}


def table(name: str, state: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "path": f"/lake/{name}", **values}


COPY = {"rows": 1234, "bytes": 50_000, "total_bytes_estimate": 200_000, "rows_per_s": 10.0, "seconds_left": 60.0}


class Terminal:
    """A terminal that keeps what is written, and its size, which may change."""

    def __init__(self, monkeypatch, width: int = 100, height: int = 20) -> None:
        monkeypatch.delenv("COLUMNS", raising=False)
        monkeypatch.delenv("LINES", raising=False)
        self.file = io.StringIO()
        self.console = Console(file=self.file, force_terminal=True, width=width, height=height)

    def resize(self, width: int, height: int) -> None:
        self.console.size = (width, height)

    def take(self) -> str:
        """What was written since the last call."""
        text = self.file.getvalue()
        self.file.seek(0)
        self.file.truncate()
        return text

    def lines(self) -> list[str]:
        """The screen's lines, as last drawn."""
        frames = self.take().split(HOME)
        return [line.rstrip() for line in STYLE.sub("", frames[-1]).split("\n")]


@pytest.fixture
def terminal(monkeypatch):
    return Terminal(monkeypatch)


def block(shown: Look) -> str:
    stream = io.StringIO()
    Blocks(stream, width=100).show(shown)
    return stream.getvalue()


# --- what a look has --------------------------------------------------------------------------------------------------


def test_all_of_a_subscription():
    text = block(look(entry()))
    lines = text.splitlines()
    assert lines[0] == "2026-01-02T12:00:00+00:00  the daemon runs"
    assert lines[2].split() == ["subscription", "state", "remote_lsn", "flush_lsn", "lag", "applied", "errors"]
    values = ["shop", "streaming", "16/B374D848", "16/B374D83F", "121", "kB", "20", "MB/s", "3"]
    assert lines[3].split() == values
    assert len(lines) == 4


def test_what_is_not_known_is_a_dash():
    text = block(look(entry(remote_lsn=None, confirmed_flush_lsn=None, lag_bytes=None, applied_bytes_per_s=None)))
    assert text.splitlines()[3].split() == ["shop", "streaming", "-", "-", "-", "-", "3"]


@pytest.mark.parametrize(
    ("values", "source"),
    [
        ({}, "the daemon runs"),
        ({"running": False}, "no daemon runs"),
    ],
)
def test_where_it_is_from(values, source):
    assert block(look(entry(), **values)).splitlines()[0] == f"2026-01-02T12:00:00+00:00  {source}"


def test_the_last_error_with_the_command_that_skips():
    text = block(look(entry(last_error=ERROR)))
    assert "shop, 2026-01-02T11:00:00+00:00:\nno\nHINT:  do\n" in text
    assert "To skip this transaction:  pgbridge skip shop --lsn 0/14C0378\n" in text
    assert "To skip" not in block(look(entry(last_error=ERROR, skip_lsn="0/14C0378")))


def test_copies_under_way():
    """Each with its progress; other tables are counted, and nothing is said of them once all are ready."""
    tables = [table(f"public.t{number}", state) for number, state in enumerate("iidfsrr")]
    tables[2]["copy"] = COPY
    text = block(look(entry(tables=tables)))
    assert (
        "\nshop, tables: 2 to be copied, 1 being copied, 1 copied, 1 following, 2 ready\n"
        "  public.t2  25%, 1 234 rows, 49 kB, 10 rows/s, 0:01:00 left\n"
    ) in text
    assert "public.t2\n" in block(look(entry(tables=[table("public.t2", "d")])))
    assert "ready" not in block(look(entry(tables=[table("public.t2", "r")])))


def test_nothing_of_a_server_reaches_the_terminal_raw():
    evil = "x\x1b[2J\x9b\n\u202e"
    kept = {
        "last_error": {**ERROR, "message": evil},
        "tables": [table(evil, "d", copy=COPY, maintenance={"files": 1, "optimized": None, "error": evil})],
        "left_out": [{"name": evil, "reason": evil}],
        "conflicts": {"update_missing": 1},
    }
    text = block(look(entry(name=evil, **kept)))
    assert not set(text) & set("\x1b\x9b\u202e")
    assert r"x\x1B[2J\x9B\n\u202E, tables: 1 being copied" in text
    failed = block(Look(NOON, None, problem=f"pgbridge.toml: {evil}"))
    assert "\x1b" not in failed
    assert r"pgbridge.toml: x\x1B[2J\x9B" in failed


# --- on a terminal ----------------------------------------------------------------------------------------------------


def test_it_is_drawn_in_place_and_left_on_the_normal_screen(terminal):
    with Screen(terminal.console) as screen:
        assert terminal.take().startswith(ALTERNATE + HOME + HIDDEN)
        for time in (NOON, LATER):
            screen.show(look(entry(), time=time))
            drawn = terminal.take()
            assert drawn.startswith(HOME)
            assert drawn.count("\n") == 19  # the screen is filled, and does not scroll
            assert time.isoformat() in drawn
            assert "(Ctrl-C ends)" in drawn
    left = terminal.take()
    assert left.index(CURSOR) < left.index(NORMAL) < left.index(LATER.isoformat())
    assert "Ctrl-C" not in left


def test_an_error_gives_the_terminal_back(terminal):
    with pytest.raises(ZeroDivisionError), Screen(terminal.console):
        raise ZeroDivisionError
    assert terminal.take().endswith(CURSOR + NORMAL)


def test_before_the_first_look(terminal):
    with Screen(terminal.console) as screen:
        assert terminal.lines()[0] == "Ctrl-C ends"
        screen.wait(2)
        assert terminal.lines()[0] == "no answer for 2 s"


def test_a_look_that_takes_long_is_told_beside_the_one_before(terminal):
    with Screen(terminal.console) as screen:
        screen.show(look(entry()))
        screen.wait(3)
        first, *rest = terminal.lines()
        assert first == "2026-01-02T12:00:00+00:00  the daemon runs  (no answer for 3 s)"
        assert any("16/B374D848" in line for line in rest)
        screen.show(look(entry(), time=LATER))
        assert terminal.lines()[0].endswith("(Ctrl-C ends)")


def test_a_look_that_could_not_see_leaves_the_one_before(terminal):
    with Screen(terminal.console) as screen:
        screen.show(look(entry()))
        screen.show(Look(LATER, None, problem="pgbridge.toml is not valid TOML"))
        lines = terminal.lines()
    assert lines[0] == "2026-01-02T12:00:02+00:00  nothing could be read  (Ctrl-C ends)"
    assert lines[2] == "pgbridge.toml is not valid TOML"
    assert lines[4] == "as of 2026-01-02T12:00:00+00:00:"
    assert any("16/B374D848" in line for line in lines)


@pytest.mark.parametrize("height", [1, 2, 5, 13, 14])
def test_a_short_screen_says_how_much_is_missing(terminal, height):
    terminal.resize(100, height)
    with Screen(terminal.console) as screen:
        screen.show(look(*[entry(name=f"shop{number}") for number in range(10)]))
        lines = terminal.lines()
    assert len(lines) == height
    if height == 13:
        assert lines[-1].startswith("shop9")
    elif height == 14:
        assert lines[-1] == ""
    else:
        assert lines[-1] == f"… {13 - (height - 1)} more lines"


def test_a_narrow_screen_keeps_the_first_columns(terminal):
    """And nothing is wider than it; an error is wrapped, because its command is at its end."""
    terminal.resize(24, 20)
    with Screen(terminal.console) as screen:
        screen.show(look(entry(last_error=ERROR)))
        lines = terminal.lines()
    assert lines[2] == "subscription  state"
    assert lines[3] == "shop          streaming"
    assert max(map(len, lines)) <= 24
    assert "--lsn 0/14C0378" in " ".join(lines)


def test_a_resize_is_drawn_to_the_new_size(terminal):
    with Screen(terminal.console) as screen:
        screen.show(look(entry()))
        for width, height in ((40, 3), (120, 50), (1, 1)):
            terminal.take()
            terminal.resize(width, height)
            screen.wait(0)
            lines = terminal.lines()
            assert len(lines) == height
            assert max(map(len, lines)) <= width


def test_suspended_and_continued(terminal):
    with Screen(terminal.console) as screen:
        screen.show(look(entry()))
        terminal.take()
        screen.leave()
        assert terminal.take() == CURSOR + NORMAL
        screen.wait(1)
        screen.leave()
        assert terminal.take() == ""
        screen.enter()
        drawn = terminal.take()
        assert drawn.startswith(ALTERNATE)
        assert "16/B374D848" in drawn


# --- elsewhere --------------------------------------------------------------------------------------------------------


def test_blocks_are_plain_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    blocks = Blocks(stream, width=100)
    for view in (blocks.enter, blocks.leave, lambda: blocks.wait(1)):
        view()
    blocks.show(look(entry(last_error=ERROR)))
    first = stream.getvalue()
    blocks.show(look(entry(last_error=ERROR)))
    assert stream.getvalue() == f"{first}\n{first}"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", first)


def test_json_lines():
    """Each is whole, and there as soon as it is known."""
    stream = io.BytesIO()
    text = io.TextIOWrapper(stream, encoding="ascii", write_through=False)
    lines = JsonLines(text)
    for view in (lines.enter, lines.leave, lambda: lines.wait(1)):
        view()
    lines.show(look(entry(name="ü\x1b\n")))
    (first,) = stream.getvalue().splitlines()
    assert json.loads(first) == {
        "time": "2026-01-02T12:00:00.000+00:00",
        "running": True,
        "subscriptions": [entry(name="ü\x1b\n")],
    }
    lines.show(Look(NOON, None, problem="no"))
    assert stream.getvalue().splitlines()[1:] == [b'{"time":"2026-01-02T12:00:00.000+00:00","error":"no"}']

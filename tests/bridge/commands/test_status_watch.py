"""A look again and again: what it has, how fast subscriptions move between two, and how it is shown."""

from __future__ import annotations

import io
import json
import re
from contextlib import ExitStack
from typing import Any

import pytest
from rich.console import Console

from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.commands import status as command
from pgbridge.bridge.commands.status import Looker, frame
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.protocol.lsn import Lsn
from tests.bridge.monitor.status_document import problem
from tests.fix_cli import TWO, catalog_of

COPY = {"rows": 1234, "bytes": 50_000, "total_bytes_estimate": 200_000, "rows_per_s": 10.0, "seconds_left": 60.0}
FAILED = {"time": "2026-01-02T12:00:02.000+00:00", "error": "pgbridge.toml is not valid TOML"}


def status(**values: Any) -> dict[str, Any]:
    return {
        "name": "shop",
        "state": "streaming",
        "received_lsn": "0/300",
        "remote_lsn": "16/B374D848",
        "confirmed_flush_lsn": "16/B374D83F",
        "lag_bytes": 123456,
        "apply_error_count": 1,
        "sync_error_count": 2,
        "tables": [],
        "conflicts": {},
        "problems": [],
        "applied_bytes_per_s": 20 << 20,
        **values,
    }


def look(*subscriptions: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"time": "2026-01-02T12:00:00.000+00:00", "running": True, "subscriptions": list(subscriptions), **values}


def table(name: str, state: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "path": f"/lake/{name}", **values}


def shown(seen: dict[str, Any], *, before: dict[str, Any] | None = None, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(frame(seen, before or seen))
    return stream.getvalue()


# --- looks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pgbridge.toml"
    path.write_text(TWO)
    (tmp_path / "state").mkdir()
    return path


def test_with_and_without_a_daemon(file):
    with catalog_of(file.parent) as catalog:
        catalog.register("shop", enabled=True)
        catalog.set_state("shop", "streaming")
    looker = Looker(file)
    seen = looker.look()
    assert list(seen) == ["time", "running", "subscriptions"]
    assert [(one["name"], one["state"]) for one in seen["subscriptions"]] == [("shop", "stopped"), ("hr", "stopped")]
    with locked(file.parent / "state"):
        seen = looker.look()
    assert (seen["running"], seen["subscriptions"][0]["state"]) == (True, "streaming")


def test_only_the_first_look_must_see_something(file):
    """The file may be edited meanwhile."""
    looker = Looker(file)
    file.write_text("[subscription")
    with pytest.raises(ConfigError, match="not valid TOML"):
        looker.look()
    file.write_text(TWO)
    assert looker.look()["subscriptions"]
    file.write_text("[subscription")
    failed = looker.look()
    assert list(failed) == ["time", "error"]
    assert "is not valid TOML" in failed["error"]


def test_rates(file, monkeypatch):
    """They are unknown before the second look, where a position is, and where it has gone back, as after a resync."""
    clock = [10.0]
    monkeypatch.setattr("pgbridge.bridge.commands.status.time.monotonic", lambda: clock[0])
    looker, rates = Looker(file), []
    with catalog_of(file.parent) as catalog:
        for seconds, lsn in ((0.0, None), (2.0, 0x100), (2.0, 0x300), (0.5, 0x300), (4.0, 0x1_0000_0300), (1.0, 0x100)):
            clock[0] += seconds
            with catalog.transaction() as db:
                db.execute("DELETE FROM origin")
            if lsn is not None:
                catalog.register("shop", enabled=True)
                catalog.create_origin("shop", Lsn(lsn), "abc", [])
            rates.append(looker.look()["subscriptions"][0]["applied_bytes_per_s"])
    assert rates == [None, None, 256, 0, 2**30, None]


# --- how they are shown -----------------------------------------------------------------------------------------------


def test_all_of_a_subscription():
    lines = shown(look(status(tables=[table("public.a", "r"), table("public.b", "i")]))).splitlines()
    assert lines[0] == "2026-01-02T12:00:00.000+00:00  the daemon runs  (Ctrl-C ends)"
    heads = ["subscription", "state", "lag", "errors", "applied", "follow", "remote_lsn", "flush_lsn"]
    assert lines[2].split() == heads
    values = ["shop", "streaming", "121", "kB", "(3)", "20", "MB/s", "1/2", "16/B374D848", "16/B374D83F"]
    assert lines[3].split() == values
    assert len(lines) == 4


def test_what_is_not_known_is_a_dash():
    text = shown(
        look(status(remote_lsn=None, confirmed_flush_lsn=None, lag_bytes=None, applied_bytes_per_s=None), running=False)
    )
    assert "  no daemon runs  " in text
    assert text.splitlines()[3].split() == ["shop", "streaming", "-", "(3)", "-", "0/0", "-", "-"]


def test_a_narrow_screen_cuts_positions():
    """What says whether all is well stays."""
    lines = shown(look(status(problems=[problem("apply", "no", "problem")])), width=50).splitlines()
    assert lines[2].split() == ["subscription", "state", "lag", "errors", "applied"]
    assert lines[3].split() == ["shop", "streaming", "121", "kB", "3", "20", "MB/s"]


def test_problems_and_the_copies_under_way():
    """Problems stand first, because a screen may be short; of the tables only those are shown that are copied."""
    tables = [table(f"public.t{number}", state) for number, state in enumerate("iidfsrr")]
    tables[2]["copy"] = COPY
    skip = "to skip the transaction, run: pgbridge skip shop --lsn 0/14C0378"
    told = problem("apply", "no", "problem", time="2026-01-02T11:00:00+00:00", hint=skip)
    text = shown(look(status(tables=tables, problems=[told])))
    assert f"\nshop, 2026-01-02T11:00:00+00:00: no\nHINT:  {skip}\n" in text
    assert re.findall(r"public\.\w+", text) == ["public.t2", "public.t2"]
    assert "25%, 1 234 rows, 49 kB, 10 rows/s, 0:01:00 left" in text


def test_a_look_that_could_not_see_leaves_the_one_before():
    lines = shown(FAILED, before=look(status())).splitlines()
    assert lines[0] == "2026-01-02T12:00:02.000+00:00  nothing could be read  (Ctrl-C ends)"
    assert lines[2] == FAILED["error"]
    assert lines[4] == "as of 2026-01-02T12:00:00.000+00:00:"
    assert any("16/B374D848" in line for line in lines)


def test_nothing_of_a_server_reaches_the_terminal_raw():
    evil = "x\x1b[2J\x9b\n\u202e"
    kept = {"tables": [table(evil, "d", copy=COPY)], "conflicts": {"update_missing": 1}}
    text = shown(look(status(name=evil, problems=[problem("apply", evil, hint=evil)], **kept)))
    assert not set(text) & set("\x1b\x9b\u202e")
    assert r"x\x1B[2J\x9B\n\u202E: x\x1B[2J\x9B" in text
    failed = shown({**FAILED, "error": evil}, before=look(status()))
    assert "\x1b" not in failed
    assert r"x\x1B[2J\x9B" in failed


def test_on_a_terminal_it_is_drawn_in_place_and_stays_at_the_end(monkeypatch):
    """A short screen shows the beginning; the last look is whole."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, height=8)
    with ExitStack() as stack:
        show = command._shower(console, stack)
        many = look(*[status(name=f"shop{number}") for number in range(10)])
        show(many)
        show(FAILED)
        show(many)
        assert "shop9" not in stream.getvalue()
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert drawn.count("the daemon runs") == 3
    assert "nothing could be read" in drawn
    assert "\x1b[?1049h" not in drawn, "no other screen: the process may be suspended"
    assert "shop9" in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")


def test_blocks_are_plain_whatever_the_environment_says(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ExitStack() as stack:
        show = command._shower(Console(force_terminal=False), stack)
        show(look(status(problems=[problem("apply", "no", "problem")])))
        first = capsys.readouterr().out
        show(FAILED)
    assert first.endswith("shop: no\n\n")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", first)
    assert FAILED["error"] in capsys.readouterr().out


def test_json_lines(capsys):
    command._lines(look(status(name="ü\x1b\n")))
    command._lines(FAILED)
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first) == look(status(name="ü\x1b\n"))
    assert second == json.dumps(FAILED, separators=(",", ":"))

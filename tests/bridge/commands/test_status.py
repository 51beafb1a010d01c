"""The status document as tables for people.

Bars on a terminal: one for each copy under way, the log above them, and nothing left behind.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from pgbridge.bridge.catalog import followed, maintenance, notes
from pgbridge.bridge.catalog.catalog_rows import CopyRow, RelRow
from pgbridge.bridge.commands.status import CopyProgressBars, render, size_text
from pgbridge.bridge.monitor.document import collect
from pgbridge.bridge.publication.differences import Comparison, Difference
from pgbridge.bridge.runtime import log
from pgbridge.protocol.lsn import Lsn
from tests.bridge.monitor.registered import registered
from tests.hostile import NAMES


@pytest.fixture
def shop(tmp_path):
    """The configuration and catalog of a subscription whose server does not answer."""
    with registered(tmp_path) as both:
        yield both


def shown(document: Any, width: int = 200) -> str:
    """What a terminal of that width shows."""
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=True, color_system=None).print(render(document), crop=False)
    return stream.getvalue()


@pytest.fixture
def document(shop):
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(0x16B374D840), "abc", [RelRow("public", "t1", "r", Lsn(1), "/lake/public/t1")])
    catalog.set_state("shop", "streaming", received_lsn=Lsn(0x16B374D848))
    catalog.record_error("shop", "the stream was lost\nHINT:  look there", counter="apply")
    made: Any = collect(settings, catalog, running=True)
    made["subscriptions"][0]["confirmed_flush_lsn"] = "16/B374D83F"
    made["subscriptions"][0]["lag_bytes"] = 123456
    return made


def test_shows_everything(document):
    text = shown(document)
    for part in ("shop", "streaming", "16/B374D840", "16/B374D848", "16/B374D83F", "121 kB", "r (ready)"):
        assert part in text
    assert "shop: public.t1" in text
    assert "/lake/public/t1" in text
    assert "the stream was lost\nHINT:  look there" in text


@pytest.mark.parametrize("width", [80, 120])
def test_no_lsn_is_cut(document, width):
    """Nor is a name broken: a row goes on beyond a narrow terminal's edge."""
    document["subscriptions"][0]["name"] = "a_subscription_with_quite_a_long_name"
    text = shown(document, width)
    for part in ("16/B374D840", "16/B374D848", "16/B374D83F", "121 kB", "streaming", "errors"):
        assert part in text
    assert "…" not in text
    assert document["subscriptions"][0]["name"] in text


def test_names_are_shown_as_they_are(document):
    """What looks like rich's markup is a name all the same."""
    (item,) = document["subscriptions"]
    name, path = "public.[red]x[/red] :smile: [/", "/lake/[/bold]"
    item["tables"] = [{"name": name, "state": "i", "path": path}]
    item["problems"][0]["message"] = "value [/oops] is too long"
    text = shown(document)
    assert "shop: public.[red]x[/red] :smile: [/" in text
    assert "/lake/[/bold]" in text
    assert "value [/oops] is too long" in text


def test_the_command_that_skips(shop):
    """It is shown until it has been given."""
    settings, catalog = shop
    catalog.record_error("shop", "no", counter="apply", finish_lsn=Lsn(0x14C0378))
    command = "HINT:  to skip the transaction, run: pgbridge skip shop --lsn 0/14C0378\n"
    assert command in shown(collect(settings, catalog, running=True))
    catalog.set_skip_lsn("shop", Lsn(0x14C0378))
    assert command not in shown(collect(settings, catalog, running=True))


def test_conflicts_are_shown(shop):
    settings, catalog = shop
    notes.count_conflicts(catalog, "shop", {"update_missing": 4, "delete_missing": 2})
    assert "shop, conflicts: delete_missing 2, update_missing 4\n" in shown(collect(settings, catalog, running=True))


@pytest.mark.parametrize(
    ("rate", "seconds_left", "text"),
    [
        (41234.5, 3725.2, "25%, 1 234 567 rows, 49 kB, 41 234 rows/s, 1:02:05 left"),
        (None, None, "25%, 1 234 567 rows, 49 kB"),
    ],
)
def test_a_copy_under_way(shop, rate, seconds_left, text):
    """It is shown with its table; a killed daemon leaves one in the catalog, and does not copy."""
    settings, catalog = shop
    catalog.create_origin("shop", Lsn(1), "abc", [RelRow("public", "t1", "d", Lsn(0), "/lake/public/t1")])
    notes.put_copies(catalog, "shop", [CopyRow("public", "t1", 1234567, 50_000, 200_000, rate, seconds_left)])
    assert text in shown(collect(settings, catalog, running=True))
    assert "rows" not in shown(collect(settings, catalog, running=False))


@pytest.mark.parametrize("state", "idfsr")
def test_every_table_state_has_a_word(document, state):
    document["subscriptions"][0]["tables"][0]["state"] = state
    assert f"{state} (" in shown(document)


def test_a_difference_is_shown_with_its_remedy(shop):
    """Its table is marked, and the others are not."""
    settings, catalog = shop
    rels = [RelRow("public", name, "r", Lsn(1), f"/lake/{name}") for name in ("t", "u")]
    catalog.create_origin("shop", Lsn(1), "abc", rels)
    gap = Difference("gap", ("public", "t"), "", 'table "public.t" has a gap', "run: pgbridge refresh shop")
    followed.record(catalog, "shop", Comparison((gap,), (), {}), 0.0)
    found = collect(settings, catalog, running=True)
    text = shown(found, 120)
    assert text.count("r (ready, differs)") == text.count("r (ready)") == 1
    assert 'shop, 1970-01-01T00:00:00+00:00: table "public.t" has a gap' in text
    assert "HINT:  run: pgbridge refresh shop" in text


def test_what_is_not_known_is_a_dash(shop):
    line = next(line for line in shown(collect(*shop, running=False)).splitlines() if line.startswith("shop"))
    assert line.split() == ["shop", "stopped", "-", "-", "-", "-", "0"]


def test_sizes_are_postgresqls(postgresql):
    """As pg_size_pretty says them; halves, which it rounds up, aside."""
    sizes = [
        0,
        1,
        10239,
        10240,
        10241,
        123456,
        10 * 1024**2 - 1000,
        10 * 1024**2,
        5 * 1024**3,
        10 * 1024**3,
        1024**4,
        10**15,
    ]
    for size in sizes:
        (expected,) = postgresql.execute("SELECT pg_size_pretty(%s::bigint)", (size,)).fetchone()
        assert size_text(size) == expected
    assert size_text(None) == "-"


def test_maintenance_is_shown_with_its_last_error(shop):
    settings, catalog = shop
    catalog.create_origin(
        "shop", Lsn(1), "inc", [RelRow("public", name, "r", Lsn(1), f"/lake/{name}") for name in "ab"]
    )
    row = maintenance.MaintainedRow(0.0, 3, 0.0, None, "no space left")
    maintenance.put(catalog, "shop", "/lake/a", row)
    text = shown(collect(settings, catalog, running=True))
    assert "3 files, optimized 1970-01-01T00:00:00+00:00" in text
    assert "shop: maintenance of public.a failed, and is tried again: no space left" in text


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

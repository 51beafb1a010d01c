"""Events are lines that a program reads where there is no terminal, and lines for people where there is one."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import threading
from datetime import UTC, datetime

import pytest

from pgbridge.bridge.runtime import log
from pgbridge.protocol.lsn import Lsn
from tests.hostile import NAMES


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        """It does."""
        return True


@pytest.fixture
def events():
    """Gives the events logged so far, each from its JSON line."""
    stream = io.StringIO()
    log.configure(stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def fail_with_secret() -> None:
    connection = "host=db password=hunter2"
    raise ValueError(f"cannot use {len(connection)} characters")


def test_event_is_one_json_line(events):
    before = datetime.now(UTC)
    log.get("shop").info("batch applied", rows=7, note="two\nlines", name="büro")
    (event,) = events()
    logged_at = datetime.fromisoformat(event.pop("timestamp"))
    assert before <= logged_at <= datetime.now(UTC)
    assert logged_at.utcoffset() is not None
    assert event == {
        "level": "info",
        "event": "batch applied",
        "subscription": "shop",
        "rows": 7,
        "note": "two\nlines",
        "name": "büro",
    }


def test_without_subscription(events):
    log.get().warning("starting")
    (event,) = events()
    assert "subscription" not in event
    assert event["level"] == "warning"


def test_lsns_are_text(events):
    """As the commands take them; a number would have to be converted by hand."""
    log.get().info("applied", end_lsn=Lsn.parse("16/B374D848"), rows=5)
    (event,) = events()
    assert (event["end_lsn"], event["rows"]) == ("16/B374D848", 5)


def test_what_json_has_not_is_text(events):
    log.get().info("odd", path=io.StringIO, moment=datetime(2026, 1, 1, tzinfo=UTC))
    (event,) = events()
    assert event["moment"] == "2026-01-01 00:00:00+00:00"


def test_levels(events):
    """Debugging is silent unless asked for."""
    log.get().debug("hidden")
    log.get().error("shown")
    assert [event["event"] for event in events()] == ["shown"]
    stream = io.StringIO()
    log.configure(stream, level=logging.DEBUG)
    log.get().debug("shown now")
    assert "shown now" in stream.getvalue()


def test_exception_stays_on_its_line(events):
    """A stack trace in the middle of JSON lines would break whatever reads them."""
    try:
        fail_with_secret()
    except ValueError:
        log.get("shop").error("subscription failed", exc_info=True)
    (event,) = events()
    assert "ValueError: cannot use 24 characters" in event["exception"]
    assert "fail_with_secret" in event["exception"]
    assert "hunter2" not in event["exception"]


def test_threads_do_not_mix_lines(events):
    def write(number: int) -> None:
        logger = log.get(f"sub{number}")
        for n in range(200):
            logger.info("event", n=n)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(events()) == 800


def test_terminal_is_for_people():
    stream = Terminal()
    log.configure(stream)
    log.get("shop").info("batch applied", end_lsn=Lsn(0x14C0378))
    (line,) = stream.getvalue().splitlines()
    assert "batch applied" in line
    assert "0/14C0378" in line
    assert not line.startswith("{")


@pytest.mark.parametrize(("stream", "lines"), [(Terminal(), 1), (io.StringIO(), 2)], ids=["terminal", "file"])
def test_a_terminal_has_bars_in_place_of_the_progress_of_copies(stream, lines):
    log.configure(stream)
    log.get("shop").info(log.COPY_PROGRESS, rows=3)
    log.get("shop").info("table copy finished")
    assert len(stream.getvalue().splitlines()) == lines


def test_terminal_is_not_ordered_about():
    """A server's names and messages are shown; an event is a line, but for a trace."""
    stream = Terminal()
    log.configure(stream)
    for name in (*NAMES, "\x1b[31mred\x07"):
        log.get("shop").warning(f"table {name}", relation=name, names=[name], error=f"first {name}\nHINT: second")
    assert len(stream.getvalue().splitlines()) == len(NAMES) + 1
    failure = ValueError("\x1b[31mred\x07")
    log.get().error("subscription failed", exc_info=failure)
    shown = stream.getvalue()
    assert r"table new\nline\x0D\ttab \x1B[31mred\x07" in shown
    assert r"ValueError: \x1B[31mred\x07" in shown
    assert [order for order in ("\x1b[31mred", "\x07", "\r") if order in shown] == []


def test_terminal_shows_no_passwords():
    """A trace names files, lines and functions, and not the values of variables."""
    stream = Terminal()
    log.configure(stream)
    try:
        fail_with_secret()
    except ValueError:
        log.get().error("subscription failed", exc_info=True)
    assert "in fail_with_secret" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_standard_error_by_default(capsys, monkeypatch):
    """Standard output belongs to what a command prints."""
    log.configure()
    log.get().info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "hello"
    assert not sys.stderr.isatty()


def test_standard_error_is_that_of_the_moment(monkeypatch):
    """Bars on a terminal take its place for a while, so that lines come above them."""
    first, second = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stderr", first)
    log.configure()
    logger = log.get("shop")
    logger.info("one")
    monkeypatch.setattr(sys, "stderr", second)
    logger.info("two")
    assert ("one" in first.getvalue(), "two" in first.getvalue()) == (True, False)
    assert ("one" in second.getvalue(), "two" in second.getvalue()) == (False, True)


def test_a_log_that_cannot_be_written_stops_nobody(monkeypatch):
    """The disk that standard error goes to is full: the event is left out."""
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123 - a device
        monkeypatch.setattr(sys, "stderr", full)
        log.configure()
        log.get("shop").error("subscription failed", error="x" * 100_000)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_the_end_of_the_process_is_quiet(monkeypatch):
    """From Python 3.13 on the stream is flushed once more, when its module's names are gone."""
    stream = log._StandardError()
    monkeypatch.setattr(log, "sys", None)
    stream.flush()

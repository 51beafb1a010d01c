"""The status page in a real Chromium, under its Content-Security-Policy, with a document of awkward names.

docs/status-page.png shows the same document. To make it anew, or to see the page dark or on a narrow screen:

    python -m tests.bridge.monitor.test_page page.png [--dark] [--width 400] [--height 1740]
    pngquant --force --speed 1 --output docs/status-page.png 128 page.png
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pgbridge.bridge.monitor.server import page
from tests.bridge.monitor.status_document import ERROR, GAPS, LONG, QUOTED, SCRIPT, SKIP, document, starting

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGE = page()
NONCE = "c2l4dGVlbiBieXRlcyE"
POLICY = f"default-src 'none'; style-src 'nonce-{NONCE}'; script-src 'nonce-{NONCE}'; connect-src 'self'"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


# --- a server of one page, and a browser ------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Serves the page, and status.json `answers` times; then it closes the connection without a word."""

    def __init__(self, page: str, status: dict[str, Any], answers: list[int], *args: Any) -> None:
        self.page, self.status, self.answers = page, status, answers
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer the page's requests."""
        if self.path == "/":
            self._answer("text/html; charset=utf-8", self.page)
        elif self.path == "/status.json" and self.answers[0]:
            self.answers[0] -= 1
            self._answer("application/json", json.dumps(self.status))

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        for name, value in (("Content-Type", kind), ("Content-Length", len(body)), ("Content-Security-Policy", POLICY)):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def served(status: dict[str, Any], *, answers: int = 1000, script: str = "", markup: str = "") -> Iterator[str]:
    """The address of the page with this document; `script` runs in it once the document is shown."""
    late = f'<script nonce="{NONCE}">setTimeout(() => {{ {script} }}, 1000)</script>' if script else ""
    page = PAGE.replace("{{nonce}}", NONCE).replace("</body>", f"{markup}{late}</body>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, page, status, [answers]))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def chromium(*options: str) -> tuple[str, str]:
    """Standard output and the log of a headless Chromium that waits for eight seconds of the page's time."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as profile:
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--hide-scrollbars", "--virtual-time-budget=8000", "--enable-logging=stderr", "--v=0", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


class Shown:
    """A page as Chromium had it after eight seconds."""

    def __init__(self, status: dict[str, Any], **kwargs: Any) -> None:
        with served(status, **kwargs) as address:
            self.dom, log = chromium("--window-size=1200,900", "--dump-dom", address)
        self.console = [line for line in log.splitlines() if "CONSOLE" in line]
        self.markup = re.sub(r"<(script|style)\b.*?</\1>", "", self.dom, flags=re.DOTALL)
        self.text = html.unescape(re.sub(r"<[^>]*>", " ", self.markup))
        self.words = " ".join(self.text.split())

    def paths(self, label: str) -> list[str]:
        """The curves of the plots with this label, a path each."""
        plots = re.findall(rf'<svg[^>]*aria-label="{label}.*?</svg>', self.markup, re.DOTALL)
        return [path for plot in plots for path in re.findall(r'class="curve" d="([^"]*)"', plot)]


@pytest.fixture(scope="module")
def shown() -> Shown:
    return Shown(document())


# --- the file ---------------------------------------------------------------------------------------------------------


def test_page_loads_nothing_from_elsewhere():
    assert set(re.findall(r"https?://[^\s'\"]*", PAGE)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"<link|@import|url\(|<img|<iframe|\bsrc=", PAGE) == []


def test_page_keeps_to_its_policy():
    """One style and one script, each with the nonce; nothing inline, and nothing that makes markup of text."""
    assert re.findall(r"<(?:style|script)[^>]*>", PAGE) == ['<style nonce="{{nonce}}">', '<script nonce="{{nonce}}">']
    assert PAGE.count("{{nonce}}") == 2
    assert re.findall(r"\son\w+=|\sstyle=|'style'", PAGE) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", PAGE) == []


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `#rrggbb`."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_has_contrast(mode):
    """At least 4.5 to 1 for text, on each background that it has."""
    light, dark = re.findall(r":root \{(.*?)\}", PAGE, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", light if mode == "light" else dark))
    words = ["good", "info", "warn", "bad"]
    pairs = [(word, ground, 4.5) for word in [*words, "text", "muted"] for ground in ("card", "page")]
    pairs += [(word, f"{word}-tint", 4.5) for word in words] + [("text", "bad-tint", 4.5), ("text", "none-tint", 4.5)]
    for ink, ground, least in pairs:
        low, high = sorted((luminance(colours[ink]), luminance(colours[ground])))
        assert (high + 0.05) / (low + 0.05) >= least, (ink, ground)


# --- in Chromium ------------------------------------------------------------------------------------------------------


@needs_chromium
def test_names_are_text(shown):
    """A table named like a script element is shown by its name, and no element came of it."""
    for name in (SCRIPT, QUOTED, LONG):
        assert shown.words.count(name) == 1
    assert len(re.findall(r"<script\b", shown.dom)) == 1


@needs_chromium
def test_policy_is_kept(shown):
    """Nothing in the console: no violation of the policy, no error of the script."""
    assert shown.console == []


@needs_chromium
def test_violation_would_be_seen():
    """What the test above looks for is there if a page has an inline style."""
    assert any("Content Security Policy" in line for line in Shown(document(), markup='<p style="top:0">').console)


@needs_chromium
def test_error_is_shown_with_the_command_that_skips_it(shown):
    text = html.escape(f"{ERROR}\nHINT:  {SKIP}", quote=False)
    assert f'2026-11-22 21:58:03 UTC<pre tabindex="0">{text}</pre>' in shown.markup


@needs_chromium
def test_problems_come_first(shown):
    """The subscription in error stands before the one that streams, and what is wrong before both."""
    assert re.findall(r"<h2>([^<]*)</h2>", shown.markup) == ["1 problem, 3 warnings", "billing", "shop"]
    problems = shown.words[: shown.words.index("1 problem, 3 warnings") + 600]
    assert "billing : column \"placed\": value 'infinity' cannot be represented" in problems
    assert 'shop : at this rate replication slot "shop" is lost in 14:15:00' in problems
    assert shown.words.count("is lost in 14:15:00") == 2, "at the top, and with its subscription"


@needs_chromium
@pytest.mark.parametrize("label", ["Lag in seconds", "Lag in bytes"])
def test_plot_has_a_point_for_each_observation(shown, label):
    """Observations without a value leave a gap: the curve of `shop` has two parts."""
    parts = [[1 + part.count("L") for part in path.split("M")[1:]] for path in shown.paths(label)]
    assert parts == [[360], [GAPS.start, 360 - GAPS.stop]]


@needs_chromium
def test_batches_are_rows(shown):
    """With the seconds of each phase, and how long after its commit a batch was durable."""
    row = shown.words[shown.words.index("21:58:08 16/B3") :]
    assert re.match(r"21:58:08 16/\w+ \d+ [\d\u202f ]+ 4( [\d.]+ s){5}", row)


@needs_chromium
def test_copies_have_their_progress(shown):
    assert "63 %, 31 204 551 rows, 4.1 GB, 412 004 rows/s, 44 s left" in shown.words
    assert "12 tables table state" in shown.words


@needs_chromium
def test_server_that_stops_answering_is_told():
    stopped = Shown(document(), answers=1)
    assert "No answer since 21:58:12 UTC (Failed to fetch)." in stopped.words
    assert SKIP in stopped.words


@needs_chromium
def test_daemon_that_has_just_started_is_shown():
    """Nothing is known yet, and nothing is wrong."""
    fresh = Shown(starting())
    assert fresh.console == []
    assert "shop ○ starting lag -, - slot unknown 0 tables Positions remote_lsn -" in fresh.words
    assert fresh.paths("Lag in seconds over the last hour: no values") == [""]
    assert '<section id="problems" aria-label="Problems" hidden' in fresh.markup


@needs_chromium
def test_what_a_reader_closed_stays_closed():
    """The page asks again after five seconds, and leaves alone what is on it."""
    closed = Shown(document(), script="document.querySelector('.card').open = false")
    assert [" open" in card for card in re.findall(r'<details [^>]*class="card[^>]*>', closed.markup)] == [False, True]


@needs_chromium
def test_many_subscriptions_are_closed():
    """Of 200 subscriptions with 1000 tables each, only those in error are open, and no table is rendered."""
    status = document()
    shop, billing = status["subscriptions"]
    tables = [{"name": f"public.t{number}", "state": "r", "path": f"/lake/t{number}"} for number in range(1000)]
    many = [{**shop, "name": f"shop{number}", "tables": tables} for number in range(199)]
    crowd = Shown({**status, "subscriptions": [*many, billing]})
    assert len(re.findall(r'<details [^>]*open=""', crowd.markup)) == 1
    assert crowd.words.count("/lake/t") == 0
    assert "and 380 more, below" in crowd.words


# --- a picture --------------------------------------------------------------------------------------------------------


def screenshot(target: Path, *, width: int = 1200, height: int = 1740, dark: bool = False) -> None:
    """Write the fixture's page as a PNG."""
    scheme = "--blink-settings=preferredColorScheme=" + ("0" if dark else "1")
    with served(document()) as address:
        chromium(f"--window-size={width},{height}", scheme, f"--screenshot={target.absolute()}", address)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1740)
    parser.add_argument("--dark", action="store_true")
    screenshot(**vars(parser.parse_args()))

"""The page in a real browser: what the server sends is shown as text, and nothing from elsewhere is loaded.

`python -m tests.bridge.monitor.test_server_page DIR` writes screenshots there; `docs/status-page.png` is the light one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest

from bridge.monitor.access import Access
from bridge.monitor.server import Server, page
from tests.bridge.monitor.fixtures import NAMES, NOW_S, state

PAGE = page()
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def browse(folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Let a browser look at a page for some seconds of its own time."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        f"--user-data-dir={folder}/browser",
        "--virtual-time-budget=4000",
        "--enable-logging=stderr",
        *options,
        url,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


def test_it_is_self_contained():
    addresses = set(re.findall(r"https?://[^\s\"']+", PAGE))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in PAGE
    assert "insertAdjacentHTML" not in PAGE
    assert not re.search(r"<[^>]+\son\w+=", PAGE)
    assert not re.search(r"<[^>]+\sstyle=", PAGE)
    assert PAGE.count('nonce="{{nonce}}"') == 2


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_in_a_browser(tmp_path):
    """Two subscriptions, one in error; names that attack; an hour of lag with a gap."""
    view = state(tmp_path / "state")
    assert view.catalog is not None
    with (
        mock.patch.object(time, "time", return_value=NOW_S),
        Server("127.0.0.1", 0, Access("127.0.0.1", None), view) as server,
    ):
        server.start()
        done = browse(tmp_path, f"http://127.0.0.1:{server.port}/", "--dump-dom")
    view.catalog.close()
    dom = done.stdout
    main = dom[dom.index('<main id="main">') : dom.index("</main>")]
    assert "Refused to" not in done.stderr
    assert "Content Security Policy" not in done.stderr
    assert "Uncaught" not in done.stderr
    assert main.index("crm") < main.index(">shop<")  # what fails comes first
    assert "<script" not in main
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in main
    assert "<b>key" not in main
    for name in NAMES[:1] + NAMES[3:]:
        assert f"public.{name}" in main.replace("&quot;", '"')
    assert "pgbridge skip crm --lsn 4/800" in main
    assert "back\\slash" in main
    plots = [line.count(",") for line in re.findall(r'class="lag" points="([^"]+)"', main)]
    assert plots == [360, 101, 250, 101, 250]  # crm's lag in time is not known; the gap divides shop's lines
    assert len(re.findall(r'<rect class="commit"', main)) == 31  # 30 batches and the legend
    assert "120 000 rows" in main
    assert "up 2 h" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_an_answer_that_does_not_come_is_told(tmp_path):
    view = state(tmp_path / "state")
    assert view.catalog is not None
    view.catalog.close()  # each request for the status fails from now on
    with Server("127.0.0.1", 0, Access("127.0.0.1", None), view) as server:
        server.start()
        done = browse(tmp_path, f"http://127.0.0.1:{server.port}/", "--dump-dom")
    assert '<span id="stale" role="status">no answer</span>' in done.stdout


def main(folder: Path) -> None:
    """Write screenshots: light, dark, and on a phone."""
    with tempfile.TemporaryDirectory() as temporary:
        view = state(Path(temporary) / "state")
        with (
            mock.patch.object(time, "time", return_value=NOW_S),
            Server("127.0.0.1", 0, Access("127.0.0.1", None), view) as server,
        ):
            server.start()
            url = f"http://127.0.0.1:{server.port}/"
            for name, options in {
                "light": ["--window-size=1200,1500"],
                "dark": ["--window-size=1200,1500", "--blink-settings=preferredColorScheme=0"],
                "phone": ["--window-size=500,2600"],
            }.items():
                browse(Path(temporary), url, f"--screenshot={folder}/{name}.png", "--hide-scrollbars", *options)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

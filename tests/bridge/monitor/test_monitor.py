"""Without `[http]` there is nothing; with it the port is taken before Spark starts, and given back."""

from __future__ import annotations

import threading
import urllib.request
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from bridge.config.config import Http
from bridge.monitor.monitor import Monitor
from bridge.monitor.observations import Observations
from bridge.runtime.errors import ConfigError
from bridge.runtime.observer import Observer


def test_nothing_without_a_table(view):
    with Monitor(None, view.sources) as monitor:
        monitor.start(view.catalog)
        monitor.turn()
        assert type(monitor.observer("shop")) is Observer


def test_it_serves(view):
    with Monitor(Http(listen="127.0.0.1:0"), view.sources) as monitor, capture_logs() as events:
        monitor.start(view.catalog)
        monitor.turn()
        observer = monitor.observer("shop")
        assert isinstance(observer, Observations)
        assert monitor.observer("shop") is observer  # its next worker's, too
        url = events[0]["url"]
        with urllib.request.urlopen(f"{url}healthz", timeout=10) as response:
            assert response.status == 200
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}healthz", timeout=10)


def test_a_jvm_that_hangs_holds_up_no_scrape(view):
    hangs = threading.Event()
    sources = replace(view.sources, heap=lambda: hangs.wait(60) and None)
    with Monitor(Http(listen="127.0.0.1:0"), sources) as monitor, capture_logs() as events:
        monitor.start(view.catalog)
        with urllib.request.urlopen(f"{events[0]['url']}metrics", timeout=10) as response:
            text = response.read().decode()
    hangs.set()
    assert "pgbridge_lag_bytes{" in text
    assert "pgbridge_jvm_heap" not in text


def test_a_token_that_cannot_be_read(view, tmp_path):
    with (
        pytest.raises(ConfigError, match="token_file"),
        Monitor(Http(listen="127.0.0.1:0", token_file=str(tmp_path / "none")), view.sources) as monitor,
    ):
        monitor.start(view.catalog)

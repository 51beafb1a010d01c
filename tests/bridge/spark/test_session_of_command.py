"""A command's Spark is stopped however it ends, and waits for a daemon's JVM only where it writes in its place."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.config.daemon_tables import Spark
from pgbridge.bridge.spark import session
from pgbridge.bridge.spark.cluster import Cluster
from pgbridge.bridge.spark.connect import Connect
from pgbridge.bridge.spark.driver import Driver
from pgbridge.bridge.spark.session import command_session


@pytest.fixture
def calls(monkeypatch):
    found: list[Any] = []

    def start(_, conf, warehouses, launch):
        found.append((warehouses, launch))
        return SimpleNamespace()

    monkeypatch.setattr(Driver, "start", start)
    for kind in (Driver, Connect):
        monkeypatch.setattr(kind, "stop", lambda *_: found.append("stopped"))
    return found


def used(tmp_path, master, *, commits):
    shop = Subscription(name="shop", connection="", publications=("pub",), warehouse="/lake")
    config = Config(state_dir=tmp_path, spark=Spark(master=master), subscription={"shop": shop})
    with command_session(config, [shop], log="command.log", commits=commits):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("master", "commits", "waits"),
    [
        ("local[2]", True, True),
        ("local[2]", False, False),
        ("spark://host:7077", True, True),
        ("sc://host", True, False),
    ],
)
def test_life(tmp_path, calls, master, commits, waits):
    """A Spark Connect server is not ours, and does not end."""
    with pytest.raises(ZeroDivisionError):
        used(tmp_path, master, commits=commits)
    (warehouses, launch), stopped = calls
    assert stopped == "stopped"
    assert warehouses == ["/lake"]
    assert launch.log == tmp_path / "command.log"
    assert isinstance(launch.keep_open, int) is waits


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_told_what_takes_so_long(tmp_path, calls, monkeypatch, capsys, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with pytest.raises(ZeroDivisionError):
        used(tmp_path, "local[2]", commits=False)
    assert capsys.readouterr().err == "starting Spark\n" * terminal
    assert len(calls) == 2


def test_a_command_whose_jobs_wait_says_so(tmp_path, calls, monkeypatch):
    """As a daemon does: another application may have all cores."""
    looks: list[str] = []
    looked, more = threading.Event(), threading.Event()

    def look() -> str | None:
        looks.append("look")
        looked.set()
        more.wait(10)
        return None if len(looks) < 3 else "the cluster gives no executors"

    monkeypatch.setattr(Cluster, "watch", lambda *_: look)
    monkeypatch.setattr(session, "LOOK_INTERVAL_S", 0.001)
    shop = Subscription(name="shop", connection="", publications=("pub",), warehouse="/lake")
    config = Config(state_dir=tmp_path, spark=Spark(master="spark://host:7077"), subscription={"shop": shop})
    with capture_logs() as logged, command_session(config, [shop], log="command.log"):
        assert looked.wait(10)
        assert looks == ["look"]
        more.set()
        end_s = time.monotonic() + 10
        while len(looks) < 5 and time.monotonic() < end_s:
            time.sleep(0.001)
    count = len(looks)
    assert calls[-1] == "stopped"
    assert [event["event"] for event in logged] == ["the cluster gives no executors"], "once"
    time.sleep(0.05)
    assert len(looks) == count >= 5, "it ends with the command"

"""A command's Spark is stopped however it ends, and waits for a daemon's JVM only where it writes in its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bridge import session
from bridge.command_session import command_session
from bridge.config import Config, Subscription


@pytest.fixture
def calls(monkeypatch):
    found: list[Any] = []

    def start(*_, **options):
        found.append(options)
        return SimpleNamespace()

    monkeypatch.setattr(session, "start", start)
    monkeypatch.setattr(session, "stop", lambda _: found.append("stopped"))
    return found


def used(tmp_path, warehouse, *, commits):
    shop = Subscription(name="shop", connection="", publications=("pub",), warehouse=warehouse)
    config = Config(state_dir=tmp_path, subscription={"shop": shop})
    with command_session(config, [shop], log="command.log", commits=commits):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("warehouse", "commits", "waits"),
    [("/lake", True, False), ("s3a://lake", False, False), ("s3a://lake", True, True), ("catalog:main", True, True)],
)
def test_life(tmp_path, calls, warehouse, commits, waits):
    with pytest.raises(ZeroDivisionError):
        used(tmp_path, warehouse, commits=commits)
    started, stopped = calls
    assert stopped == "stopped"
    assert started["warehouses"] == [warehouse]
    assert started["log"] == tmp_path / "command.log"
    assert isinstance(started["keep_open"], int) is waits

"""ENABLE and DISABLE, with the daemon and without."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.catalog.lock import locked
from pgbridge.bridge.commands import alter
from tests.fix_cli import TWO, catalog_of

if TYPE_CHECKING:
    from pathlib import Path


def enabled(folder: Path, name: str) -> bool:
    with catalog_of(folder) as catalog:
        row = catalog.subscription(name)
        assert row is not None
        return row.enabled


def test_disable_and_enable(two, tmp_path):
    """Of one subscription, also before the daemon ever ran; twice is once."""
    for _ in range(2):
        done = 'subscription "shop" disabled (at the daemon\'s next start)\n'
        assert two("disable", "shop") == (0, done, "")
        assert (enabled(tmp_path, "shop"), enabled(tmp_path, "hr")) == (False, True)
    done = 'subscription "shop" enabled (at the daemon\'s next start)\n'
    assert two("enable", "shop") == (0, done, "")
    assert enabled(tmp_path, "shop")


@pytest.mark.parametrize("daemon", [False, True])
def test_the_file_says_otherwise(two, tmp_path, daemon):
    """The command comes after the change of the file: neither a start nor a reload takes that one over."""
    two("status")
    (tmp_path / "pgbridge.toml").write_text(TWO + "enabled = false\n")
    with locked(tmp_path / "state") if daemon else nullcontext():
        assert two("enable", "hr").code == 0
    with catalog_of(tmp_path) as catalog:
        catalog.register("hr", enabled=False)  # as the daemon does
    assert enabled(tmp_path, "hr")


def test_while_the_daemon_runs(two, tmp_path):
    """It works on the same catalog, and the daemon looks there."""
    with locked(tmp_path / "state"):
        assert two("disable", "hr") == (0, 'subscription "hr" disabled (now)\n', "")
    assert not enabled(tmp_path, "hr")


def test_a_worker_that_pauses(two, tmp_path, monkeypatch):
    """DISABLE waits until it has seen it; ENABLE of what is enabled says what ends the pause, as REFRESH does."""
    monkeypatch.setattr(alter, "_PATIENCE_S", 0.2)
    two("status")
    with locked(tmp_path / "state"), catalog_of(tmp_path) as catalog:
        catalog.set_state("shop", "error")
        pause = (
            "it pauses after an error, for 60 s at most. To end the pause: pgbridge disable shop; pgbridge enable shop"
        )
        assert two("enable", "shop").out == f'subscription "shop" enabled (now); {pause}\n'
        assert two("refresh", "shop").out.endswith(f"its first start subscribes to all published tables; {pause}\n")
        assert two("disable", "shop").out == 'subscription "shop" disabled (after its batch under way)\n'
        threading.Timer(0.1, catalog.set_state, ("shop", "disabled")).start()
        assert two("disable", "shop").out == 'subscription "shop" disabled (now)\n'
        assert two("enable", "shop").out == 'subscription "shop" enabled (now)\n'


def test_another_configuration_file(two, tmp_path):
    """The state is beside the file, not where the command is started."""
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "other.toml").write_text(TWO)
    assert two("disable", "shop", "--config", "else/other.toml").code == 0
    assert not enabled(tmp_path / "else", "shop")
    assert not (tmp_path / "state").exists()

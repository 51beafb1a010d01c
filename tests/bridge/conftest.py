"""A daemon that supervises made workers, and a systemd that it tells."""

from __future__ import annotations

import signal
import threading
from contextlib import closing

import pytest

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.runtime.supervisor import StopSignals
from tests.bridge.made_daemon import DyingWorker, Systemd


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """Supervises a `DyingWorker`."""
    from pgbridge.bridge.service import daemon as module
    from pgbridge.bridge.spark import session

    monkeypatch.setattr(module, "SubscriptionWorker", DyingWorker)
    monkeypatch.setattr(session, "fork", lambda spark: spark)
    monkeypatch.setattr(module, "_AGAIN_S", 0.1)
    monkeypatch.setattr(module, "_TURN_S", 0.02)
    DyingWorker.lives = DyingWorker.looks = 0
    DyingWorker.made = []
    subscription = Subscription(name="sub", connection="", publications=("pub",), warehouse="lake")
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        signals = StopSignals()
        config = Config(state_dir=tmp_path, subscription={"sub": subscription})
        files = [config]
        daemon = module.Daemon(config, signals, read=lambda: files[-1])
        daemon.files = files  # type: ignore[attr-defined]  # what its configuration file has, one after the other
        thread = threading.Thread(target=daemon._supervise, args=(None, catalog))
        yield daemon, thread
        signals._number = signals._number or signal.SIGTERM
        if thread.ident is not None:
            thread.join()
        daemon._end(catalog)


@pytest.fixture
def systemd(tmp_path):
    with closing(Systemd(str(tmp_path / "notify"))) as listening:
        yield listening

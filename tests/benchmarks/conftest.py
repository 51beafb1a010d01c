"""The run's own server, for benchmarks need its process id and its programs; and a daemon without Spark."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psycopg
import pytest

from benchmarks.bridge_folder import NAME, BridgeFolder
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.config.config import load
from pgbridge.protocol.lsn import Lsn
from tests.fix_selection import rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What needs a server or Spark is for `make soak`: a benchmark's own machinery serves nobody."""
    for item in items:
        if Path(__file__).parent in item.path.parents and rank(item):
            item.add_marker(pytest.mark.soak)


@pytest.fixture
def private(postgresql_server, monkeypatch):
    """The embedded server; skipped on one that belongs to others."""
    if postgresql_server.embedded is None:
        pytest.skip("benchmarks run on the private server only")
    monkeypatch.setattr("benchmarks.measure._REST_S", 0.0)
    return postgresql_server.embedded


@pytest.fixture
def no_server() -> Callable[..., AbstractContextManager[SimpleNamespace]]:
    """Stands for `EmbeddedPostgres` where nothing is measured."""
    return lambda *_, **__: nullcontext(SimpleNamespace(version="18.6"))


class FakeDaemon:
    """In the place of `Child`: what the publisher has written is durable a tenth of a second later."""

    pid = os.getpid()
    tables = 2

    def __init__(self, config_file: Path, log: Path) -> None:
        self._settings = load(config_file).choose(NAME)[0]
        self._catalog = BridgeFolder(config_file.parent).catalog()
        self._catalog.register(NAME, enabled=True)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with psycopg.connect(self._settings.connection, autocommit=True) as connection:
            rels = [RelRow("public", f"t{number}", "i", Lsn(0), "", number) for number in range(self.tables)]
            self._catalog.create_origin(NAME, Lsn(1), "incarnation", rels)
            for number in range(self.tables):
                self._over.wait(0.1)
                self._catalog.put_rel(NAME, RelRow("public", f"t{number}", "f", Lsn(1), "", number))
            while not self._over.is_set():
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                self._over.wait(0.1)
                self._catalog.advance_origin(NAME, Lsn.parse(row[0]))

    def check(self) -> None:
        """It never ends."""

    def log_tail(self) -> str:
        """Its log."""
        return "its log"

    def stop(self) -> int:
        """Ask it to end."""
        self._over.set()
        return 0

    def close(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join()
        self._catalog.close()


@pytest.fixture
def fake_daemon(monkeypatch):
    """Benchmarks run it in the place of `pgbridge run`."""
    for module in ("benchmarks.steady", "benchmarks.start"):
        monkeypatch.setattr(f"{module}.Child", FakeDaemon)
    return FakeDaemon

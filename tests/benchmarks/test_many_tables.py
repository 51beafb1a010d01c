"""Sizes are prepared, waited for and measured; the daemon is one that is durable a tenth of a second later."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psycopg
import pytest

from benchmarks import many_tables
from benchmarks.many_tables import Size, footprint, measure
from benchmarks.measure import BenchmarkError
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.config.config import load
from pgbridge.protocol.lsn import Lsn
from tests.benchmarks.test_database import names


class ManyDaemon:
    """In the place of `Child`: it copies the tables that the publications name, and all is durable soon."""

    pid = os.getpid()
    lives = 0

    def __init__(self, config_file, log):
        type(self).lives += 1
        self._config = load(config_file)
        self._catalog = Catalog(catalog_path(self._config.state_dir))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        names = self._config.subscription
        conninfo = next(iter(names.values())).connection
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for name, one in names.items():
                self._catalog.register(name, enabled=True)
                query = "SELECT tablename FROM pg_publication_tables WHERE pubname = %s"
                tables = connection.execute(query, (one.publications[0],)).fetchall()
                rels = [RelRow("public", table, "r", Lsn(1), "") for (table,) in tables]
                if self._catalog.remote_lsn(name) is None:
                    self._catalog.create_origin(name, Lsn(1), "incarnation", rels)
                self._catalog.set_state(name, "streaming")
            while not self._over.wait(0.05):
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                for name in names:
                    self._catalog.advance_origin(name, Lsn.parse(row[0]))

    def check(self):
        """It never ends."""

    def stop(self):
        self._over.set()
        self._thread.join()
        for name in self._config.subscription:
            self._catalog.set_state(name, "stopped")

    def close(self):
        self.stop()
        self._catalog.close()


@pytest.fixture(autouse=True)
def daemon(monkeypatch):
    monkeypatch.setattr(many_tables, "Child", ManyDaemon)
    monkeypatch.setattr(ManyDaemon, "lives", 0)


@pytest.mark.parametrize("size", [Size(3), Size(5, 3)])
def test_a_size_is_measured(private, tmp_path, size):
    said: list[str] = []
    measured = measure(private, tmp_path / "many", size, batches=2, idle_s=0.1, say=said.append)
    assert (measured.size, len(measured.batch_s), ManyDaemon.lives) == (size, 2, 2)
    assert 0 < measured.copied_s < 60
    assert 0 < measured.restart_s < 60
    assert all(0 < seconds < 60 for seconds in measured.batch_s)
    assert measured.idle_cpu >= 0
    assert measured.footprint.python_bytes > 1 << 20
    assert len(said) == 3
    assert "bench_many" not in names(private)
    assert len(load(tmp_path / "many" / "pgbridge.toml").subscription) == size.subscriptions


def test_a_start_that_takes_too_long_is_an_error(private, tmp_path, monkeypatch):
    monkeypatch.setattr(many_tables, "_TIMEOUT_S", 0.0)
    with pytest.raises(BenchmarkError, match="3 tables, 1 subscriptions: the start took more than 0 s"):
        measure(private, tmp_path / "many", Size(3), batches=1, idle_s=0.1)
    assert "bench_many" not in names(private)


def test_footprint_of_a_process_without_a_jvm():
    """The process of these tests may have one."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        held = footprint(process.pid)
        process.communicate()
    assert (held.jvm_bytes, held.jvm_threads) == (0, 0)
    assert held.threads > 0
    assert held.descriptors > 0

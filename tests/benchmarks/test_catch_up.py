"""A small run of everything: each variant in turn, on clones of one slot, and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import psycopg
import pytest

from benchmarks import catch_up, checksum, daemon_runs
from benchmarks.catch_up import CASES, COLD, NATIVE, VARIANTS, WARM, DaemonProcess, Run, measure
from benchmarks.daemon_runs import Job
from benchmarks.measure import BenchmarkError
from benchmarks.native import SETTINGS
from pgbridge.bridge.demo.server import EmbeddedPostgres

SCALE = 0.0005


class InThisProcess:
    """Answers as the measured process does, on the tests' Spark session."""

    def __init__(self, folder):
        self.catch_up = daemon_runs.catch_up

    def close(self):
        """There is no process."""


@pytest.fixture
def servers(private, spark, monkeypatch):
    """The run's server, and another one for PostgreSQL's subscription."""
    monkeypatch.setattr("pgbridge.bridge.spark.session.start", lambda *_, **__: spark)
    monkeypatch.setattr(catch_up, "DaemonProcess", InThisProcess)
    monkeypatch.setattr(catch_up, "_REST_S", 0.0)
    with EmbeddedPostgres(settings=SETTINGS, fsync=False) as subscriber:
        yield private, subscriber


def left_behind(servers):
    found = []
    for server in servers:
        with psycopg.connect(server.conninfo()) as connection:
            found += connection.execute(
                "SELECT datname FROM pg_database WHERE datname LIKE 'bench%'"
                " UNION ALL SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'bench%'"
            ).fetchall()
    return found


def test_every_variant_runs_once_a_round(servers, tmp_path):
    said: list[str] = []
    measured = measure(servers, CASES["W1"], tmp_path / "W1", rounds=1, scale=SCALE, say=said.append)
    (runs,) = measured.rounds
    assert (measured.rows, measured.transactions) == (800, 3)
    assert tuple(run.variant for run in runs) == VARIANTS
    assert all(run.seconds > 0 for run in runs)
    assert [run.commits for run in runs] == [None, 1, 1]
    assert len(said) == 2 + len(VARIANTS) + len(measured.left_out)
    assert left_behind(servers) == []


def test_tables_that_differ_are_an_error(servers, tmp_path, monkeypatch):
    real = checksum.in_delta

    def in_delta(spark, tables, paths):
        return {
            table: (count, checksum + (count > 0)) for table, (count, checksum) in real(spark, tables, paths).items()
        }

    monkeypatch.setattr(daemon_runs, "in_delta", in_delta)
    with pytest.raises(BenchmarkError, match="pgbridge, warm: table w1 has 450 rows with checksum"):
        measure(servers, CASES["W1"], tmp_path / "W1", rounds=1, scale=SCALE)
    assert left_behind(servers) == []


def test_case_is_loaded_as_often_as_it_says_and_variants_take_turns(servers, tmp_path, monkeypatch):
    loaded, order = [], []

    def load(server, dbname, scale):
        loaded.append(scale)
        return 7, 1

    class Bench(catch_up.Bench):
        """Runs nothing."""

        def native(self):
            order.append(NATIVE)
            return Run(NATIVE, 1, 0, 0, 1)

        def warm(self, daemon):
            order.append(WARM)
            return Run(WARM, 1, 0, 0, 1)

    monkeypatch.setattr(catch_up, "Bench", Bench)
    case = dataclasses.replace(CASES["W1"], times=5, workload=dataclasses.replace(CASES["W1"].workload, load=load))
    measured = measure(servers, case, tmp_path / "W1", variants=[WARM], rounds=2, scale=0.5)
    assert loaded == [2.5]
    assert order == [WARM, NATIVE, WARM, WARM, NATIVE]
    assert COLD not in [run.variant for runs in measured.rounds for run in runs]


def test_process_that_fails_shows_its_log(tmp_path):
    daemon = DaemonProcess(tmp_path / "process")
    with pytest.raises(
        BenchmarkError, match=f"(?s)the daemon ended, with status 1; .*{Path('none', 'pgbridge.toml')} does not exist"
    ):
        daemon.catch_up(Job(str(tmp_path / "none"), "0/1", {}, os.getpid()))
    daemon.close()

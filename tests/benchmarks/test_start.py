"""A small start of each variant, in turn; the daemon is one that is durable a tenth of a second later."""

from __future__ import annotations

import pytest

from benchmarks import start
from benchmarks.measure import BenchmarkError
from benchmarks.native import SETTINGS
from pgbridge.bridge.demo.server import EmbeddedPostgres
from tests.benchmarks.test_database import names


@pytest.fixture
def servers(private, monkeypatch, fake_daemon):
    """The run's server, and another one for PostgreSQL's subscription."""
    monkeypatch.setattr(start, "_REST_S", 0.0)
    with EmbeddedPostgres(settings=SETTINGS, fsync=False) as subscriber:
        yield private, subscriber


def test_each_variant_starts_in_turn(servers, tmp_path):
    said: list[str] = []
    measured = start.measure(servers, tmp_path / "start", rounds=2, scale=0.1, say=said.append)
    assert measured.scale == 1
    assert [[run.variant for run in runs] for runs in measured.rounds] == [
        [start.NATIVE, start.BRIDGE],
        [start.BRIDGE, start.NATIVE],
    ]
    for run in (run for runs in measured.rounds for run in runs):
        assert 0 < run.first_table_s <= run.copied_s < 60
        assert 0 < run.first_batch_s < 60
        assert run.seconds == run.copied_s + run.first_batch_s
    assert len(said) == 4 + len(measured.left_out)
    assert not {"bench_start", "bench_start_run"} & (names(servers[0]) | names(servers[1]))
    assert not (tmp_path / "start").exists()


def test_a_start_that_takes_too_long_is_an_error(servers, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "_TIMEOUT_S", 0.0)
    with pytest.raises(BenchmarkError, match="PostgreSQL's subscription: a table's copy took more than 0 s"):
        start.measure(servers, tmp_path / "start", rounds=1, scale=0.1)
    assert "bench_start" not in names(servers[0]) | names(servers[1])

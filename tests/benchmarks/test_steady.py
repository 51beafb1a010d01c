"""A small run of each load, on a daemon that is durable a tenth of a second later."""

from __future__ import annotations

import pytest

from benchmarks import steady
from benchmarks.measure import BenchmarkError
from tests.benchmarks.test_database import names

SCALE = 0.02


@pytest.mark.usefixtures("fake_daemon")
@pytest.mark.parametrize(("name", "tables"), [("pgbench", 4), ("tables", 2)])
def test_each_load_is_measured(private, tmp_path, name, tables):
    load = steady.loads(SCALE)[name]
    said: list[str] = []
    measured = steady.measure(private, load, tmp_path / "steady", warm_up_s=0.5, patience_s=10, say=said.append)
    assert measured.end_s - measured.start_s == pytest.approx(load.seconds, abs=2)
    assert measured.transactions == pytest.approx(load.rate * (load.seconds + 0.5), rel=0.9)
    found = measured.latencies()
    assert len(found.seconds) > load.seconds / 2
    assert found.percentile(50) < 2
    assert 0.05 < found.percentile(100) < 10
    assert measured.usage.python_cpu_s > 0
    assert measured.lag_s(0.5) < 2
    assert len(said) == 2
    assert not {f"bench_{name}", "bench_steady"} & names(private)


def test_halves_are_parts_of_the_whole(private, tmp_path, fake_daemon):
    measured = steady.measure(private, steady.loads(SCALE)["pgbench"], tmp_path / "steady", warm_up_s=0, patience_s=10)
    first, second = measured.latencies(0, 0.5), measured.latencies(0.5, 1)
    assert first.seconds + second.seconds == measured.latencies().seconds


def test_a_copy_that_takes_too_long_is_an_error(private, tmp_path, monkeypatch, fake_daemon):
    monkeypatch.setattr(fake_daemon, "tables", 0)
    monkeypatch.setattr(steady, "_COPY_S", 0.2)
    with pytest.raises(BenchmarkError, match="the tables are not copied after 0.2 s:\nits log"):
        steady.measure(private, steady.loads(SCALE)["tables"], tmp_path / "steady", warm_up_s=0, patience_s=1)


def test_scale_makes_loads_smaller():
    whole, part = steady.loads(1), steady.loads(0.1)
    assert {name: (load.rate, load.seconds) for name, load in whole.items()} == {
        "pgbench": (100, 120),
        "tables": (500, 300),
    }
    assert {name: (load.rate, load.seconds) for name, load in part.items()} == {
        "pgbench": (100, 12),
        "tables": (50, 30),
    }
    assert "10 tables of" in part["tables"].text

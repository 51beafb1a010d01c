"""Debezium's engine gives each change of a slot once; what it does not give is told, with its log."""

from __future__ import annotations

import pytest

from benchmarks import debezium
from benchmarks.debezium import Debezium
from benchmarks.measure import BenchmarkError
from benchmarks.workloads import WORKLOADS

SLOT = "bench_test"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return Debezium(tmp_path_factory.mktemp("engine") / "debezium")


def test_changes_are_counted(private, publisher, engine, monkeypatch):
    workload = WORKLOADS["W1"]
    workload.prepare(private, publisher.name)
    publisher.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    rows, _ = workload.load(private, publisher.name, 0.0001)
    monkeypatch.setattr(debezium, "_PATIENCE_S", 20)

    def receive(wanted):
        publisher.execute(f"SELECT pg_copy_logical_replication_slot('{SLOT}', 'bench_copy')")
        try:
            return engine.receive(private, publisher.name, "bench_copy", wanted, rest_s=0.0)
        finally:
            publisher.execute(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
                "WHERE slot_name = 'bench_copy' AND active_pid IS NOT NULL"
            )
            publisher.execute("SELECT pg_drop_replication_slot('bench_copy')")

    one = receive(rows)
    assert one.seconds > 0
    assert one.cpu_s > 0
    assert one.peak_bytes > 1 << 20
    with pytest.raises(BenchmarkError, match=f"gave {rows} changes, not {rows - 1}"):
        receive(rows - 1)
    with pytest.raises(BenchmarkError, match=f"has {rows} of {rows + 1} changes"):
        receive(rows + 1)
    assert engine.version.endswith(".Final")


def test_what_cannot_be_built_says_why(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    monkeypatch.setattr(debezium, "_HERE", tmp_path / "source")
    with pytest.raises(BenchmarkError, match="mvn has failed"):
        Debezium(tmp_path / "debezium")

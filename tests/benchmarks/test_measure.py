"""A small run of everything: all variants in turn, on clones of one slot, and nothing left behind."""

from __future__ import annotations

import dataclasses

import psycopg
import pytest

from benchmarks.measure import VARIANTS, BenchmarkError, Run, measure
from benchmarks.workloads import WORKLOADS

SCALE = 0.002


def left_behind(server):
    with psycopg.connect(server.conninfo()) as connection:
        return connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'bench%'"
            " UNION ALL SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'bench%'"
        ).fetchall()


def test_every_variant_runs_once_a_round(private):
    said: list[str] = []
    measured = measure(private, WORKLOADS["W1"], rounds=1, scale=SCALE, say=said.append)
    (runs,) = measured.rounds
    assert (measured.rows, measured.transactions) == (3200, 3)
    assert tuple(run.variant for run in runs) == VARIANTS
    assert all(run.seconds > 0 and run.walsender_cpu_s >= 0 for run in runs)
    assert len(said) == 1 + len(VARIANTS) + len(measured.left_out)
    assert left_behind(private) == []


def test_variants_take_turns(private, monkeypatch):
    order = []

    def run(server, connection, variant, end_lsn, expected):
        order.append(variant)
        return Run(variant, 1, 1, 1, 0)

    monkeypatch.setattr("benchmarks.measure._run", run)
    measure(private, WORKLOADS["W1"], rounds=2, scale=SCALE)
    first, second, third = VARIANTS
    assert order == [first, second, third, second, third, first]


@pytest.mark.parametrize(("stolen", "kept"), [([5, 5, 0.9], 0.9), ([5, 5, 5, 4], 4)])
def test_a_disturbed_run_is_made_again(private, monkeypatch, stolen, kept):
    """Three times at most; the last one counts, whatever it is."""
    left = list(stolen)

    def run(server, connection, variant, end_lsn, expected):
        return Run(variant, 10, 1, 1, left.pop(0) if left else 0)

    monkeypatch.setattr("benchmarks.measure._run", run)
    measured = measure(private, WORKLOADS["W1"], rounds=1, scale=SCALE)
    assert [one.stolen_s for one in measured.rounds[0]] == [kept, 0, 0]
    assert [one.stolen_s for one in measured.left_out] == stolen[:-1]


def test_missing_rows_are_an_error(private):
    workload = WORKLOADS["W1"]

    def load(server, dbname, scale):
        rows, transactions = workload.load(server, dbname, scale)
        return rows + 1, transactions

    with pytest.raises(BenchmarkError, match="receive only: 3200 rows in 3 transactions came, not 3201 in 3"):
        measure(private, dataclasses.replace(workload, load=load), rounds=1, scale=SCALE)
    assert left_behind(private) == []

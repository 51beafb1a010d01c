"""The measured process takes all of a stream, with and without decoding, and says how much that was."""

from __future__ import annotations

import dataclasses
import json
import runpy
import sys

import pytest

from benchmarks.receiver import Job, Received, receive


@pytest.fixture
def job(publisher):
    """Five changes in three transactions: inserts, an update, a delete."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    publisher.execute("CREATE PUBLICATION p FOR TABLE t")
    publisher.execute("SELECT pg_create_logical_replication_slot('bench_test', 'pgoutput')")
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'bench_test'"
    start_lsn = publisher.query(query)[0][0]
    publisher.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 3) i")
    publisher.execute("UPDATE t SET note = 'y' WHERE id = 1")
    publisher.execute("DELETE FROM t WHERE id = 1")
    end_lsn = publisher.query("SELECT pg_current_wal_insert_lsn()::text")[0][0]
    return Job(publisher.conninfo, "bench_test", "p", start_lsn, end_lsn, decode=True)


@pytest.mark.parametrize("decode", [False, True])
def test_all_is_received(job, decode):
    received = receive(dataclasses.replace(job, decode=decode))
    assert (received.rows, received.transactions) == (5, 3)
    assert 0 < received.seconds < 60
    assert received.cpu_s > 0


def test_process_prints_what_it_measured(job, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["receiver", json.dumps(dataclasses.asdict(job))])
    monkeypatch.delitem(sys.modules, "benchmarks.receiver")
    runpy.run_module("benchmarks.receiver", run_name="__main__")
    received = Received(**json.loads(capsys.readouterr().out))
    assert (received.rows, received.transactions) == (5, 3)

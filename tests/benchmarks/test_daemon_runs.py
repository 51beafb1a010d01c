"""The measured process runs the daemon to the LSN that is asked for, on a Spark session that stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bridge_folder import BridgeFolder
from benchmarks.checksum import in_postgresql
from benchmarks.daemon_runs import Job, catch_up
from pgbridge.protocol.lsn import Lsn

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(publisher, spark, monkeypatch, tmp_path):
    """A folder of a subscription to the table t, which has one row; the session is the tests'."""
    monkeypatch.setattr("pgbridge.bridge.spark.session.start", lambda *_, **__: spark)
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t VALUES (1, 'x')")
    publisher.execute("CREATE PUBLICATION p FOR TABLE t")
    made = BridgeFolder(tmp_path / "folder")
    made.configure(publisher.conninfo, "p", slot_name="bench_runs")
    return made


def test_copies_then_applies_to_the_lsn(folder, publisher, private, spark):
    tables = {"t": [("id", "integer"), ("note", "text")]}
    copied = catch_up(Job(str(folder.path), "0/0", tables, private.pid))
    assert copied.checksums["t"][0] == 1
    publisher.execute("INSERT INTO t VALUES (2, 'y')")
    ((end_lsn,),) = publisher.query("SELECT pg_current_wal_flush_lsn()::text")
    applied = catch_up(Job(str(folder.path), end_lsn, tables, private.pid))
    assert folder.remote_lsn() >= Lsn.parse(end_lsn)
    with publisher.connect() as connection:
        assert applied.checksums == in_postgresql(connection, tables)
    assert 0 < applied.seconds < 240
    assert applied.python_cpu_s > 0
    assert applied.others_s >= 0
    assert applied.python_peak_bytes > 1 << 20
    assert spark.range(3).count() == 3


def test_a_daemon_that_fails_is_an_error(folder, publisher, private):
    publisher.execute("SELECT pg_create_logical_replication_slot('bench_runs', 'pgoutput')")
    with pytest.raises(RuntimeError, match='the daemon ended with 1 before 0/1: .*"bench_runs" already exists'):
        catch_up(Job(str(folder.path), "0/1", {}, private.pid))


def test_process_ends_with_its_input():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.daemon_runs"], check=True, input="", capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == ""


def test_a_run_ends_when_nobody_wants_its_result():
    """A benchmark that was killed leaves no JVM behind."""
    busy = (
        "import queue, threading\nfrom benchmarks.daemon_runs import _read\n_read(queue.Queue(), threading.Event())\n"
    )
    command = [sys.executable, "-c", f"{busy}print('still there')"]
    done = subprocess.run(command, check=False, input="", capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "")

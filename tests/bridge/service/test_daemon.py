"""The process: it outlives its JVM and its workers, and stops cleanly. `test_daemon_monitor.py` has a whole life."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from py4j.protocol import Py4JNetworkError

import pgbridge
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.check.finding import passed
from pgbridge.bridge.config.config import Config, Subscription
from pgbridge.bridge.runtime import process, threads
from pgbridge.bridge.runtime.errors import ConfigError, SparkLost, TakenOver
from pgbridge.bridge.runtime.supervisor import StopSignals
from pgbridge.bridge.service import daemon as module
from pgbridge.bridge.spark import session
from pgbridge.bridge.spark.driver import Driver
from pgbridge.protocol.lsn import Lsn
from tests.bridge.configurations import altered
from tests.bridge.made_daemon import SETUP, DyingWorker, wait_until


def test_a_failing_subscription_makes_until_caught_up_fail(publisher, tables, tmp_path, monkeypatch):
    monkeypatch.setattr(Driver, "start", lambda *_, **__: tables)
    monkeypatch.setattr(Driver, "stop", lambda *_: None)
    monkeypatch.setattr(process, "keep_freed", lambda: None)
    monkeypatch.setattr(threads, "share_interpreter", lambda _: None)
    given: dict[str, Any] = {"publications": ("pub",), "warehouse": str(tmp_path / "lake"), "slot_name": "nothing"}
    subscription = Subscription(name="sub", connection=publisher.conninfo, create_slot=False, **given)
    config = Config(state_dir=tmp_path / "state", subscription={"sub": subscription})
    assert module.Daemon(config, StopSignals(), until_caught_up=True).run() == 1
    with closing(Catalog(catalog_path(config.state_dir))) as catalog:
        error = catalog.last_error("sub")
    assert error is not None
    assert 'replication slot "nothing" does not exist' in error.message


def children(pid):
    """Processes that a process has started, by their ids: the daemon's JVM."""
    stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    fields = [(stat.split()[0], stat.rpartition(")")[2].split()[1]) for stat in stats]
    return [int(child) for child, parent in fields if int(parent) == pid]


@pytest.mark.parametrize("after_s", [0, 4])
def test_a_signal_while_spark_starts(publisher, daemon, after_s):
    """It ends within seconds, cleanly, and the JVM with it, whether that is there already or not."""
    publisher.execute(SETUP)
    bridge = daemon()
    bridge.start()
    bridge.wait_for('"starting Spark"')
    time.sleep(after_s)
    jvm = children(bridge.pid)
    started = time.monotonic()
    assert bridge.stop(30) == 0
    assert time.monotonic() - started < 10
    assert "Traceback" not in bridge.log.read_text()
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in jvm), 10)
    assert bridge.status()["state"] == "stopped"


def test_the_jvm_is_killed(spark, publisher, daemon):
    """As by a kernel without memory: another one is started, and nothing is lost or comes twice.

    The JVM of a killed daemon is waited for, on a local disk, too: what it has begun, a commit or an OPTIMIZE, it might
    finish after it was dealt with. The next daemon is killed behind a table's commit.
    """
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (id int); ALTER TABLE keyless REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES (0); CREATE PUBLICATION pub FOR TABLE t, keyless"
    )
    bridge = daemon(batch__max_age_s=0.0, workers__retry_max_s=1)
    bridge.start()
    bridge.wait_for('"streaming"')
    (jvm,) = children(bridge.pid)
    listening = {one.laddr.ip for one in psutil.Process(jvm).net_connections("inet") if one.status == "LISTEN"}
    assert listening, "by py4j, as RPC and as block manager"
    assert {ip.removeprefix("::ffff:") for ip in listening} <= {"127.0.0.1", "::1"}
    os.kill(jvm, signal.SIGINT)  # the terminal's Ctrl-C, which is for the daemon
    rows = "SELECT generate_series(%s + 1, %s + 2000)"
    with closing(Catalog(catalog_path(bridge.folder / "state"))) as catalog:
        publisher.execute(f"BEGIN; INSERT INTO t {rows % (0, 0)}; INSERT INTO keyless {rows % (0, 0)}; COMMIT")
        wait_until(lambda: catalog.batch("sub") is not None)
        os.kill(jvm, signal.SIGKILL)
        publisher.execute(f"BEGIN; INSERT INTO t {rows % (2000, 2000)}; INSERT INTO keyless {rows % (2000, 2000)}; END")
        flushed = Lsn.parse(publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        wait_until(lambda: (catalog.remote_lsn("sub") or 0) >= flushed, 120)
        assert catalog.last_error("sub") is None
    (other,) = children(bridge.pid)
    assert other != jvm
    for table in ("t", "keyless"):
        ids = sorted(row["id"] for row in spark.read.format("delta").load(bridge.path(table)).collect())
        assert ids == list(range(table == "keyless", 4001))
    assert "Spark's JVM has died; it is started again" in bridge.log.read_text()
    assert bridge._process.poll() is None
    psutil.Process(other).suspend()
    try:
        bridge.kill()
        publisher.execute("INSERT INTO t VALUES (-1)")
        bridge.start("--until-caught-up", fault="table_committed")
        bridge.wait_for("waiting for the Spark of an earlier daemon to end")
        time.sleep(1)
        assert bridge.jvms() == []
        assert bridge.log_tail().count("waiting for the Spark of an earlier daemon to end") == 1
    finally:
        psutil.Process(other).resume()  # its standard input is closed, so it ends
    assert bridge.wait() == -signal.SIGKILL, bridge.log_tail()
    assert bridge.run_until_caught_up() == 0
    assert spark.read.format("delta").load(bridge.path("t")).count() == 4002
    assert pgbridge.snapshot(spark, str(bridge.folder / "lake"))["public.t"].count() == 4002


def test_a_daemon_ends_whose_subscription_was_taken_over(supervised):
    """Nothing may be done here any more, for none of its subscriptions."""
    daemon, thread = supervised
    DyingWorker.ends = [(TakenOver('subscription "sub" was taken over'), True)]
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert daemon._taken_over.keys() == {"sub"}


def test_a_standby_runs_nothing_before_its_turn(supervised, monkeypatch):
    daemon, _ = supervised
    DyingWorker.ends = []
    turns = iter([False, False, True])
    standby = mock.MagicMock()
    standby.__enter__.return_value.turn = lambda _: next(turns)
    monkeypatch.setattr("pgbridge.bridge.service.daemon.Standby", lambda *_: standby)
    monkeypatch.setattr("pgbridge.bridge.service.daemon.report.preflight", lambda *_: None)
    monkeypatch.setattr("pgbridge.bridge.service.daemon.WarmUp", mock.MagicMock())
    states = []
    daemon._waits = True
    with closing(Catalog(catalog_path(daemon._config.state_dir))) as catalog:
        monkeypatch.setattr(daemon, "_pause", lambda *_: states.append(daemon._states(catalog)["sub"]))
        assert daemon._with_slots() == []
        daemon._wait_as_standby(None, catalog)
    assert (states, daemon._waits, DyingWorker.lives) == (["standby", "standby"], False, 0)


@pytest.mark.parametrize(("until_caught_up", "code"), [(False, 0), (True, 1)])
def test_the_exit_code_after_a_signal(supervised, monkeypatch, until_caught_up, code):
    """0, whatever state a subscription was in; but `--until-caught-up` has not come to where it should."""
    daemon, _ = supervised
    monkeypatch.setattr(Driver, "start", lambda *_, **__: object())
    monkeypatch.setattr(Driver, "stop", lambda *_: None)
    monkeypatch.setattr(process, "keep_freed", lambda: None)
    daemon._until_caught_up = until_caught_up
    DyingWorker.ends = [(ConfigError("connection: not a libpq connection string"), True)]
    timer = threading.Timer(1, daemon._signals._on_signal, (signal.SIGTERM, None))
    timer.start()
    assert daemon.run() == code
    timer.join()
    assert daemon._failed == {"sub"}


def test_the_jvm_dies_again_and_again(supervised, monkeypatch):
    """It is started anew, after pauses that grow; only one who waits for the end is told that there is none."""
    daemon, _ = supervised
    daemon._until_caught_up = True
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 0.01)
    started = [object() for _ in range(20)]
    monkeypatch.setattr(Driver, "start", lambda *_, **__: started.pop())
    monkeypatch.setattr(Driver, "lost", lambda *_: "it was killed by SIGKILL")
    monkeypatch.setattr(Driver, "forget", lambda driver: driver)
    monkeypatch.setattr(process, "keep_freed", lambda: None)
    DyingWorker.ends = []
    with pytest.raises(SparkLost, match="has died 13 times within 10 minutes; the last time it was killed by SIGKILL"):
        daemon.run()
    assert len(started) == 7
    assert daemon._failed == set(), "the subscriptions are not to blame"


def test_a_jvm_that_dies_before_a_worker_is_there(supervised, monkeypatch):
    """Then no worker is started with it; what else goes wrong there is told."""
    daemon, _ = supervised

    def refuse(_):
        raise ConnectionRefusedError("Connection refused")

    monkeypatch.setattr(session, "fork", refuse)
    with closing(Catalog(catalog_path(daemon._config.state_dir))) as catalog:
        monkeypatch.setattr(Driver, "lost", lambda *_: "it was killed by SIGKILL")
        daemon._start_workers(None, catalog)
        assert daemon._workers == {}
        monkeypatch.setattr(Driver, "lost", lambda *_: None)
        with pytest.raises(ConnectionRefusedError):
            daemon._start_workers(None, catalog)


def test_deaths_long_ago_do_not_count(supervised, monkeypatch):
    daemon, _ = supervised
    monkeypatch.setattr(Driver, "forget", lambda driver: driver)
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    for _ in range(10):
        assert daemon._bury("it was killed by SIGKILL") <= 2.0
        now_s[0] += 250
    assert [daemon._bury("it was killed by SIGKILL") for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]


def test_a_jvm_that_dies_while_the_workers_are_looked_at(supervised, monkeypatch):
    """A subscription that was cut short by it has not caught up: `--until-caught-up` goes on."""
    daemon, thread = supervised
    daemon._until_caught_up = True
    DyingWorker.ends = [(Py4JNetworkError("gone"), False)]
    dead = threading.Event()
    reap = daemon._reap

    def dies_first():
        for worker in daemon._workers.values():
            worker.thread.join()
        dead.set()
        reap()

    monkeypatch.setattr(daemon, "_reap", dies_first)
    monkeypatch.setattr(Driver, "lost", lambda *_: "it was killed by SIGKILL" if dead.is_set() else None)
    thread.start()
    thread.join()
    assert not daemon._done, "another JVM is started"


def test_no_thread_ends_unseen(supervised, capsys):
    """One that ends by an error that nobody foresaw is logged, and has a successor."""
    daemon, thread = supervised
    DyingWorker.ends = [(MemoryError("no memory"), False), (RuntimeError("can't start new thread"), False)]
    thread.start()
    wait_until(lambda: DyingWorker.lives == 3, 10)
    assert daemon._failed == set()
    assert "a subscription's worker ended unexpectedly" in capsys.readouterr().out


def test_a_run_that_has_caught_up_says_where(supervised, capsys):
    daemon, thread = supervised
    daemon._until_caught_up = True
    DyingWorker.ends = [(None, False)]
    with closing(Catalog(catalog_path(daemon._config.state_dir))) as catalog:
        daemon._catalog = catalog
        catalog.create_origin("sub", Lsn(0x14C0378), "abc", [RelRow("public", "t", "r", Lsn(1), "/lake/t")])
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "caught up" in line]
        said = re.sub(r"\x1b\[\d*m", "", line)
        assert re.search(r"remote_lsn=0/14C0378 seconds=\d+\.\d subscription=sub tables=1$", said)
        daemon._tell_caught_up("another")
        assert capsys.readouterr().out == ""


def test_what_needs_a_hand_waits_for_it(supervised):
    """For `retry_max_s`, or for ENABLE, which starts another worker at once, whatever the one before ended by."""
    daemon, thread = supervised
    DyingWorker.ends = [(ConfigError("connection: not a libpq connection string"), True)]
    with closing(Catalog(catalog_path(daemon._config.state_dir))) as catalog:
        thread.start()
        wait_until(lambda: daemon._failed == {"sub"}, 10)
        time.sleep(0.3)
        assert DyingWorker.lives == 1
        catalog.set_enabled("sub", enabled=False)
        wait_until(lambda: daemon._again == {}, 10)
        catalog.set_enabled("sub", enabled=True)
        wait_until(lambda: DyingWorker.lives == 2, 10)
    assert daemon._failed == set()


def test_what_needs_a_hand_is_tried_again(supervised, monkeypatch):
    daemon, thread = supervised
    sub = altered(daemon._config.subscription["sub"], workers__retry_max_s=0.2)
    daemon._config.subscription["sub"] = sub
    DyingWorker.ends = [(ConfigError("connection: not a libpq connection string"), True)]
    thread.start()
    wait_until(lambda: DyingWorker.lives == 2, 10)


def test_what_a_killed_daemon_did_is_not_shown_while_spark_starts(supervised, monkeypatch):
    """Its last state would say that a subscription streams; `pgbridge drop` would wait for its end."""
    daemon, _ = supervised
    shown = []

    def start(*_, **__):
        shown.append(daemon._catalog.subscription("sub").state)
        raise RuntimeError("no Java")

    monkeypatch.setattr(Driver, "start", start)
    monkeypatch.setattr("pgbridge.bridge.check.machine.check_java", lambda _: passed("Java", "17"))
    with closing(Catalog(catalog_path(daemon._config.state_dir))) as catalog:
        catalog.set_state("sub", "streaming")
    with pytest.raises(SparkLost):
        daemon.run()
    assert shown == ["stopped"]


def test_a_daemon_that_waits_for_its_last_batch_is_alive(supervised, monkeypatch):
    """Its main loop turns on, or an orchestrator would kill it for want of health, in the middle of the batch."""
    daemon, thread = supervised
    DyingWorker.ends = []
    thread.start()
    wait_until(lambda: DyingWorker.lives == 1, 10)
    daemon._signals._on_signal(signal.SIGTERM, None)
    thread.join()
    turns: list[int] = []
    worker = daemon._workers["sub"]

    def stop():
        if len(turns) >= 3:  # the batch has ended
            worker._stop.set()

    monkeypatch.setattr(worker, "stop", stop)
    monkeypatch.setattr(daemon._monitor, "turn", lambda: turns.append(1))
    with closing(Catalog(catalog_path(daemon._config.state_dir))) as catalog:
        daemon._end(catalog)
    assert len(turns) >= 3


def test_a_subscription_that_was_disabled_while_the_jvm_was_dead(supervised):
    """No worker is left to say that it has stopped, and `pgbridge drop` waits for that."""
    daemon, thread = supervised
    DyingWorker.ends = []
    with closing(Catalog(catalog_path(daemon._config.state_dir))) as catalog:
        catalog.set_enabled("sub", enabled=False)
        catalog.set_state("sub", "error")
        thread.start()
        wait_until(lambda: (row := catalog.subscription("sub")) is not None and row.state == "disabled", 10)
    assert DyingWorker.lives == 0

"""The process: it stops cleanly, obeys ENABLE and DISABLE, and does not share its state directory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from bridge import daemon as module
from bridge import session
from bridge.config import Config, Subscription
from bridge.daemon import Daemon
from bridge.errors import ConfigError, SparkLost
from bridge.heartbeat import Heartbeat
from bridge.signals import StopSignals
from bridge.systemd import Service
from bridge.track.catalog import Catalog, catalog_path
from protocol.lsn import Lsn

SETUP = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t"


def command(bridge, *arguments):
    """Run another command on the daemon's configuration."""
    line = [sys.executable, "-m", "bridge", *arguments, "--config", str(bridge.config)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.3)


def test_a_daemons_life(spark, publisher, daemon):
    """Start, status, a second daemon refused, disable and enable while it runs, SIGTERM under load, kill -9."""
    publisher.execute(SETUP)
    bridge = daemon()
    bridge.start()
    bridge.wait_for('"streaming"')
    status = bridge.status()
    assert status["state"] == "streaming"
    assert status["tables"] == [{"name": "public.t", "state": "r", "path": bridge.path("t")}]
    assert status["last_error"] is None

    second = command(bridge, "run")
    assert second.returncode == 1
    assert f"another pgbridge daemon (process {bridge.pid})" in second.stderr

    assert "disabled (now)" in command(bridge, "disable", "sub").stdout
    wait_until(lambda: bridge.status()["state"] == "disabled")
    publisher.execute("INSERT INTO t VALUES (2)")
    assert "enabled (now)" in command(bridge, "enable", "sub").stdout
    wait_until(lambda: bridge.status()["state"] == "streaming" and bridge.status()["lag_bytes"] == 0)

    publisher.execute("INSERT INTO t SELECT generate_series(3, 5000)")
    assert bridge.stop() == 0
    stopped = bridge.status()
    assert (stopped["state"], stopped["enabled"]) == ("stopped", True)
    assert stopped["confirmed_flush_lsn"] == stopped["remote_lsn"]
    events = [json.loads(line) for line in bridge.log.read_text().splitlines() if line.startswith("{")]
    assert events[-1]["event"] == "stopped"
    assert all({"event", "level", "timestamp"} <= event.keys() for event in events)

    publisher.execute("INSERT INTO t VALUES (5001)")
    assert bridge.run_until_caught_up(fault="table_committed") == -signal.SIGKILL
    assert bridge.run_until_caught_up() == 0
    assert spark.read.format("delta").load(bridge.path("t")).count() == 5001


def test_a_failing_subscription_makes_until_caught_up_fail(publisher, daemon):
    bridge = daemon(create_slot=False, slot_name="nothing")
    assert bridge.run_until_caught_up() == 1
    assert 'replication slot "nothing" does not exist' in bridge.status()["last_error"]["message"]


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


def test_the_jvm_is_killed_in_a_batch(spark, publisher, daemon):
    """As by a kernel without memory: another one is started, and nothing is lost or comes twice."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (id int); ALTER TABLE keyless REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES (0); CREATE PUBLICATION pub FOR TABLE t, keyless"
    )
    bridge = daemon(batch_max_age_s=0.0, retry_max_s=1)
    bridge.start()
    bridge.wait_for('"streaming"')
    (jvm,) = children(bridge.pid)
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
    bridge.kill()
    wait_until(lambda: not Path("/proc", str(other)).exists(), 30)


class DyingWorker:
    """A worker whose thread ends as it is told, one life after the other; the last one lives on."""

    ends: list[tuple[BaseException | None, bool]]
    lives = 0

    made: list[Subscription]

    def __init__(self, subscription, *_, **__):
        DyingWorker.made.append(subscription)
        self.thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None
        self.gave_up = self.disabled = False
        self.heartbeat = Heartbeat()
        self._stop = threading.Event()

    def _run(self):
        DyingWorker.lives += 1
        if self.ends:
            self.error, self.gave_up = self.ends.pop(0)
        else:
            self._stop.wait(60)

    def stop(self):
        self._stop.set()


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """Supervises a `DyingWorker`."""
    monkeypatch.setattr(module, "SubscriptionWorker", DyingWorker)
    monkeypatch.setattr(session, "fork", lambda spark: spark)
    monkeypatch.setattr(module, "_AGAIN_S", 0.1)
    monkeypatch.setattr(module, "_TURN_S", 0.02)
    DyingWorker.lives = 0
    DyingWorker.made = []
    subscription = Subscription(name="sub", connection="", publications=("pub",), warehouse="lake")
    with closing(Catalog(catalog_path(tmp_path))) as catalog:
        catalog.register("sub", enabled=True)
        signals = StopSignals()
        config = Config(state_dir=tmp_path, subscription={"sub": subscription})
        files = [config]
        daemon = Daemon(config, signals, read=lambda: files[-1])
        daemon.files = files  # type: ignore[attr-defined]  # what its configuration file has, one after the other
        thread = threading.Thread(target=daemon._supervise, args=(None, catalog))
        yield daemon, thread
        signals._number = signals._number or signal.SIGTERM
        if thread.ident is not None:
            thread.join()
        daemon._end(catalog)


@pytest.mark.parametrize(("until_caught_up", "code"), [(False, 0), (True, 1)])
def test_the_exit_code_after_a_signal(supervised, monkeypatch, until_caught_up, code):
    """0, whatever state a subscription was in; but `--until-caught-up` has not come to where it should."""
    daemon, _ = supervised
    monkeypatch.setattr(session, "start", lambda *_, log: object())
    monkeypatch.setattr(session, "stop", lambda _: None)
    monkeypatch.setattr(module, "keep_freed", lambda: None)
    daemon._until_caught_up = until_caught_up
    DyingWorker.ends = [(ConfigError("connection: not a libpq connection string"), True)]
    timer = threading.Timer(1, daemon._signals._on_signal, (signal.SIGTERM, None))
    timer.start()
    assert daemon.run() == code
    timer.join()
    assert daemon._failed == {"sub"}


def test_a_jvm_that_dies_again_and_again(supervised, monkeypatch):
    """It is started anew a few times; then the process ends, and says why."""
    daemon, _ = supervised
    started = [object() for _ in range(10)]
    monkeypatch.setattr(session, "start", lambda *_, log: started.pop())
    monkeypatch.setattr(session, "died", lambda: "it was killed by SIGKILL")
    monkeypatch.setattr(session, "forget", lambda: None)
    monkeypatch.setattr(module, "keep_freed", lambda: None)
    DyingWorker.ends = []
    with pytest.raises(SparkLost, match="has died 4 times within 10 minutes; the last time it was killed by SIGKILL"):
        daemon.run()
    assert len(started) == 6
    assert daemon._failed == set(), "the subscriptions are not to blame"


def test_a_jvm_that_dies_before_a_worker_is_there(supervised, monkeypatch):
    """Then no worker is started with it; what else goes wrong there is told."""
    daemon, _ = supervised

    def refuse(_):
        raise ConnectionRefusedError("Connection refused")

    monkeypatch.setattr(session, "fork", refuse)
    with closing(Catalog(catalog_path(daemon._config.state_dir))) as catalog:
        monkeypatch.setattr(session, "lost", lambda _: "it was killed by SIGKILL")
        daemon._start_workers(None, catalog)
        assert daemon._workers == {}
        monkeypatch.setattr(session, "lost", lambda _: None)
        with pytest.raises(ConnectionRefusedError):
            daemon._start_workers(None, catalog)


def test_deaths_long_ago_do_not_count(supervised, monkeypatch):
    daemon, _ = supervised
    monkeypatch.setattr(session, "forget", lambda: None)
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    for _ in range(10):
        daemon._bury("it was killed by SIGKILL")
        now_s[0] += 250


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
    monkeypatch.setattr(session, "died", lambda: "it was killed by SIGKILL" if dead.is_set() else None)
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


def test_what_needs_a_hand_is_not_started_again(supervised):
    daemon, thread = supervised
    DyingWorker.ends = [(ConfigError("connection: not a libpq connection string"), True)]
    thread.start()
    wait_until(lambda: daemon._failed == {"sub"}, 10)
    time.sleep(0.3)
    assert DyingWorker.lives == 1


def another(config, **options):
    """A configuration whose subscription `sub` has other options."""
    changed = config.subscription["sub"].model_copy(update=options)
    return config.model_copy(update={"subscription": {**config.subscription, "sub": changed}})


def test_a_reload_replaces_the_worker_of_a_changed_subscription(supervised):
    """The next one starts once the first has ended; a reload without a change leaves it alone."""
    daemon, thread = supervised
    DyingWorker.ends = []
    thread.start()
    wait_until(lambda: DyingWorker.lives == 1, 10)
    first = daemon._workers["sub"]
    daemon._signals.hangups += 1
    wait_until(lambda: daemon._reload._taken_up == 1, 10)
    assert daemon._outdated == set()
    daemon.files.append(another(daemon._config, batch_max_rows=5))
    daemon._signals.hangups += 1
    wait_until(lambda: DyingWorker.lives == 2, 10)
    assert not first.thread.is_alive()
    assert [made.batch_max_rows for made in DyingWorker.made] == [2_000_000, 5]
    assert daemon._outdated == set()


def test_a_reload_adds_and_removes(supervised):
    """Removed ones stop, and keep their rows in the catalog; `enabled` acts as at a start."""
    daemon, thread = supervised
    DyingWorker.ends = []
    thread.start()
    wait_until(lambda: DyingWorker.lives == 1, 10)
    config = daemon._config
    more = {name: config.subscription["sub"].model_copy(update={"name": name}) for name in ("b", "c")}
    more["c"] = more["c"].model_copy(update={"enabled": False})
    daemon.files.append(config.model_copy(update={"subscription": more}))
    daemon._signals.hangups += 1
    wait_until(lambda: daemon._workers.keys() == {"b"}, 10)
    with closing(Catalog(catalog_path(config.state_dir))) as catalog:
        rows = {name: catalog.subscription(name) for name in ("sub", "b", "c")}
    assert {name: row is not None and row.enabled for name, row in rows.items()} == {"sub": True, "b": True, "c": False}
    assert daemon._copy_limit._limit == 4


def test_a_subscription_that_gave_up_is_tried_again_after_a_reload(supervised):
    daemon, thread = supervised
    DyingWorker.ends = [(ConfigError("connection: not a libpq connection string"), True)]
    thread.start()
    wait_until(lambda: daemon._failed == {"sub"}, 10)
    daemon.files.append(another(daemon._config, connection="host=there"))
    daemon._signals.hangups += 1
    wait_until(lambda: DyingWorker.lives == 2, 10)
    assert daemon._failed == set()


def test_a_worker_that_gives_up_while_it_is_replaced_is_no_failure(supervised):
    """Its successor has the options that may mend it."""
    daemon, _ = supervised
    DyingWorker.ends = [(ConfigError("connection: not a libpq connection string"), True)]
    worker = DyingWorker(daemon._config.subscription["sub"])
    daemon._workers["sub"] = worker
    daemon._outdated.add("sub")
    worker.thread.start()
    worker.thread.join()
    daemon._reap()
    assert (daemon._failed, daemon._outdated, daemon._workers) == (set(), set(), {})


class Systemd:
    """Its end of the notifications: a thread that receives them, because the kernel keeps only ten."""

    def __init__(self, path: str) -> None:
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while message := self._socket.recv(4096):
            self.messages.append(message.decode())

    def told(self, message):
        """Whether it was told something that begins like this."""
        return any(one.startswith(message) for one in self.messages)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()


@pytest.fixture
def systemd(tmp_path):
    with closing(Systemd(str(tmp_path / "notify"))) as listening:
        yield listening


def test_systemd_is_told_of_the_daemons_life(supervised, systemd, tmp_path):
    """READY, one status line a change, RELOADING and READY also for a file that is not valid, STOPPING."""
    daemon, thread = supervised
    DyingWorker.ends = []
    daemon._service = Service({"NOTIFY_SOCKET": str(tmp_path / "notify")}, os.getpid())

    def broken():
        raise ConfigError("pgbridge.toml: no")

    daemon._reload._read = broken
    thread.start()
    wait_until(lambda: systemd.told("STATUS=1 subscription: sub stopped"), 10)
    daemon._signals.hangups += 1
    wait_until(lambda: systemd.told("RELOADING=1\nMONOTONIC_USEC="), 10)
    wait_until(lambda: systemd.told("READY=1") and systemd.messages[-1] == "READY=1", 10)
    daemon._signals._number = signal.SIGTERM
    thread.join()
    wait_until(lambda: systemd.told("STATUS=stopping after the current batch"), 10)
    assert [message.partition("=")[0] for message in systemd.messages] == [
        *("READY", "STATUS"),
        *("RELOADING", "READY"),
        *("STOPPING", "STATUS"),
    ]


def test_the_watchdog_starves_with_a_worker(supervised, systemd, tmp_path, monkeypatch):
    """The loop turns, but its worker does not get on."""
    daemon, thread = supervised
    DyingWorker.ends = []
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000"}
    daemon._service = Service(environment, os.getpid())
    turns: list[int] = []
    reap = daemon._reap

    def turn():
        turns.append(1)
        reap()

    monkeypatch.setattr(daemon, "_reap", turn)
    thread.start()
    for _ in range(2):
        turns.clear()
        wait_until(lambda: len(turns) > 3, 10)
        assert not systemd.told("WATCHDOG=1")
        daemon._workers["sub"].heartbeat.beat()
        wait_until(lambda: systemd.told("WATCHDOG=1"), 10)
        systemd.messages.clear()  # one beat, one feed


def test_reload(spark, publisher, daemon, systemd, tmp_path, monkeypatch):
    """An option, a new subscription and a broken file, under load: nothing is lost or comes twice.

    SIGHUP before Spark runs does not end the daemon. systemd is told of all that.
    """
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    publisher.execute(SETUP)
    publisher.execute("CREATE TABLE u (id int); INSERT INTO u VALUES (1); CREATE PUBLICATION more FOR TABLE u")
    bridge = daemon(batch_max_age_s=0.0, retry_max_s=1)
    bridge.start()
    bridge.wait_for('"starting Spark"')
    os.kill(bridge.pid, signal.SIGHUP)
    bridge.wait_for('"streaming"')
    assert "the configuration file was read again" in bridge.log.read_text()

    wait_until(lambda: systemd.told("STATUS=1 subscription: sub streaming"))
    assert systemd.messages[:2] == ["STATUS=starting Spark", "READY=1"]
    wait_until(lambda: systemd.told("WATCHDOG=1"))

    good = bridge.config.read_text()
    bridge.config.write_text(good + "batch_max_rows = 0\n")
    broken = command(bridge, "reload")
    assert broken.returncode == 2
    assert "subscription.sub.batch_max_rows: must be greater than or equal to 1, not 0" in broken.stderr
    os.kill(bridge.pid, signal.SIGHUP)
    wait_until(lambda: "the configuration file cannot be used" in bridge.log.read_text())
    publisher.execute("INSERT INTO t SELECT generate_series(2, 2000); UPDATE t SET id = -id WHERE id % 2 = 0")

    more = "\n".join(line for line in good.splitlines() if line.startswith("connection"))
    other = f'[subscription.more]\n{more}\npublications = ["more"]\nwarehouse = "./more"\n'
    bridge.config.write_text(good.replace('"local[2]"', '"local[1]"') + "batch_max_rows = 500\n" + other)
    done = command(bridge, "reload")
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            'subscription "more" added',
            'subscription "sub" changed: batch_max_rows',
            "spark.master not changed: Spark has been started; to apply it, restart the daemon",
        ],
    )
    with closing(Catalog(catalog_path(bridge.folder / "state"))) as catalog:
        for first in range(2001, 6001, 500):
            publisher.execute(f"INSERT INTO t SELECT generate_series({first}, {first + 499})")
        publisher.execute("ALTER TABLE u REPLICA IDENTITY FULL; INSERT INTO u VALUES (1); UPDATE u SET id = 2")
        wait_until(lambda: catalog.remote_lsn("more") is not None)
        flushed = Lsn.parse(publisher.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        for name in ("sub", "more"):
            wait_until(lambda name=name: (catalog.remote_lsn(name) or 0) >= flushed, 120)

        wait_until(lambda: systemd.told("STATUS=2 subscriptions: sub streaming, more streaming"))
        bridge.config.write_text(good)
        assert command(bridge, "reload").stdout.splitlines()[-1].startswith('subscription "more" removed; its slot')
        wait_until(lambda: (row := catalog.subscription("more")) is not None and row.state == "stopped")
    assert systemd.told("RELOADING=1")
    assert bridge.stop() == 0
    wait_until(lambda: systemd.told("STOPPING=1"))
    for table, path in (("t", bridge.path("t")), ("u", str(bridge.folder / "more" / "public" / "u"))):
        rows = spark.read.format("delta").load(path).collect()
        assert sorted((row["id"],) for row in rows) == publisher.query(f"SELECT id FROM {table} ORDER BY id")
    assert bridge.status()["last_error"] is None

"""The daemon reads its configuration file again, and tells systemd what it does."""

from __future__ import annotations

import os
import signal
from contextlib import closing

from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.runtime.supervisor import Service
from pgbridge.protocol.lsn import Lsn
from tests.bridge.configurations import altered
from tests.bridge.made_daemon import SETUP, DyingWorker, command, wait_until


def another(config, **options):
    """A configuration whose subscription `sub` has other options."""
    changed = altered(config.subscription["sub"], **options)
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
    daemon.files.append(another(daemon._config, batch__max_rows=5))
    daemon._signals.hangups += 1
    wait_until(lambda: DyingWorker.lives == 2, 10)
    assert not first.thread.is_alive()
    assert [made.batch.max_rows for made in DyingWorker.made] == [2_000_000, 5]
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


def test_a_reload_has_workers_try_again(supervised):
    """Also if the file is as it was: what was mended, as a password, may stand elsewhere."""
    daemon, thread = supervised
    DyingWorker.ends = []
    thread.start()
    wait_until(lambda: DyingWorker.lives == 1, 10)
    daemon._signals.hangups += 1
    wait_until(lambda: DyingWorker.looks == 1, 10)
    assert DyingWorker.lives == 1


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


def test_the_daemon_makes_no_progress(supervised, systemd, tmp_path, monkeypatch):
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
    bridge = daemon(batch__max_age_s=0.0, workers__retry_max_s=1)
    bridge.start()
    bridge.wait_for('"starting Spark"')
    os.kill(bridge.pid, signal.SIGHUP)
    bridge.wait_for('"streaming"')
    assert "the configuration file was read again" in bridge.log.read_text()

    wait_until(lambda: systemd.told("STATUS=1 subscription: sub streaming"))
    told = [message for message in systemd.messages if message != "WATCHDOG=1"]
    assert told[:2] == ["STATUS=starting Spark", "READY=1"]
    wait_until(lambda: systemd.told("WATCHDOG=1"))

    good = bridge.config.read_text()
    bridge.config.write_text(good + "batch.max_rows = 0\n")
    broken = command(bridge, "reload")
    assert broken.returncode == 2
    assert "subscription.sub.batch.max_rows: must be greater than or equal to 1, not 0" in broken.stderr
    os.kill(bridge.pid, signal.SIGHUP)
    wait_until(lambda: "the configuration file cannot be used" in bridge.log.read_text())
    publisher.execute("INSERT INTO t SELECT generate_series(2, 2000); UPDATE t SET id = -id WHERE id % 2 = 0")

    more = "\n".join(line for line in good.splitlines() if line.startswith("connection"))
    other = f'[subscription.more]\n{more}\npublications = ["more"]\nwarehouse = "./more"\n'
    bridge.config.write_text(good.replace('"local[2]"', '"local[1]"') + "batch.max_rows = 500\n" + other)
    done = command(bridge, "reload")
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            'subscription "sub" changed: batch.max_rows',
            'subscription "more" added',
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

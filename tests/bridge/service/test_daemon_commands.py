"""Commands x states: each takes effect at once, whatever worker is failing, waiting or gone; or it says why not.

All of it in one daemon, whose subscriptions are in all states at the same time. It is pgbridge's own but for Spark: its
tables are in memory. The pause before another try is ten minutes in place of one, so that nothing comes of itself.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from unittest import mock

import pytest

from pgbridge.bridge.apply import stream_worker
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.catalog.lock import is_running
from pgbridge.bridge.check import report
from pgbridge.bridge.commands import refresh
from pgbridge.bridge.config import config
from pgbridge.bridge.runtime import faults, process, threads
from pgbridge.bridge.runtime.errors import SparkLost
from pgbridge.bridge.runtime.supervisor import StopSignals
from pgbridge.bridge.service import daemon as module, subscriber
from pgbridge.bridge.spark.driver import Driver
from tests.oracle.memory_tables import in_memory

LATER = "CREATE TABLE {s}.later (id int PRIMARY KEY, d date)"
STATES = {
    # name: what is there before the start, what happens once it streams, what removes the reason, the commands
    "apply": ("", "INSERT INTO {s}.t VALUES (2, 'infinity')", "UPDATE {s}.t SET d = NULL", "enable resync skip"),
    "copy": ("INSERT INTO {s}.t VALUES (2, 'infinity')", "", "UPDATE {s}.t SET d = NULL", "enable refresh resync"),
    "table_copy": (
        f"{LATER}; INSERT INTO {{s}}.later VALUES (2, 'infinity')",
        "ALTER PUBLICATION {s} ADD TABLE {s}.later",
        "UPDATE {s}.later SET d = NULL",
        "enable refresh resync",
    ),
    "table_apply": (
        LATER,
        "ALTER PUBLICATION {s} ADD TABLE {s}.later",
        "UPDATE {s}.later SET d = NULL",
        "enable refresh resync skip",
    ),
    "refused": ("", "ALTER ROLE {s} NOLOGIN", "ALTER ROLE {s} LOGIN", "enable resync skip"),
    "gave_up": (f"{LATER}", "", "ALTER PUBLICATION {s} ADD TABLE {s}.later", "enable refresh skip"),
    "locked": ("", "", "SELECT", "enable"),
}


@dataclass(frozen=True)
class Case:
    """A state and a command, with a subscription, a schema, a publication and a role of this name."""

    state: str
    command: str

    @property
    def name(self):
        return f"{self.state}_{self.command}"

    @property
    def repeats(self):
        """Whether the command is only another try, at what stays in the WAL."""
        return self.command in {"enable", "refresh"} and self.state in {"apply", "table_apply"}


WAITING = "SELECT count(*)::int FROM pg_locks WHERE NOT granted AND relation = 'locked_enable.t'::regclass"
CASES = [Case(state, command) for state, (*_, commands) in STATES.items() for command in commands.split()]


class Life:
    """A daemon in this process, on the configuration file of a folder."""

    def __init__(self, folder, pgbridge, catalog, tables) -> None:
        self.folder, self.pgbridge, self.catalog, self.tables = folder, pgbridge, catalog, tables
        self.spark_is_there = True
        self._signals = StopSignals()
        self._thread = threading.Thread()

    def start(self):
        settings = config.load(self.folder / "pgbridge.toml")
        self._signals = StopSignals()
        self._thread = threading.Thread(target=module.Daemon(settings, self._signals).run, name="the daemon")
        self._thread.start()
        wait_until(lambda: is_running(self.folder / "state"))

    def stop(self):
        self._signals._number = signal.SIGTERM
        if self._thread.ident is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()

    def says(self, *arguments):
        """What a command prints; it must succeed."""
        outcome = self.pgbridge(*arguments)
        assert outcome.code == 0, (arguments, outcome)
        return outcome.out

    def state(self, name):
        row = self.catalog.subscription(name)
        return None if row is None else row.state

    def error(self, name):
        return self.catalog.last_error(name) or self.catalog.last_error(sync_name(name))

    def attempts(self, name):
        row = self.catalog.subscription(name)
        return 0 if row is None else row.apply_error_count + row.sync_error_count

    def fails(self, case):
        """Whether a case is in its state."""
        state, error = self.state(case.name), self.error(case.name)
        if case.state == "locked":
            return state == "stopped"  # until all the others are there
        in_wal = case.state in {"apply", "table_apply"}
        expected = "streaming" if case.state.startswith("table") else "error"
        return state == expected and error is not None and (error.finish_lsn is not None) == in_wal

    def begun(self, case):
        early = case.state in {"copy", "gave_up"}
        return self.fails(case) if early else self.state(case.name) in {"streaming", "stopped"}

    def goes_on(self, case):
        """Whether the last row of each of its tables has come."""
        found = [self.ids(case.name, table) for table in ("t", "later")[: 1 + case.state.startswith("table")]]
        return all(ids and ids[-1] == 3 for ids in found)

    def ids(self, name, table):
        rels = {rel.name: rel for rel in self.catalog.rels(name) if rel.state in "sr"}
        return sorted(row["id"] for row in self.tables.arrow(rels[table].path).to_pylist()) if table in rels else []


def wait_until(condition, *arguments, timeout_s=40.0):
    end_s = time.monotonic() + timeout_s
    while not condition(*arguments):
        assert time.monotonic() < end_s, f"it did not happen: {condition} {arguments}"
        time.sleep(0.05)


@pytest.fixture
def life(tmp_path, pgbridge, monkeypatch):
    """A daemon with tables in memory, and a Spark that may be gone."""
    monkeypatch.setattr(stream_worker, "backoff_s", lambda _, longest_s: longest_s)
    monkeypatch.setattr(subscriber, "CommitLog", mock.MagicMock())
    for place, name in (
        (module, "WarmUp"), (report, "preflight"), (process, "keep_freed"), (threads, "share_interpreter"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, mock.MagicMock())
    monkeypatch.setattr(module, "JvmWatch", lambda *_: nullcontext())
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr(stream_worker, "_LOOK_INTERVAL_S", 0.1)
    monkeypatch.setattr(refresh, "_SETTLE_S", 0.3)
    monkeypatch.setattr(faults, "_action", faults._action)
    with in_memory() as tables, closing(Catalog(catalog_path(tmp_path / "state"))) as catalog:
        made = Life(tmp_path, pgbridge, catalog, tables)

        def start(*_, **__):
            if not made.spark_is_there:
                raise SparkLost("no Java here")
            return tables

        monkeypatch.setattr(Driver, "start", start)
        monkeypatch.setattr(Driver, "stop", lambda *_: None)
        monkeypatch.setattr(Driver, "forget", lambda driver: driver)
        monkeypatch.setattr(Driver, "kill", lambda _: True)
        monkeypatch.setattr(Driver, "lost", lambda *_: None if made.spark_is_there else "it was killed by SIGKILL")
        yield made
        made.stop()


def execute(publisher, part):
    """Execute a part of `STATES` for each case."""
    for case in CASES:
        if text := STATES[case.state][part]:
            publisher.execute(text.format(s=case.name))


@pytest.fixture
def cases(publisher, life):
    """The cases' tables, publications, roles and subscriptions."""
    lines = ['state_dir = "./state"']
    for name in (case.name for case in CASES):
        publisher.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id int PRIMARY KEY, d date)")
        publisher.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}.t; CREATE ROLE {name} SUPERUSER LOGIN")
        lines += [f"[subscription.{name}]", f"connection = {json.dumps(f'{publisher.conninfo} user={name}')}"]
        lines += [f'publications = ["{name}"]', 'warehouse = "./lake"', f'slot_name = "{publisher.name}_{name}"']
        lines += ["workers = {retry_max_s = 600, max_sync_workers = 1, catalog_check_s = 600}", "batch.max_age_s = 0"]
        lines += [f"enabled = {str(name != 'locked_enable').lower()}"]
        if name.startswith("gave_up"):
            lines.append(f'tables = {{"{name}.later" = {{mode = "changelog"}}}}')
    (life.folder / "pgbridge.toml").write_text("\n".join(lines))
    yield CASES
    life.stop()
    for case in CASES:
        publisher.execute(f"DROP ROLE {case.name}")


def in_stream(publisher, catalog):
    """Insert a row that cannot be applied into tables that come later, once their copy has its snapshot."""
    done = set()

    def reached(point):
        for case in CASES if point == "table_copied" else ():
            copied = [rel.state for rel in catalog.rels(sync_name(case.name))] == ["d"]
            if case.state == "table_apply" and case not in done and copied:
                done.add(case)
                with publisher.connect() as connection:
                    connection.execute(f"INSERT INTO {case.name}.later VALUES (2, 'infinity')".encode())

    return reached


def test_each_command_in_each_state(publisher, life, cases):
    execute(publisher, 0)
    faults.install(in_stream(publisher, life.catalog))
    life.start()
    for case in cases:
        wait_until(life.begun, case)
    execute(publisher, 1)
    for case in cases:
        if case.state.startswith("table"):
            assert "added: copied" in life.says("refresh", case.name)
    publisher.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE 'refused%'")
    for case in cases:
        wait_until(life.fails, case)
    lock = publisher.connect()
    faults.install(lambda point: lock.execute("BEGIN; LOCK TABLE locked_enable.t") if point == "slot_created" else None)
    life.says("enable", "locked_enable")
    wait_until(lambda: life.state("locked_enable") == "copying" and publisher.query(WAITING) == [(1,)])
    before = {case: life.attempts(case.name) for case in cases}
    lsns = {case: str((life.error(case.name) and life.error(case.name).finish_lsn) or "F/0") for case in cases}
    for case in cases:
        if case.command == "enable":
            assert life.says("disable", case.name).endswith(f'subscription "{case.name}" disabled (now)\n')
            assert life.state(case.name) == "disabled"
    execute(publisher, 2)
    faults.install(lambda _: None)
    lock.close()
    for case in cases:
        said = life.says(case.command, case.name, *(("--lsn", lsns[case]) if case.command == "skip" else ()))
        if case == Case("gave_up", "refresh"):  # it has nothing to refresh yet, and says what ends the pause
            assert f"To end the pause: pgbridge disable {case.name}; pgbridge enable {case.name}" in said
            life.says("disable", case.name)
            life.says("enable", case.name)
        publisher.execute(f"INSERT INTO {case.name}.t VALUES (3, NULL)")
        if case.state.startswith("table"):
            publisher.execute(f"INSERT INTO {case.name}.later VALUES (3, NULL)")
    for case in cases:
        if case.repeats:
            wait_until(lambda one: life.attempts(one.name) > before[one], case)
        else:
            wait_until(life.goes_on, case)
    without_spark(publisher, life)
    while_stopped(publisher, life)


def without_spark(publisher, life):
    """The JVM has died, and Spark cannot be started: what is asked for is done as soon as it can."""
    life.spark_is_there = False
    wait_until(lambda: life.state("copy_enable") == "starting")
    for name in ("copy_enable", "copy_refresh", "refused_skip"):
        assert "disabled (now)" in life.says("disable", name)
    assert "begins afresh" in life.says("resync", "table_copy_enable")
    assert "skip the transaction" in life.says("skip", "table_copy_resync", "--lsn", "F/0")
    publisher.execute("CREATE TABLE copy_resync.new (id int); ALTER PUBLICATION copy_resync ADD TABLE copy_resync.new")
    assert "copy_resync.new: added" in life.says("refresh", "copy_resync")
    life.says("enable", "copy_enable")
    life.spark_is_there = True
    publisher.execute("INSERT INTO copy_enable.t VALUES (4, NULL); INSERT INTO table_copy_enable.t VALUES (4, NULL)")
    wait_until(lambda: life.ids("copy_enable", "t")[-1:] == [4] == life.ids("table_copy_enable", "t")[-1:])
    wait_until(lambda: len(life.catalog.rels("copy_resync")) == 2)
    assert life.state("copy_refresh") == life.state("refused_skip") == "disabled"


def while_stopped(publisher, life):
    """The daemon is stopped: all takes effect at its next start, and is said to."""
    life.stop()
    for command in (("disable", "copy_enable"), ("enable", "copy_refresh"), ("resync", "table_copy_refresh")):
        assert "(at the daemon's next start)" in life.says(*command)
    late = life.pgbridge("wait", "copy_refresh", "--timeout", "0")
    assert (late.code, "no daemon runs; run: pgbridge run" in late.err) == (1, True)
    publisher.execute("INSERT INTO copy_refresh.t VALUES (5, NULL); INSERT INTO table_copy_refresh.t VALUES (5, NULL)")
    life.start()
    wait_until(lambda: life.ids("copy_refresh", "t")[-1:] == [5] == life.ids("table_copy_refresh", "t")[-1:])
    assert life.state("copy_enable") in {"disabled", "stopped"}
    late = life.pgbridge("wait", "copy_enable")
    assert (late.code, "run: pgbridge enable copy_enable" in late.err) == (1, True)
    life.says("enable", "copy_enable")
    publisher.execute("INSERT INTO copy_enable.t VALUES (6, NULL)")
    assert "Delta has every transaction up to" in life.says("wait", "copy_enable", "--now", "--timeout", "40")
    assert life.ids("copy_enable", "t")[-1:] == [6]
    assert life.pgbridge("wait", "copy_enable", "--now", "--lsn", "0/1").code == 2

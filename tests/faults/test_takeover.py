"""Two machines with one configuration: the standby goes on when the owner is killed, stopped or cut off, under load.

The owner that comes back ends, and has changed nothing. `tests/bridge/recovery/test_standby.py` has each decision.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError, PublisherError, TakenOver
from tests.bridge.made_daemon import wait_until
from tests.faults import test_matrix as matrix
from tests.faults.lives import Lives, equal_or_refused
from tests.faults.load import SCHEMA, TABLES, Load
from tests.faults.proxy import Proxy
from tests.faults.soaked_daemon import Daemon
from tests.oracle.delta import differences
from tests.oracle.memory_tables import MemoryTables
from tests.oracle.native import DatabaseRows

if TYPE_CHECKING:
    from pathlib import Path

    from pgbridge.bridge.demo.server import EmbeddedPostgres
    from tests.faults.standby import ForkedServer

# --- where the owner was, with tables in memory -----------------------------------------------------------------------


def end_streams(server) -> None:
    """As a standby does with those of a machine that says nothing."""
    server.query(
        "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
    )


def recovered(life: Lives, server: ForkedServer) -> None:
    """Recover with the state of another machine, although the owner's other threads still stream."""
    end_s = time.monotonic() + 30
    while True:
        end_streams(server)
        try:
            life.recover()
        except PublisherError:
            assert time.monotonic() < end_s
        else:
            return


class Owner:
    """An owner whose thread stands still at a fault point, while another machine takes over."""

    def __init__(self, lives, server, scene_of, point) -> None:
        self.life = lives(**scene_of.options)
        self.other = lives(**scene_of.options)
        self.other.bridge.subscription, self.other.path = self.life.bridge.subscription, self.life.path
        self.server, self.scene, self.point = server, scene_of(self.life, server, point), point
        self.passed = 0

    def stands(self, here: str) -> None:
        """At the point the other machine takes over, and catches up."""
        self.passed += here == self.point
        if here != self.point or self.passed != self.scene.number:
            return
        recovered(self.other, self.server)
        self.other.live()


@pytest.mark.parametrize("point", [*faults.FAULT_POINTS, *faults.REFRESH_POINTS, *faults.SCHEMA_POINTS])
def test_an_owner_that_goes_on_changes_nothing(lives, private_server, point):
    """It stood still in the middle of something; it ends, and the other machine's tables are as they were."""
    if point in {*matrix.FIRST, "schema_changed", "column_filled"}:
        pytest.skip("nothing is recorded yet; or a point of Delta's tables")
    private_server.execute(matrix.SCHEMA + "CREATE PUBLICATION pub FOR TABLE a, b")
    owner = Owner(lives, private_server, matrix.SCENES[point], point)
    owner.scene.begin()
    owner.scene.go_on()
    error = owner.life.live(until=(lambda: False) if owner.scene.stays else None, on_passing=owner.stands)
    assert owner.passed >= owner.scene.number, "the point was not passed"
    assert isinstance(error, TakenOver), repr(error)
    owner.scene.end()
    private_server.execute(matrix.each(matrix.LAST))
    refused = point == "table_waits"
    assert equal_or_refused(owner.other, *owner.scene.tables, positions=0) == ("refused" if refused else "equal")


class Undone(matrix.Scene):
    """A transaction that a table does not take, as long as the owner is there."""

    def begin(self) -> None:
        """Have the table not take it."""
        super().begin()
        assert isinstance(self.life.spark, MemoryTables)
        self.life.spark.checks[str(self.life.path("b"))] = lambda row: row["id"] < 600

    def go_on(self) -> None:
        """Write it."""
        self.server.execute(matrix.each(matrix.CHANGES) + matrix.BAD)


@pytest.mark.parametrize("point", ["undo_begun", "table_restored"])
def test_an_owner_that_undoes_a_batch_leaves_what_came_since(lives, private_server, point):
    private_server.execute(matrix.SCHEMA + "CREATE PUBLICATION pub FOR TABLE a, b")
    owner = Owner(lives, private_server, Undone, point)
    owner.scene.begin()
    owner.scene.go_on()

    def passing(here):
        if here == point:
            owner.life.spark.checks.clear()
        owner.stands(here)

    error = owner.life.live(on_passing=passing)
    # the only table that had it was restored before
    assert isinstance(error, TakenOver if point == "undo_begun" else ApplyError), repr(error)
    assert equal_or_refused(owner.other, *matrix.TABLES) == "equal"


# --- two machines, under load -----------------------------------------------------------------------------------------

NAME = "shop"
WITHIN_S = 60.0
CONFIG = """
state_dir = "{folder}/state"
[spark]
master = "local[1]"
[subscription.shop]
connection = "host=127.0.0.1 port={port} dbname=postgres user=postgres password={password} connect_timeout=5"
publications = ["pub"]
warehouse = "{lake}"
streaming = "on"
workers.wal_receiver_timeout_s = 10
workers.retry_max_s = 5
batch.max_rows = 5_000
"""


class Machine(Daemon):
    """One of the two, whose way to the server leads over a port."""

    def __init__(self, folder: Path, server: EmbeddedPostgres, port: int) -> None:
        folder.mkdir()
        super().__init__(folder)
        text = CONFIG.format(folder=folder, port=port, password=server.password, lake=folder.parent / "lake")
        (folder / "pgbridge.toml").write_text(text)
        (folder / "pgbridge.toml").chmod(0o600)

    @property
    def said(self) -> str:
        """Its log."""
        return (self.folder / "daemon.log").read_text()

    def wait_for(self, words: str, within_s: float) -> float:
        """Wait until it has said something; returns how many seconds that took."""
        begun_s = time.monotonic()
        while words not in self.said:
            assert time.monotonic() < begun_s + within_s, f"{words!r} was not said:\n{self.said[-3000:]}"
            time.sleep(0.2)
        return time.monotonic() - begun_s

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to its JVM."""
        for process in [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("end", ["killed", "frozen", "partitioned"])
def test_a_standby_takes_over(spark, private_server, tmp_path, end, seed):
    server, chance = private_server.postgres, random.Random(seed)
    private_server.execute(SCHEMA)
    load = Load(server.conninfo, seed, pause_s=0.05)
    with Proxy(lambda: ("127.0.0.1", server.port)) as way:
        owner, standby = Machine(tmp_path / "a", server, way.port), Machine(tmp_path / "b", server, server.port)
        try:
            owner.start("--standby")
            owner.wait_for('"streaming"', 120)
            load.start()
            standby.start("--standby")
            standby.wait_for("another daemon streams", 120)
            time.sleep(5 + 5 * chance.random())
            if end == "killed":
                owner.signal(signal.SIGKILL)
            elif end == "frozen":
                owner.signal(signal.SIGSTOP)
            else:
                way.silent = True
            took_s = standby.wait_for('"streaming"', 120)
            standby.wait_for("batch applied", 120)
            time.sleep(5 * chance.random())
            if end == "frozen":
                owner.signal(signal.SIGCONT)
            elif end == "partitioned":
                way.heal()
            if end != "killed":
                owner.wait_for(f'subscription "{NAME}" was taken over', 60)
                wait_until(lambda: not owner.alive())
                assert owner.end(signal.SIGTERM) == 1
            time.sleep(5)
            load.stop()
            done = standby.command("wait", NAME, "--timeout", "120")
            assert done.returncode == 0, (done, standby.said[-3000:])
            assert standby.end(signal.SIGTERM) == 0
        finally:
            load.stop()
            for machine in (owner, standby):
                if machine.alive():
                    machine.signal(signal.SIGCONT)
                    machine.signal(signal.SIGKILL)
    rows = DatabaseRows(server.conninfo())
    for table in TABLES:
        path = str(tmp_path / "lake" / "public" / table)
        assert differences(spark, path, rows, f"public.{table}", rows.columns(f"public.{table}")) == []
    (tmp_path / "took").write_text(f"{took_s:.0f}")
    assert took_s < WITHIN_S

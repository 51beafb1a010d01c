"""Each fault point x each thing that happens to server, state or tables meanwhile: at the end equal, or refused.

Never may a life end without an error and a table differ. Only server, wire and Spark are in memory, so the whole matrix
takes seconds; `tests/faults/test_matrix.py` has it on real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import (
    ApplyError,
    BridgeError,
    PublisherError,
    PublisherWentBack,
    SlotAdvanced,
    TargetError,
)
from tests.simulation.bridged import NAME, Killed, MemoryBridge
from tests.simulation.server import UNFIT, MemoryServer

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = ("a", "b", "c")
POINTS = {
    "table_copied": 1,
    "batch_begun": 1,
    "table_begun": 2,
    "table_committed": 1,
    "batch_committed": 1,
    "before_confirm": 1,
    "": 1,
}
"""Where a life is killed, and at which passing; the empty one ends by itself."""

UNDO = ("undo_begun", "table_restored", "batch_undone")

UNREACHED = {
    "after_receive", "prepare_kept", "slot_created",
} | {*faults.UNDO_POINTS, *faults.REFRESH_POINTS, *faults.SCHEMA_POINTS, *faults.LARGE_POINTS}  # fmt: skip


@pytest.fixture
def bridge(tmp_path, monkeypatch):
    """Three tables, copied; what comes next is not received yet."""
    server = MemoryServer(TABLES)
    server.insert(a=(1, 2), b=(1,), c=(1,))
    made = MemoryBridge(server, tmp_path / "state", monkeypatch)
    assert made.live() is None
    assert made.differences() == {}
    return made


class Scenario:
    """What was saved before the transactions that a kill cuts short."""

    def __init__(self, bridge: MemoryBridge) -> None:
        self.bridge, self.server = bridge, bridge.server
        self.put_back = bridge.save_state()
        self.tables = {path: len(log) for path, log in bridge.lake.tables.items()}
        self.copy = bridge.server.copied()

    def promote_complete(self) -> None:
        """A standby that has everything."""
        self.server.become(self.server.copied())

    def promote_without_tail(self) -> None:
        """A standby that lacks what was written since the copy; then it writes other transactions, beyond that."""
        self.server.become(self.copy)
        self.server.insert(a=(101, 102), b=(101,))
        self.server.insert(c=(103,))
        self.server.write_wal(0x2000)
        self.server.insert(a=(104,), b=(104,), c=(104,))

    def put_back_state(self) -> None:
        """The state directory of before."""
        self.put_back()

    def put_back_state_and_promote_without_tail(self) -> None:
        """Both: only the tables know what they have."""
        self.put_back()
        self.promote_without_tail()

    def put_back_tables(self) -> None:
        """The tables of before."""
        for path, length in self.tables.items():
            del self.bridge.lake.tables[path][length:]

    def put_back_one_table(self) -> None:
        """One of them."""
        path = self.bridge.path("a")
        del self.bridge.lake.tables[path][self.tables[path] :]

    def restore_by_hand(self) -> None:
        """RESTORE TABLE to the version before."""
        path = self.bridge.path("a")
        self.bridge.lake.restore(path, self.tables[path] - 1)

    def advance_slot(self) -> None:
        """pg_replication_slot_advance to the end."""
        self.server.confirm(NAME, self.server.end_lsn)

    def advance_slot_in_the_window(self) -> None:
        """The same between the check and START_REPLICATION."""
        self._once(self.advance_slot)

    def replace_server_in_the_window(self) -> None:
        """The standby that lacks the tail takes the server's place there."""
        self._once(self.promote_without_tail)

    def look_at_a_standby_first(self) -> None:
        """One life meets a standby in recovery; the next one the primary that went back."""
        standby = self.server.copied()
        self.server.become(standby, promoted=False)
        self.bridge.live()
        self.promote_without_tail()

    def put_back_server(self) -> None:
        """The server of before, on the same timeline: it has less WAL than is durable here."""
        self.server.become(self.copy, promoted=False)
        self.server.in_recovery = False

    def nothing(self) -> None:
        """Only the kill."""

    def _once(self, action: Callable[[], None]) -> None:
        def act() -> None:
            self.bridge.window = lambda: None
            action()

        self.bridge.window = act


EVENTS = tuple(name for name in vars(Scenario) if not name.startswith("_") and name != "put_back")


def refused_in_words(bridge: MemoryBridge, error: BaseException | None) -> bool:
    """Whether a life ended with an error that says what is missing and what to do."""
    if error is None:
        return False
    assert isinstance(error, BridgeError), error
    assert isinstance(error, PublisherWentBack | SlotAdvanced | TargetError), error
    assert error.hint
    assert "durable" in error.message or "lost" in error.message
    del bridge
    return True


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("point", POINTS)
def test_equal_or_refused(bridge, point, event):
    """At the end of each life; and equal once the table, or the subscription, is copied afresh."""
    server = bridge.server
    if point == "table_copied":  # one table is copied; the others are when the server has more
        bridge.start_afresh()
        assert isinstance(bridge.live(point), Killed)
    scenario = Scenario(bridge)
    for number in range(11, 15):
        server.insert(a=(number,), b=(number,), **({"c": (number,)} if number % 2 else {}))
    server.write_wal(0x1000)
    killed = bridge.live(point, POINTS[point]) if point else bridge.live()
    assert isinstance(killed, Killed) == bool(point)
    getattr(scenario, event)()
    server.insert(a=(21,), b=(21,))
    error = bridge.live()
    if not refused_in_words(bridge, error):
        assert bridge.differences() == {}, bridge.differences()
        server.insert(a=(31,), c=(31,))
        assert bridge.live() is None
        assert bridge.differences() == {}
        return
    bridge.start_afresh()
    server.insert(b=(41,))
    assert bridge.live() is None
    assert bridge.differences() == {}


def test_a_batch_that_the_server_lost_is_taken_back_and_not_copied_over(bridge):
    """Only its tables are restored: the others have no commit more."""
    server, lake = bridge.server, bridge.lake
    standby = server.copied()
    server.insert(a=(11,), b=(11,))
    assert isinstance(bridge.live("table_committed"), Killed)
    lengths = {path: len(log) for path, log in lake.tables.items()}
    server.become(standby)
    assert bridge.live() is None
    assert bridge.differences() == {}
    operations = [version.info["operation"] for log in lake.tables.values() for version in log]
    assert operations.count("RESTORE") in {1, 2}  # the other table's commit ends, too, before the process
    assert len(lake.tables[bridge.path("c")]) == lengths[bridge.path("c")]


@pytest.mark.parametrize("point", ["table_committed", "before_confirm"])
def test_a_standby_that_lags_is_waited_for(bridge, point):
    """It will have what is durable here: nothing is taken back or copied afresh for that."""
    server, lake = bridge.server, bridge.lake
    standby = server.copied()
    server.insert(a=(11,), b=(11,))
    primary = server.copied()
    assert isinstance(bridge.live(point), Killed)
    server.become(standby, promoted=False)
    error = bridge.live()
    assert isinstance(error, PublisherError)
    assert not isinstance(error, PublisherWentBack)
    assert error.retry
    server.become(primary, promoted=False)
    assert bridge.live() is None
    assert bridge.differences() == {}
    assert "RESTORE" not in {version.info["operation"] for log in lake.tables.values() for version in log}


def test_a_skip_is_not_of_another_transaction_at_the_same_lsn(bridge):
    """The server that lost the transaction to skip writes another one in its place."""
    server = bridge.server
    standby = server.copied()
    bad = server.insert(a=(UNFIT,))
    assert isinstance(bridge.live(), ApplyError)
    bridge.skip(bad.commit_lsn)
    server.become(standby)
    assert server.insert(a=(12,)).commit_lsn == bad.commit_lsn
    assert bridge.live() is None
    assert bridge.differences() == {}


def test_a_state_of_before_an_undo_does_not_have_the_batch_left_out(bridge):
    """Delta keeps the batch's version through the RESTORE, and the state of before would commit under it again."""
    server = bridge.server
    put_back = bridge.save_state()
    server.insert(a=(11, 12))
    assert isinstance(bridge.live("batch_committed"), Killed)
    assert isinstance(bridge.live("batch_undone"), Killed)
    put_back()
    assert bridge.live() is None
    assert bridge.differences() == {}


def test_a_copy_at_a_lower_lsn_replaces_one_at_a_higher(bridge):
    """After a promotion the new copy's LSN is lower, and Delta must not leave it out for that."""
    server = bridge.server
    bridge.start_afresh()
    assert isinstance(bridge.live("slot_created"), Killed)
    server.drop_slots()
    standby = server.copied()
    server.insert(a=(11,), b=(11,))
    server.write_wal(0x5000)
    assert bridge.live() is None
    server.become(standby)
    server.insert(a=(101,))
    assert isinstance(bridge.live(), PublisherWentBack)
    bridge.start_afresh()
    assert bridge.live() is None
    assert bridge.differences() == {}


def test_a_table_that_is_restored_to_what_the_server_lost_at_the_same_lsn(bridge):
    """Its log says another timeline at the position that is known: the table is copied afresh."""
    server, path = bridge.server, bridge.path("b")
    standby = server.copied()
    server.insert(b=(11,))
    bridge.start_afresh()
    assert bridge.live() is None
    lost = len(bridge.lake.tables[path]) - 1
    server.become(standby)
    server.insert(b=(12,))
    assert isinstance(bridge.live(), PublisherWentBack)
    bridge.start_afresh()
    assert bridge.live() is None
    bridge.lake.restore(path, lost)
    assert bridge.lake.rows(path) == [1, 11]
    assert bridge.live() is None
    assert bridge.differences() == {}


def test_what_a_standby_has_sent_since_its_promotion_is_on_its_new_timeline(bridge):
    """Then a server that left the former timeline later has other transactions in that place."""
    server = bridge.server
    server.become(server.copied(), promoted=False)
    server.insert(a=(11,))
    other = server.copied()

    def promote() -> None:
        server.promote()
        server.insert(a=(12,))

    bridge.streaming = promote
    assert bridge.live() is None
    assert bridge.differences() == {}
    other.insert(a=(101,), b=(101,))
    other.write_wal(0x1000)
    for _ in range(2):  # the second one gives its timeline the number 3
        server.become(other)
        server.insert(c=(102,))
        assert isinstance(bridge.live(), PublisherWentBack)
        other.promote()


@pytest.mark.parametrize("passing", [1, 2, 3, 4])
@pytest.mark.parametrize("point", ["batch_begun", "table_begun", "table_committed", "batch_committed", *UNDO])
def test_a_transaction_that_cannot_be_applied_is_skipped_as_a_whole(bridge, point, passing):
    """Whatever tables had of it when an attempt was killed: after the skip, none has it, and all have the others."""
    server = bridge.server
    server.insert(a=(11,), b=(11,))
    bad = server.insert(a=(12,), b=(UNFIT,), c=(12,))
    server.insert(a=(13,), c=(13,))
    bridge.batch_transactions = 3
    bridge.live(point, passing)
    error = bridge.live()
    assert isinstance(error, ApplyError)
    assert error.context.finish_lsn == bad.commit_lsn
    bridge.skip(bad.commit_lsn)
    assert bridge.live() is None
    server.transactions.remove(bad)
    assert bridge.differences() == {}


def test_every_point_is_known():
    """A new fault point is in the matrix, or it is said why not."""
    of_a_life = {*faults.FAULT_POINTS} - UNREACHED
    assert of_a_life == {*POINTS} - {""}


def test_a_kill_at_each_passing_of_each_point_in_turn(bridge):
    """Life after life, with other divisions each time; nothing is undone by RESTORE unless a flush was begun."""
    server, number = bridge.server, 100
    for size in (1, 2, 3):
        bridge.batch_transactions = size
        for point in POINTS:
            for passing in (1, 2, 3):
                for _ in range(4):
                    number += 1
                    server.insert(a=(number,), b=(number,), c=(number,))
                bridge.live(point, passing)
    assert bridge.live() is None
    assert bridge.differences() == {}
    assert bridge.subscription.name == NAME

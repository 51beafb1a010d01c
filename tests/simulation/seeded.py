"""Lives of a subscription from a seed: what is written, killed, promoted, put back and altered, in any order.

Everything that happens is a list of steps, made from a seed by one generator; a number in a step chooses among what is
possible then. So a list without some of its steps is a simulation, too, and a failure is shortened to the steps that it
takes. No clock, thread or other source of chance has a part: the same list always ends the same.

After each life that ends without an error the tables equal the server's. An error is one of the documented ones, and
what an operator then does, by its hint, helps.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from py4j.protocol import Py4JError

from pgbridge.bridge.runtime.errors import (
    ApplyError,
    BridgeError,
    OutcomeUnknown,
    PublisherError,
    PublisherWentBack,
    StateError,
    TableAhead,
    TakenOver,
    TargetBusy,
    TargetError,
)
from pgbridge.protocol.lsn import INVALID, Lsn
from tests.simulation.bridged import ANY, Killed, MemoryBridge
from tests.simulation.server import UNFIT, MemoryServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.simulation.server import WalTransaction

TABLES: Final = ("a", "b", "c")
POINTS: Final = (
    "slot_created", "table_copied", "prepare_kept", "batch_begun", "table_begun", "table_committed", "batch_committed",
    "before_confirm", "undo_begun", "table_restored", "batch_undone",
    "refresh_taken", "sync_caught_up", "handed_over", "sync_slot_dropped",
)  # fmt: skip
_WAIT: Final = (PublisherError, OutcomeUnknown, StateError, TargetBusy)
_MOST_LIVES: Final = 6
"""A subscription is well after so many, if nothing more happens to it."""


class Step(NamedTuple):
    """Something that happens; `number` chooses what exactly."""

    name: str
    number: int = 0


class Violation(AssertionError):
    """An end of a life that may not be."""


class Simulation:
    """One subscription and what happens to it.

    Args:
        folder: For the state; it is emptied.
        patch: Replaces what needs Spark or a server.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.server = MemoryServer(TABLES)
        self.server.insert(a=(1, 2), b=(1,), c=(1,))
        self.bridge = MemoryBridge(self.server, folder / "state", patch)
        self._number = 10
        self._standby = self._primary = self.server.copied()
        self._timelines = 1
        self._is_alive = False
        self._put_back: Callable[[], None] | None = None
        self._lengths: dict[str, int] = {}
        self._unfit: list[WalTransaction] = []
        self._is_backup_older = False  # than the standby
        self._is_touched = False  # by hand: tables, or the slot, since they were equal
        self._is_restored = False  # a table, during this life
        self._is_gone_back = False  # the server, during this life

    # --- steps --------------------------------------------------------------------------------------------------------

    def insert(self, number: int) -> None:
        """A transaction in some of the tables."""
        self.server.commit(self._rows(number))

    def insert_streamed(self, number: int) -> None:
        """One that is sent while it is in progress, with a subtransaction that is rolled back."""
        self.server.commit(self._rows(number), is_streamed=True)

    def prepare(self, number: int) -> None:
        """PREPARE TRANSACTION; it may have been streamed, and may be one that a table does not hold."""
        rows = self._rows(number)
        if number // 14 % 8 == 0:
            rows["b"] = (UNFIT,)
        self.server.prepare(rows, is_streamed=bool(number // 7 % 2))

    def end_prepared(self, number: int) -> None:
        """COMMIT PREPARED, or sometimes ROLLBACK PREPARED."""
        if prepared := self.server.prepared:
            ended = self.server.end_prepared(prepared[number // 4 % len(prepared)], commits=number % 4 > 0)
            if (UNFIT,) in ended.rows.values():
                self._unfit.append(ended)

    def _rows(self, number: int) -> dict[str, tuple[int, ...]]:
        """The next number, in some of the tables."""
        self._number += 1
        chosen = [table for i, table in enumerate(TABLES) if (number % 7 + 1) >> i & 1]
        return dict.fromkeys(chosen, (self._number,))

    def insert_unfit(self, number: int) -> None:
        """One that a table does not hold."""
        rows: dict[str, tuple[int, ...]] = {"a": (self._number + 1,), "b": (UNFIT,)}
        self._number += 1
        self._unfit.append(self.server.insert(**(rows if number % 2 else {"b": (UNFIT,)})))

    def write_wal(self, number: int) -> None:
        """WAL without changes."""
        self.server.write_wal(0x100 << number % 8)

    def live(self, number: int) -> None:
        """A life that ends by itself."""
        self._end(self._live(), number)

    def kill(self, number: int) -> None:
        """A life that is killed, if it comes there."""
        self._end(self._live(POINTS[number % len(POINTS)], 1 + number // len(POINTS) % 3, number), number)

    def kill_anywhere(self, number: int) -> None:
        """A life that is killed where it passes a point for the n-th time, whichever it is."""
        self._end(self._live(ANY, 1 + number % 64, number), number)

    def cut_power(self, number: int) -> None:
        """A life that ends with the power, if it comes there; then with it."""
        error = self._live(POINTS[number % len(POINTS)], 1 + number // len(POINTS) % 3, chance=number)
        self.bridge.cut_power()
        self._end(error, number)

    def lose_answer(self, number: int) -> None:
        """Spark does not answer one of the next commits; it may make it later."""
        lake = self.bridge.lake
        lake.lost_in, lake.is_late = 1 + number % 6, bool(number // 6 % 2)
        self.bridge.arrives_in = lake.lost_in + number // 12 % 20

    def double_commit(self, number: int) -> None:
        """One of the next commits is made twice."""
        self.bridge.lake.doubled_in = 1 + number % 6

    def fill_disk(self, number: int) -> None:
        """The disk is full for a moment."""
        self.bridge.full_in = 1 + number % 12

    def fail_flush(self, number: int) -> None:
        """A flush of a batch, or of its undo, fails."""
        self.bridge.fails_in = 1 + number % 3

    def fail_copy_flush(self, number: int) -> None:
        """A flush of a copy fails."""
        self.bridge.copy_fails_in = 1 + number % 3

    def batch_size(self, number: int) -> None:
        """Batches of another size."""
        self.bridge.batch_transactions = 1 + number % 4

    def copy_server(self, number: int) -> None:
        """A standby that has what the server has now."""
        del number
        self._is_backup_older = True
        self._standby = self.server.copied()

    def promote(self, number: int) -> None:
        """A standby that has everything takes the server's place; or the server is promoted where it stands."""
        if number % 2:
            self._promote(self.server)
        else:
            self._promote_here()

    def promote_without_tail(self, number: int) -> None:
        """The standby takes the server's place, and other transactions that of the lost ones."""
        self._promote(self._standby)
        if number % 2:
            self.insert(number)
        if number % 3:
            self.write_wal(number)

    def stand_by(self, number: int) -> None:
        """The standby is asked in the server's place, in recovery, and the server is back then."""
        self._primary = self.server.copied()
        self.server.become(self._standby, promoted=False)
        self.live(number)
        self.server.become(self._primary, promoted=False)
        self.server.in_recovery = False

    def put_back_server(self, number: int) -> None:
        """The server of before, on the same timeline: it is met before it has written as much again.

        Afterwards nothing could tell it from the one that it was: nor whether a backup that is younger is of that one.
        """
        if not self._is_backup_older:
            self._put_back, self._lengths = None, {}
        self.server.become(self._standby, promoted=False)
        self.server.in_recovery = False
        self._is_gone_back = True
        if not self._is_alive:
            self.live(number)

    def save_state(self, number: int) -> None:
        """A backup of the state directory, and of the tables."""
        del number
        if self.bridge.folder.exists():
            self._is_backup_older = False
            self._put_back = self.bridge.save_state()
            self._lengths = {path: len(log) for path, log in self.bridge.lake.tables.items()}

    def lose_state(self, number: int) -> None:
        """The state directory is lost. A recovery may be cut short."""
        self.bridge.lose_state()
        if number % 2:
            self._recovered(("claimed", "fenced")[number // 2 % 2])

    def put_back_state(self, number: int) -> None:
        """The state directory of before."""
        del number
        if self._put_back is not None:
            self._put_back()

    def put_back_tables(self, number: int) -> None:
        """Tables of before, some or all; nothing of Spark is alive then."""
        self._is_touched = True
        self.bridge.lake.forget()
        for i, (path, length) in enumerate(sorted(self._lengths.items())):
            if (number % 7 + 1) >> i & 1 and path in self.bridge.lake.tables:
                self.bridge.lake.shorten(path, length)

    def restore_by_hand(self, number: int) -> None:
        """RESTORE TABLE to an earlier version: of the table's last copy, and of what was not taken back since.

        What the log has of before looks as if it were whole at its position, and is believed. A version cannot be
        restored that needs an entry which is lost.
        """
        path = self.bridge.path(TABLES[number % 3])
        infos = [version.info for version in self.bridge.lake.tables.get(path, [])]
        version = len(infos) - 2 - number // 3 % 3
        copies = [i for i, info in enumerate(infos) if '/copy"' in info.get("userMetadata", "")]
        undone = any(info.get("operation") == "RESTORE" for info in infos[version + 1 :])
        checkpoints = (v for v in self.bridge.lake.checkpoints.get(path, ()) if v <= version and infos[v])
        since = max(checkpoints, default=-1)
        if copies and version >= copies[-1] and not undone and all(infos[since + 1 : version + 1]):
            self.bridge.lake.restore(path, version)

    def restore_meanwhile(self, number: int) -> None:
        """The same at a moment of a life: it is noticed at the table's next commit, or when the next life begins."""

        def restore() -> None:
            self._is_restored = True
            self.restore_by_hand(number // 16)

        self.bridge.happens_in, self.bridge.meanwhile = 1 + number % 16, restore

    def insert_meanwhile(self, number: int) -> None:
        """Transactions at moments of a life, one to four; not on a server that is in recovery, or was put back."""
        left = number // 16 % 4

        def insert() -> None:
            nonlocal left
            if not (self.server.in_recovery or self._is_gone_back):
                self.insert(number // 64 + left)
            if left:
                self.bridge.happens_in = 1 + (number // 64 + left) % 8
                left -= 1

        self.bridge.happens_in, self.bridge.meanwhile = 1 + number % 16, insert

    def optimize(self, number: int) -> None:
        """Another writer's commit that changes no row."""
        path = self.bridge.path(TABLES[number % 3])
        if path in self.bridge.lake.tables:
            self.bridge.lake.commit(path, lambda rows: rows, operation="OPTIMIZE")

    def advance_slot(self, number: int) -> None:
        """pg_replication_slot_advance, to the end: of the subscription's slot, or its tablesync worker's."""
        slots = sorted(self.server.slots)
        if slots:
            self._is_touched = True
            self.server.confirm(slots[number % len(slots)], self.server.end_lsn)

    def in_the_window(self, number: int) -> None:
        """What happens between the check of the next life and START_REPLICATION, or just after that."""
        action = (self.advance_slot, self.promote_without_tail, self.promote, self.put_back_server)[number % 4]

        def act() -> None:
            self.bridge.window = lambda: None
            action(number // 4)

        def promote() -> None:
            self.bridge.streaming = lambda: None
            self._promote_here()

        if number % 3:
            self.bridge.window = act
        else:
            self.bridge.streaming = promote

    def resync_table(self, number: int) -> None:
        """`pgbridge refresh --resync`: a tablesync worker copies the table beside the stream, under load or not."""
        if self.bridge.folder.exists():
            self.bridge.resync(TABLES[number % 3])
            if number // 3 % 2:
                self.insert_meanwhile(number // 6)

    def start_afresh(self, number: int) -> None:
        """`pgbridge resync`, without a reason."""
        del number
        if self.bridge.folder.exists():
            self.bridge.start_afresh()

    def _promote(self, server: MemoryServer) -> None:
        """Have a server, or a copy of it, promoted and in this one's place: on a timeline that no other one has."""
        self.server.become(server.copied())
        self._timelines += 1
        self.server.timeline = self._timelines

    def _promote_here(self) -> None:
        self.server.promote()
        self._timelines += 1
        self.server.timeline, self.server.in_recovery = self._timelines, False

    # --- ends of lives ------------------------------------------------------------------------------------------------

    def _live(self, point: str = "", passing: int = 1, chance: int = 0) -> BaseException | None:
        self._is_alive, self._is_restored = True, False
        self.bridge.chance.seed(chance)
        try:
            return self.bridge.live(point, passing)
        finally:
            self._is_alive = self._is_gone_back = False

    def finish(self) -> None:
        """Nothing more happens: in some lives all is applied, or what an operator does by the hints helps.

        Raises:
            Violation: It is not so.
        """
        self.bridge.window = self.bridge.streaming = lambda: None
        self.bridge.full_in = self.bridge.fails_in = self.bridge.copy_fails_in = self.bridge.lake.lost_in = 0
        self.bridge.happens_in = 0
        self.server.in_recovery = False
        for _ in range(_MOST_LIVES + 2 * len(self._unfit)):
            error = self._live()
            if error is None:
                self._compare()
                self.bridge.lake.arrive()
                self._compare()  # also with what comes late
                return
            self._end(error, 0)
        raise Violation(f"it is not well after {_MOST_LIVES} lives: {error!r}")

    def _end(self, error: BaseException | None, number: int) -> None:
        if error is None:
            if not self._is_restored:
                self._compare()
        elif isinstance(error, ApplyError) and error.context.finish_lsn in {t.commit_lsn for t in self._unfit}:
            finish_lsn = error.context.finish_lsn
            skipping = self.bridge.skip(finish_lsn)
            # what tables had of it already is taken back; a kill, or a full disk, may come between
            error = self._live(POINTS[number % len(POINTS)])
            for _ in range(_MOST_LIVES):
                if not _passes(error):
                    break
                error = self._live()
            self._take_out(finish_lsn, skipping)
            self._end(error, number)
        elif _passes(error):
            pass
        elif isinstance(error, StateError) and (isinstance(error, TakenOver) or "recover" in (error.hint or "")):
            self._recover()
        elif isinstance(error, PublisherError) and "already exists" in error.message:  # of before, on another server
            self.server.drop_slots()
        elif isinstance(error, PublisherError | TargetError):
            if not error.hint or not ("durable" in error.message or "lost" in error.message):
                raise Violation(f"an error that does not say what is lost, or what to do: {error!r}")
            self.bridge.start_afresh()
        else:
            raise Violation(f"no documented error: {error!r}")

    def _recover(self) -> None:
        """Run the command until it is done, as its errors say; what they say is lost is copied again."""
        for _ in range(_MOST_LIVES):
            error = self._recovered()
            if error is None:
                return
            if not isinstance(error, Py4JError | BridgeError):
                raise Violation(f"no documented error of a recovery: {error!r}")
            if isinstance(error, PublisherWentBack):  # as its hint says
                self.server.drop_slots()
            elif isinstance(error, PublisherError) and error.retry:  # a standby: the next life asks again
                return
        raise Violation(f"it is not recovered: {error!r}")

    def _recovered(self, point: str = "") -> BaseException | None:
        """Who has changed tables or the slot by hand, and has nothing any more that tells it, copies all afresh."""
        if self._is_touched:
            self.server.drop_slots()
        return self.bridge.recover(point)

    def _compare(self) -> None:
        if (differences := self.bridge.differences()) != {}:
            raise Violation(f"without an error, tables differ (published, Delta): {differences}")
        self._is_touched = False

    def _take_out(self, finish_lsn: int, skipping: set[str]) -> None:
        """What was skipped is in none of these tables, unless it was copied since; nor in a copy afresh."""
        lacking = {table for table in skipping if self._copied_lsn(table) <= finish_lsn}
        for server in (self.server, self._standby, self._primary):
            for at, t in enumerate(server.transactions):
                if (t.commit_lsn, t.rows.get("b")) == (finish_lsn, (UNFIT,)):
                    rows = {table: numbers for table, numbers in t.rows.items() if table not in lacking}
                    server.transactions[at] = replace(t, rows=rows)

    def _copied_lsn(self, table: str) -> int:
        """Up to where a table has its transactions by its last copy, as its log says."""
        log = self.bridge.lake.tables.get(self.bridge.path(table), [])
        marks = (json.loads(version.info.get("userMetadata") or "{}").get("pgbridge", {}) for version in log)
        copies = [mark for mark in marks if mark.get("origin", "").endswith("/copy") and not mark.get("given_up")]
        return Lsn.parse(copies[-1]["end_lsn"]) if copies else INVALID


def _passes(error: BaseException | None) -> bool:
    """Whether all it takes is another life: it was killed, Spark did not answer, a table is copied afresh, a wait."""
    return isinstance(error, Killed | Py4JError | TableAhead) or (isinstance(error, _WAIT) and error.retry)


WEIGHTS: Final = {
    "insert": 12, "insert_streamed": 2, "insert_unfit": 1, "prepare": 3, "end_prepared": 4,
    "write_wal": 2, "live": 6, "kill": 6, "kill_anywhere": 4, "batch_size": 2, "copy_server": 3,
    "promote": 1, "promote_without_tail": 2, "stand_by": 1, "put_back_server": 1, "save_state": 3, "put_back_state": 1,
    "put_back_tables": 2, "restore_by_hand": 1, "restore_meanwhile": 2, "insert_meanwhile": 6,
    "optimize": 2, "advance_slot": 1, "in_the_window": 2, "start_afresh": 1, "resync_table": 5,
    "cut_power": 3, "lose_answer": 3, "double_commit": 1, "fill_disk": 2, "fail_flush": 1,
    "fail_copy_flush": 1, "lose_state": 2,
}  # fmt: skip
"""The steps, and how often each comes."""


def steps_of(seed: int) -> list[Step]:
    """The steps of a seed."""
    random = Random(seed)
    names = random.choices([*WEIGHTS], [*WEIGHTS.values()], k=random.randrange(5, 40))
    return [Step(name, random.randrange(1 << 16)) for name in names]


def violation(
    steps: Sequence[Step], folder: Path, plant: Callable[[pytest.MonkeyPatch], None] = lambda _: None
) -> str | None:
    """What is violated when these steps happen; None if nothing is.

    Args:
        plant: Plants a fault in what decides.
    """
    with pytest.MonkeyPatch.context() as patch:
        simulation = Simulation(folder, patch)
        plant(patch)
        try:
            for step in steps:
                getattr(simulation, step.name)(step.number)
            simulation.finish()
        except Violation as found:
            return str(found)
    return None


def shortened(steps: Sequence[Step], is_violated: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """Fewer steps that still violate something; without any one of them nothing is violated."""
    left, size = list(steps), len(steps) // 2
    while size:
        at = 0
        while at < len(left):
            fewer = [*left[:at], *left[at + size :]]
            if is_violated(fewer):
                left = fewer
            else:
                at += size
        size //= 2
    return left

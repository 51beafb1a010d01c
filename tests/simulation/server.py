"""A publisher in memory: a history of transactions on timelines, and logical slots, with two_phase or without."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from pgbridge.bridge.receive.slot import Snapshot
from pgbridge.bridge.receive.slot_status import SlotStatus
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import INVALID, Lsn

UNFIT = 1000
"""No table holds so large a number."""

SLOT_NAME = "sub"
"""The subscription's; its tablesync worker has another one."""

_RECORD_BYTES = 0x20


@dataclass(frozen=True, slots=True)
class WalTransaction:
    """The end of a transaction, and the numbers that it inserts, by table.

    Attributes:
        kind: How it ends. One that was prepared has two ends, with the same rows.
        gid: Of a prepared one.
        is_streamed: It was sent while it was in progress.
        prepare_end_lsn: Where the PREPARE ended that this is the end of.
    """

    commit_lsn: Lsn
    end_lsn: Lsn
    rows: dict[str, tuple[int, ...]]
    kind: Literal["commit", "prepare", "commit prepared", "rollback prepared"] = "commit"
    xid: int = 0
    gid: str = ""
    is_streamed: bool = False
    prepare_end_lsn: Lsn = INVALID


@dataclass
class MemorySlot:
    """A logical slot."""

    confirmed_lsn: Lsn
    two_phase: bool


@dataclass
class MemoryServer:
    """A server that writes transactions, is copied, promoted, and replaced by its copy.

    Attributes:
        tables: The published tables.
        timeline: The timeline that it writes.
        in_recovery: Whether it is a standby.
        slots: The slots, by name.
        snapshots: The rows of each snapshot that was exported, by its name and table.
        started_us: When it was started.
    """

    tables: tuple[str, ...]
    timeline: int = 1
    in_recovery: bool = False
    slots: dict[str, MemorySlot] = field(default_factory=dict)
    snapshots: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    started_us_: int = 1
    next_xid: int = 700
    end_lsn: Lsn = field(default_factory=lambda: Lsn(0x1000))
    transactions: list[WalTransaction] = field(default_factory=list)
    left: dict[int, Lsn] = field(default_factory=dict)

    def insert(self, **rows: tuple[int, ...]) -> WalTransaction:
        """Commit a transaction."""
        return self.commit(rows)

    def commit(self, rows: dict[str, tuple[int, ...]], *, is_streamed: bool = False) -> WalTransaction:
        """Commit one that may have been streamed."""
        self.next_xid += 2  # it may have a subtransaction
        return self._end("commit", rows, self.next_xid, is_streamed=is_streamed)

    def prepare(self, rows: dict[str, tuple[int, ...]], *, is_streamed: bool = False) -> WalTransaction:
        """PREPARE TRANSACTION: its identifier may be that of an ended one, or of another server's that lacks it."""
        self.next_xid += 2
        identifiers = (f"gid {xid % 16}" for xid in itertools.count(self.next_xid))
        pending = {transaction.gid for transaction in self.prepared}
        gid = next(each for each in identifiers if each not in pending)
        return self._end("prepare", rows, self.next_xid, gid, is_streamed=is_streamed)

    def end_prepared(self, prepared: WalTransaction, *, commits: bool) -> WalTransaction:
        """COMMIT PREPARED, or ROLLBACK PREPARED."""
        kind: Literal["commit prepared", "rollback prepared"] = "commit prepared" if commits else "rollback prepared"
        ended = replace(self._end(kind, prepared.rows, prepared.xid, prepared.gid), prepare_end_lsn=prepared.end_lsn)
        self.transactions[-1] = ended
        return ended

    @property
    def prepared(self) -> list[WalTransaction]:
        """What is prepared, and has not ended."""
        ended = {t.xid for t in self.transactions if t.kind.endswith(" prepared")}
        return [t for t in self.transactions if t.kind == "prepare" and t.xid not in ended]

    def await_prepared(self) -> None:
        """End what is prepared, as a slot that is made waits for it: one that no table holds is rolled back.

        On a standby it waits for the primary.
        """
        if self.in_recovery and self.prepared:
            raise PublisherError("a transaction is prepared", retry=True)
        for prepared in self.prepared:
            self.end_prepared(prepared, commits=max(max(numbers) for numbers in prepared.rows.values()) < UNFIT)

    def _end(
        self,
        kind: Literal["commit", "prepare", "commit prepared", "rollback prepared"],
        rows: dict[str, tuple[int, ...]],
        xid: int,
        gid: str = "",
        *,
        is_streamed: bool = False,
    ) -> WalTransaction:
        commit_lsn = Lsn(self.end_lsn + _RECORD_BYTES)
        self.end_lsn = Lsn(commit_lsn + _RECORD_BYTES)
        transaction = WalTransaction(commit_lsn, self.end_lsn, rows, kind, xid, gid, is_streamed)
        self.transactions.append(transaction)
        return transaction

    def write_wal(self, size_bytes: int) -> None:
        """Write WAL that has nothing for the subscription."""
        self.end_lsn = Lsn(self.end_lsn + size_bytes)

    def rows(self, table: str) -> list[int]:
        """A table's rows, sorted."""
        committed = [t for t in self.transactions if t.kind in {"commit", "commit prepared"}]
        return sorted(number for t in committed for number in t.rows.get(table, ()))

    def copied(self) -> MemoryServer:
        """A cold copy of the data directory."""
        return copy.deepcopy(self)

    def become(self, other: MemoryServer, *, promoted: bool = True) -> None:
        """Have another server at this one's place: a standby in recovery, or promoted."""
        vars(self).update(vars(other.copied()))
        self.started_us_ += 1
        self.in_recovery = not promoted
        if promoted:
            self.promote()

    def promote(self) -> None:
        """Begin another timeline, without a restart."""
        self.left[self.timeline] = self.end_lsn
        self.timeline += 1

    # --- what pgbridge asks a publisher and a walsender --------------------------------------------------------------

    database = "shop"
    version = 180000
    connection = None

    def history(self) -> ServerHistory:
        """IDENTIFY_SYSTEM and TIMELINE_HISTORY."""
        return ServerHistory("7", self.timeline, self.end_lsn, self.in_recovery, dict(self.left), self.started_us_)

    def setting(self, name: str) -> str:
        """None of its settings matters."""
        del name
        return ""

    def started_us(self) -> int:
        """When it was started."""
        return self.started_us_

    def slot(self, slot_name: str) -> SlotStatus | None:
        """A slot's row."""
        slot = self.slots.get(slot_name)
        if slot is None:
            return None
        return SlotStatus("pgoutput", "logical", self.database, False, None, slot.confirmed_lsn, "reserved")

    def create_slot(self, slot_name: str, *, temporary: bool = False, two_phase: bool = False, **_: object) -> Snapshot:
        """CREATE_REPLICATION_SLOT, which waits for what is prepared, and exports a snapshot."""
        self.await_prepared()
        if not temporary:
            assert slot_name not in self.slots, slot_name
            self.slots[slot_name] = MemorySlot(self.end_lsn, two_phase)
        self.snapshots[slot_name] = {table: self.rows(table) for table in self.tables}
        return Snapshot(slot_name, self.end_lsn)

    def drop_slot(self, slot_name: str) -> None:
        """DROP_REPLICATION_SLOT."""
        del self.slots[slot_name]

    def drop_slots(self) -> None:
        """What `pgbridge resync`, and others that begin afresh, do first."""
        self.slots.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""

    def stream(self, slot_name: str, start_lsn: Lsn) -> list[WalTransaction]:
        """START_REPLICATION: from the slot's position on, if that is further; silently, as PostgreSQL.

        What was prepared before comes without its rows with two_phase, which slots have from their beginning. Without
        it what was prepared comes as a whole with its COMMIT PREPARED.
        """
        slot = self.slots.get(slot_name)
        if slot is None:
            raise PublisherError(f'replication slot "{slot_name}" does not exist', retry=True)
        begin = max(start_lsn, slot.confirmed_lsn)
        there = [t for t in self.transactions if t.commit_lsn >= begin]
        if slot.two_phase:
            return there
        return [replace(t, kind="commit") for t in there if t.kind in {"commit", "commit prepared"}]

    def confirm(self, slot_name: str, lsn: Lsn) -> None:
        """A status update."""
        self.slots[slot_name].confirmed_lsn = lsn

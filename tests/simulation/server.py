"""A publisher in memory: a history of transactions on timelines, and one logical slot."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Self

from pgbridge.bridge.receive.slot_status import SlotStatus
from pgbridge.bridge.track.position import ServerHistory
from pgbridge.protocol.lsn import Lsn

_RECORD_BYTES = 0x20


@dataclass(frozen=True, slots=True)
class WalTransaction:
    """A committed transaction: the numbers that it inserts, by table."""

    commit_lsn: Lsn
    end_lsn: Lsn
    rows: dict[str, tuple[int, ...]]


@dataclass
class MemoryServer:
    """A server that writes transactions, is copied, promoted, and replaced by its copy.

    Attributes:
        tables: The published tables.
        timeline: The timeline that it writes.
        in_recovery: Whether it is a standby.
        confirmed_lsn: The slot's confirmed_flush_lsn; None without a slot.
        started_us: When it was started.
    """

    tables: tuple[str, ...]
    timeline: int = 1
    in_recovery: bool = False
    confirmed_lsn: Lsn | None = None
    started_us_: int = 1
    end_lsn: Lsn = field(default_factory=lambda: Lsn(0x1000))
    transactions: list[WalTransaction] = field(default_factory=list)
    left: dict[int, Lsn] = field(default_factory=dict)

    def insert(self, **rows: tuple[int, ...]) -> WalTransaction:
        """Commit a transaction."""
        commit_lsn = Lsn(self.end_lsn + _RECORD_BYTES)
        self.end_lsn = Lsn(commit_lsn + _RECORD_BYTES)
        transaction = WalTransaction(commit_lsn, self.end_lsn, rows)
        self.transactions.append(transaction)
        return transaction

    def write_wal(self, size_bytes: int) -> None:
        """Write WAL that has nothing for the subscription."""
        self.end_lsn = Lsn(self.end_lsn + size_bytes)

    def rows(self, table: str) -> list[int]:
        """A table's rows, sorted."""
        return sorted(number for t in self.transactions for number in t.rows.get(table, ()))

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
        """The slot's row."""
        del slot_name
        if self.confirmed_lsn is None:
            return None
        return SlotStatus("pgoutput", "logical", self.database, False, None, self.confirmed_lsn, "reserved")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""

    def stream(self, start_lsn: Lsn) -> list[WalTransaction]:
        """START_REPLICATION: from the slot's position on, if that is further; silently, as PostgreSQL."""
        assert self.confirmed_lsn is not None
        begin = max(start_lsn, self.confirmed_lsn)
        return [t for t in self.transactions if t.commit_lsn >= begin]

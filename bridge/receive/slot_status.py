"""Replication slots as pg_replication_slots has them, with what the server says of itself at the same moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A row of pg_replication_slots; plugin and database are None for a physical slot.

    Attributes:
        two_phase: Whether prepared transactions are sent at PREPARE TRANSACTION.
        restart_lsn: The server keeps WAL from here on.
        safe_wal_size_bytes: How much WAL can be written before the slot may be lost; None without
            max_slot_wal_keep_size.
        invalidation_reason: Why the slot cannot be used any more (PostgreSQL 17); None for a sound one.
        failover: Whether it is synchronized to standbys (PostgreSQL 17).
        synced: Whether it is a standby's copy of the primary's slot, which nobody can stream from (PostgreSQL 17).
        slotsync_skip_reason: Why the last synchronization left it as it was (PostgreSQL 19).
    """

    plugin: str | None
    slot_type: str
    database: str | None
    active: bool
    active_pid: int | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    two_phase: bool = False
    restart_lsn: Lsn | None = None
    safe_wal_size_bytes: int | None = None
    invalidation_reason: str | None = None
    failover: bool = False
    synced: bool = False
    slotsync_skip_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots at one moment, and what the server says of itself then.

    Attributes:
        by_name: Those that were asked for; None for one that does not exist.
        flush_lsn: The end of the server's flushed WAL; on a standby, of its replayed WAL.
        password_left_s: Until the role's password expires; None if it does not.
        synchronous_standby_names: The setting.
    """

    by_name: Mapping[str, SlotStatus | None]
    flush_lsn: Lsn
    password_left_s: float | None
    synchronous_standby_names: str


def slots_of(rows: Sequence[Mapping[str, Any]]) -> Slots:
    """Read the rows of `sql/slots.sql`, of which there is at least one."""
    row = rows[0]
    return Slots(
        {row["slot_name"]: _slot(row) if row["found"] else None for row in rows},
        Lsn.parse(row["flush_lsn"]),
        row["password_left_s"],
        row["synchronous_standby_names"],
    )


def _slot(row: Mapping[str, Any]) -> SlotStatus:
    confirmed, restart = row["confirmed_flush_lsn"], row["restart_lsn"]
    return SlotStatus(
        row["plugin"],
        row["slot_type"],
        row["database"],
        row["active"],
        row["active_pid"],
        Lsn.parse(confirmed) if confirmed else None,
        row["wal_status"],
        row["two_phase"],
        Lsn.parse(restart) if restart else None,
        row["safe_wal_size"],
        row["invalidation_reason"],
        bool(row["failover"]),
        bool(row["synced"]),
        row["slotsync_skip_reason"],
    )

"""Replication slots as pg_replication_slots has them; how safe a slot is, and how long it lasts at the present rate.

Pure: samples come in, with what the server says of itself at the same moment; findings come out.

Source: the documentation's pg_replication_slots (wal_status, safe_wal_size, invalidation_reason).
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pgbridge.bridge.runtime import remedies
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgbridge.bridge.config.config import Subscription


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


class Moment(NamedTuple):
    """A moment of a server: every transaction that was committed before the time ends at or before the LSN."""

    lsn: Lsn
    at: dt.datetime


_PAGE_BYTES: Final = 8192
_PAGE_HEADER_BYTES: Final = frozenset({24, 40})  # of a page of WAL, and of the first one of a segment


def sent_up_to(insert_lsn: Lsn) -> Lsn:
    """The LSN that a stream reaches once it has all that ends at or before the server's insert LSN.

    The header of a new page is written with the first record on it: until then no WAL is sent up to there.
    """
    into_page_bytes = insert_lsn % _PAGE_BYTES
    return Lsn(insert_lsn - into_page_bytes) if into_page_bytes in _PAGE_HEADER_BYTES else insert_lsn


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots at one moment, and what the server says of itself then.

    Attributes:
        by_name: Those that were asked for; None for one that does not exist.
        flush_lsn: The end of the server's flushed WAL; on a standby, of its replayed WAL.
        password_left_s: Until the role's password expires; None if it does not.
        synchronous_standby_names: The setting.
        committed: What was committed then; None for a standby that has replayed nothing yet.
    """

    by_name: Mapping[str, SlotStatus | None]
    flush_lsn: Lsn
    password_left_s: float | None
    synchronous_standby_names: str
    committed: Moment | None = None


def slots_of(rows: Sequence[Mapping[str, Any]]) -> Slots:
    """Read the rows of `sql/slots.sql`, of which there is at least one."""
    row = rows[0]
    at, lsn = row["committed_at"], row["committed_lsn"]
    return Slots(
        {row["slot_name"]: _slot(row) if row["found"] else None for row in rows},
        Lsn.parse(row["flush_lsn"]),
        row["password_left_s"],
        row["synchronous_standby_names"],
        None if at is None or lsn is None else Moment(sent_up_to(Lsn.parse(lsn)), at),
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


_WINDOW_S = 600.0
"""The rate is that of these last minutes: a shorter time would only see the server's steps from segment to segment."""

_LEAST_S = 60.0
_LEAST_BYTES = 64 << 20
"""Less than four segments of WAL say nothing of a rate."""


LOST: Final = frozenset({"missing", "lost"})
"""Results of `shown_status` for a slot that cannot be used any more."""


def shown_status(wal_status: str | None, invalidation_reason: str | None) -> str:
    """Return the wal_status for people and graphs: `missing` without a slot, `lost` whatever the reason."""
    if wal_status is None:
        return "missing"
    return "lost" if invalidation_reason is not None else wal_status


@dataclass(frozen=True, slots=True)
class SlotHealth:
    """A slot as the server has it, with a forecast.

    Attributes:
        wal_status: reserved, extended, unreserved or lost; None if the slot does not exist.
        safe_wal_size_bytes: How much WAL can be written before the slot may be lost; None for no limit.
        retained_bytes: How much WAL the server keeps for it.
        confirmed_flush_lsn: What was confirmed last.
        flush_lsn: The end of the server's flushed WAL.
        active: Whether somebody streams from it.
        invalidation_reason: Why it cannot be used any more (PostgreSQL 17).
        seconds_left: When the slot may be lost at the present rate; None if that is not in sight.
        synchronous: Whether the server's commits wait for the subscription (synchronous_standby_names).
    """

    wal_status: str | None
    safe_wal_size_bytes: int | None
    retained_bytes: int | None
    confirmed_flush_lsn: Lsn | None
    flush_lsn: Lsn
    active: bool
    invalidation_reason: str | None
    seconds_left: float | None
    synchronous: bool = False

    @property
    def lost(self) -> bool:
        """Whether the server does not have the slot, or WAL that it needs, any more."""
        return self.shown_status in LOST

    @property
    def shown_status(self) -> str:
        """The wal_status for people and graphs (see `shown_status`)."""
        return shown_status(self.wal_status, self.invalidation_reason)


class SlotHistory:
    """The samples of one slot."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, status: SlotStatus | None, flush_lsn: Lsn) -> SlotHealth:
        """Add a sample, and return what it means together with the ones before.

        Args:
            now_s: The time, by any clock that does not go back.
            status: The slot; None if it does not exist.
            flush_lsn: The end of the server's flushed WAL.
        """
        if status is None:
            self._samples.clear()
            return SlotHealth(
                None, None, None, None, flush_lsn, active=False, invalidation_reason=None, seconds_left=None
            )
        return SlotHealth(
            status.wal_status,
            status.safe_wal_size_bytes,
            None if status.restart_lsn is None else max(0, flush_lsn - status.restart_lsn),
            status.confirmed_flush_lsn,
            flush_lsn,
            status.active,
            status.invalidation_reason,
            self._seconds_left(now_s, status.safe_wal_size_bytes),
        )

    def _seconds_left(self, now_s: float, safe_bytes: int | None) -> float | None:
        if safe_bytes is None:
            self._samples.clear()
            return None
        while self._samples and self._samples[0][0] < now_s - _WINDOW_S:
            self._samples.popleft()
        self._samples.append((now_s, safe_bytes))
        since_s, first_bytes = self._samples[0]
        shrunk_bytes, passed_s = first_bytes - safe_bytes, now_s - since_s
        if passed_s < _LEAST_S or shrunk_bytes < _LEAST_BYTES:
            return None
        return max(0.0, safe_bytes * passed_s / shrunk_bytes)


@dataclass(frozen=True, slots=True)
class Concern:
    """Why an operator should look at a slot.

    Attributes:
        kind: The same as long as the same is the matter; what is told once is not told again at once.
        level: How it is logged.
        message: One sentence.
        hint: What to do.
    """

    kind: str
    level: Literal["warning", "error"]
    message: str
    hint: str


def concern(subscription: Subscription, health: SlotHealth) -> Concern | None:
    """Say why an operator should look at a subscription's slot; None if there is no reason."""
    slot_name, alerts = subscription.slot_name, subscription.alerts
    again = f"to copy all tables again, run: {remedies.start_afresh(subscription.name)}"
    if health.wal_status is None:
        return Concern("missing", "error", f'replication slot "{slot_name}" does not exist on the publisher', again)
    if health.lost:
        reason = f" ({health.invalidation_reason})" if health.invalidation_reason else ""
        return Concern("lost", "error", f'replication slot "{slot_name}" is invalid{reason}: changes are lost', again)
    idle = "" if health.active else "; nobody streams from it"
    if health.wal_status == "unreserved":
        return Concern(
            "unreserved",
            "error",
            f'replication slot "{slot_name}" is about to be lost: the next checkpoint may remove its WAL{idle}',
            f"raise max_slot_wal_keep_size on the server now, and see why the subscription lags: {remedies.status()}",
        )
    if health.seconds_left is not None and health.seconds_left <= alerts.slot_left_s:
        left = timedelta(seconds=round(health.seconds_left))
        return Concern(
            "running out",
            "warning",
            f'at this rate replication slot "{slot_name}" is lost in {left} (hours:minutes:seconds){idle}',
            f"raise max_slot_wal_keep_size on the server, or see why the subscription lags: {remedies.status()}",
        )
    if health.retained_bytes is not None and 0 < alerts.retained_bytes <= health.retained_bytes:
        # told again each time that it has doubled
        doubled = (health.retained_bytes // alerts.retained_bytes).bit_length()
        return Concern(
            f"retained {doubled}",
            "warning",
            f'the server keeps {health.retained_bytes >> 20} MB of WAL for replication slot "{slot_name}"{idle}',
            f"see why the subscription lags, or why a transaction stays open: {remedies.status()}, {remedies.check()}",
        )
    return None

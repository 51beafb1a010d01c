"""Positions in a server's WAL: whether a server's history has them, and what becomes of each. Pure: no I/O, no clock.

A server goes back when a standby that lagged is promoted, and by point-in-time recovery. Then it writes other WAL under
LSNs that were already received: transactions that it commits there would never be sent, and those that it lost would
stay in the targets. So an LSN says nothing without its server and its timeline.

Every position that was recorded as durable is compared before anything is streamed: the origin, each table, the batch
under way, the transaction to skip, the batch that a handler did not accept. A position that the server does not have is
never passed over: its table is copied afresh, its batch is taken back, or the server is refused.

Source: the documentation's IDENTIFY_SYSTEM and TIMELINE_HISTORY; `readTimeLineHistory` in PostgreSQL's timeline.c.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the WAL of one server: everything that ends at or before it.

    Attributes:
        system_identifier: The cluster's; None before a subscription has begun.
        timeline: The timeline of a server that had it; None if that is not known: an earlier version recorded it.
        begin_lsn: Where that timeline begins; None if that is not known. Two standbys that are promoted without knowing
            of each other give their timelines the same number.
    """

    system_identifier: str | None
    timeline: int | None
    lsn: Lsn
    begin_lsn: Lsn | None = None

    def __str__(self) -> str:
        return str(self.lsn) if self.timeline is None else f"{self.lsn} of timeline {self.timeline}"


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a server's history does not have a position.

    Attributes:
        reason: What the server has instead.
        another_server: It is another one.
        later: It is a standby, and will have it.
    """

    reason: str
    another_server: bool = False
    later: bool = False


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """Which WAL a server has, as seen at one moment on one connection.

    Attributes:
        system_identifier: The cluster's: kept by restarts and standbys, new after initdb.
        timeline: The timeline that the server writes, or replays if it is a standby.
        flush_lsn: The end of the flushed WAL; on a standby, of the replayed WAL.
        in_recovery: Whether it is a standby, or restores a backup.
        left: Where its history left each earlier timeline.
        started_us: When it was started, in microseconds since 1970: no two servers share that.
    """

    system_identifier: str
    timeline: int
    flush_lsn: Lsn
    in_recovery: bool = False
    left: Mapping[int, Lsn] = field(default_factory=dict)
    started_us: int = 0

    def begin_of(self, timeline: int) -> Lsn | None:
        """Return the LSN at which a timeline of this history begins; None if it is not in it."""
        if timeline != self.timeline and timeline not in self.left:
            return None
        return max((lsn for earlier, lsn in self.left.items() if earlier < timeline), default=INVALID)

    def missing(self, position: Position) -> Missing | None:
        """Return why the server does not have what ends at or before a position; None if it has all of it."""
        known = position.system_identifier
        if known is not None and known != self.system_identifier:
            return Missing(
                f"it has system identifier {self.system_identifier}, the subscription began with {known}",
                another_server=True,
            )
        if position.timeline is not None and (reason := self._branched(position, position.timeline)):
            return Missing(reason)
        if position.lsn <= self.flush_lsn:
            return None
        if self.in_recovery:
            return Missing(f"it has WAL up to {self.flush_lsn}", later=True)
        return Missing(
            f"it has WAL up to {self.flush_lsn}: a standby that lagged was promoted, or the server was restored from a "
            "backup"
        )

    def _branched(self, position: Position, timeline: int) -> str:
        """Why a position of a timeline is not in this history; empty if it is."""
        if timeline > self.timeline:
            return f"it is on timeline {self.timeline}: it is a former primary, or was restored from a backup"
        begin_lsn, known_lsn = self.begin_of(timeline), position.begin_lsn
        if None not in {begin_lsn, known_lsn} and begin_lsn != known_lsn:
            return f"its timeline {timeline} began at {begin_lsn}, that of the changes here at {known_lsn}"
        if timeline == self.timeline:
            return ""
        left_lsn = self.left.get(timeline)
        if left_lsn is None:
            return f"its timeline {self.timeline} is no descendant of timeline {timeline}"
        if left_lsn >= position.lsn:
            return ""
        return (
            f"its timeline {self.timeline} left timeline {timeline} at {left_lsn}: a standby that lagged was "
            "promoted, or the server was restored to a point in time"
        )


def switch_points(history: str) -> dict[int, Lsn]:
    """Return the LSN at which a timeline's history left each earlier timeline, by the content of its history file."""
    lines = (line.split("\t") for line in history.splitlines())
    return {int(fields[0]): Lsn.parse(fields[1]) for fields in lines if fields[0].strip().isdigit()}


@dataclass(frozen=True, slots=True)
class Held:
    """The durable positions of a subscription, or of its tablesync worker.

    Attributes:
        origin: Every transaction that ends at or before it is durable.
        batch: The end of the batch under way; None without one.
        tables: What each table has, by (namespace, name).
        skip: The finish LSN of the transaction to skip.
        fence: The end of a batch that a handler was given and did not accept.
    """

    origin: Position
    batch: Position | None
    tables: Mapping[tuple[str, str], Position]
    skip: Position | None = None
    fence: Position | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of the comparison with a server's history.

    Attributes:
        refused: Why nothing can be streamed from the server.
        position: The position that this is about.
        undo: The batch under way is to be taken back: the server does not have it.
        afresh: Tables that have more than the server, and why; they are to be copied afresh.
        skips_another: The LSN to skip is of a transaction that the server does not have.
    """

    refused: Missing | None = None
    position: Position | None = None
    undo: bool = False
    afresh: Mapping[tuple[str, str], Missing] = field(default_factory=dict)
    skips_another: bool = False

    @property
    def has_all(self) -> bool:
        """Whether the server has all that is durable here."""
        return self == Comparison()


def compare(held: Held, server: ServerHistory) -> Comparison:
    """Compare what is durable here with what a server has."""
    for position in filter(None, (held.origin, held.fence)):
        if (refused := server.missing(position)) is not None:
            return Comparison(refused, position)
    lacking = {table: missing for table, at in held.tables.items() if (missing := server.missing(at)) is not None}
    undo = held.batch is not None and server.missing(held.batch) is not None
    for at in (*(held.tables[table] for table in lacking), *filter(None, [held.batch])):
        if (missing := server.missing(at)) is not None and missing.later:  # a standby that lags: it is waited for
            return Comparison(missing, at)
    skip = held.skip
    # one that is to come may be skipped, too: it is another one only if the server left its timeline before it
    skips_another = skip is not None and skip.timeline not in {None, server.timeline} and bool(server.missing(skip))
    return Comparison(undo=undo, afresh=lacking, skips_another=skips_another)

"""Whether a server's WAL holds what is durable here: it went back when a standby that lagged was promoted, and by PITR.

A server that went back writes other WAL under the LSNs that were received already. What it commits there would never
be sent, and what it lost stays in the targets: a hole that nothing else tells of.

Source: the documentation's IDENTIFY_SYSTEM and TIMELINE_HISTORY; `readTimeLineHistory` in PostgreSQL's timeline.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.errors import PublisherError, WentBack
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable

_HINT = (
    "the targets have what the server lost: the tables must be copied again; drop the slot and remove the "
    "subscription's state to start afresh"
)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What IDENTIFY_SYSTEM says of a server.

    Attributes:
        system_identifier: The cluster's: the same over restarts and on standbys, another after initdb.
        timeline: The one that it writes; on a standby, that it replays.
        flush_lsn: Where its WAL is flushed to; on a standby, what it has received or replayed.
    """

    system_identifier: str
    timeline: int
    flush_lsn: Lsn


def check_history(
    server: ServerIdentity,
    *,
    standby: bool,
    remote_lsn: Lsn,
    timeline: int | None,
    history: Callable[[int], str],
) -> int | None:
    """Hold a server's WAL against the origin, before it is streamed from.

    Args:
        server: The server.
        standby: It is in recovery.
        remote_lsn: The origin's LSN.
        timeline: The one that the origin is on; None when that is not known.
        history: Gives the history file of a timeline.

    Returns:
        The timeline that the origin is on from now on. None on a standby: its timeline may change while it sends.

    Raises:
        WentBack: The server does not have the WAL that was received, or has other WAL in its place.
        PublisherError: A standby has not come so far yet.
    """
    if timeline is not None and server.timeline < timeline:
        raise WentBack(
            f"the publisher is on timeline {server.timeline}, but changes up to {remote_lsn} of timeline {timeline} "
            "are durable here: it is a former primary, or was restored from a backup",
            hint=f"check the connection string; if the server is right, {_HINT}",
        )
    if server.flush_lsn < remote_lsn:
        if standby:
            raise PublisherError(
                f"the standby lags: it has WAL up to {server.flush_lsn}, changes up to {remote_lsn} are durable here",
                retry=True,
            )
        raise WentBack(
            f"the publisher went back: it has WAL up to {server.flush_lsn}, but changes up to {remote_lsn} are durable "
            "here; a standby that lagged was promoted, or the server was restored from a backup",
            hint=_HINT,
        )
    if timeline is not None and server.timeline > timeline:
        left_lsn = switch_point(history(server.timeline), timeline)
        if left_lsn is None or left_lsn < remote_lsn:
            where = "is no descendant of it" if left_lsn is None else f"left it at {left_lsn}"
            raise WentBack(
                f"the publisher went back: changes up to {remote_lsn} of timeline {timeline} are durable here, but its "
                f"timeline {server.timeline} {where}; a standby that lagged was promoted, or the server was restored "
                "to a point in time",
                hint=_HINT,
            )
    return None if standby else server.timeline


def switch_point(history: str, timeline: int) -> Lsn | None:
    """Where a history leaves a timeline; None when it never was on it."""
    for line in history.splitlines():
        fields = line.split("\t")
        if fields[0].strip() == str(timeline):
            return Lsn.parse(fields[1])
    return None

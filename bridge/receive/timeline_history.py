"""Whether the server's WAL still holds the transactions that are durable here.

A server goes back when a standby that lagged is promoted, and by point-in-time recovery. Then it writes other WAL under
LSNs that were already received: transactions that it commits there would never be sent, and those that it lost would
stay in the targets. Only the timeline tells.

Source: the documentation's IDENTIFY_SYSTEM and TIMELINE_HISTORY; `readTimeLineHistory` in PostgreSQL's timeline.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge import remedies
from bridge.errors import PublisherError, PublisherWentBack
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The result of IDENTIFY_SYSTEM.

    Attributes:
        system_identifier: The cluster's: kept by restarts and standbys, new after initdb.
        timeline: The timeline that the server writes, or replays if it is a standby.
        flush_lsn: The end of the flushed WAL; on a standby, of the WAL received or replayed.
    """

    system_identifier: str
    timeline: int
    flush_lsn: Lsn


def check_same_server(server: ServerIdentity, known: str | None) -> None:
    """Check that a server is the one that a subscription began with.

    Args:
        server: The server.
        known: The system identifier that the catalog has.

    Raises:
        PublisherError: It is another one.
    """
    if known != server.system_identifier:
        raise PublisherError(
            f"the publisher is another server: it has system identifier {server.system_identifier}, "
            f"the subscription began with {known}",
            hint="check the connection string; another server needs another state_dir and warehouse",
        )


def check_history(
    server: ServerIdentity,
    *,
    subscription: str,
    standby: bool,
    remote_lsn: Lsn,
    timeline: int | None,
    history: Callable[[int], str],
) -> int | None:
    """Check a server's WAL against the origin, before streaming from it.

    Args:
        server: The server.
        subscription: The subscription's name, for hints.
        standby: Whether it is in recovery.
        remote_lsn: The origin's LSN.
        timeline: The origin's timeline; None if it is not known.
        history: Returns the history file of a timeline.

    Returns:
        The origin's timeline from now on; None on a standby, whose timeline may change while it sends.

    Raises:
        PublisherWentBack: The server does not have the WAL that was received, or has other WAL in its place.
        PublisherError: A standby does not have that WAL yet.
    """
    anew = (
        f"the targets have what the server lost; to copy all tables again, run: {remedies.start_afresh(subscription)}"
    )
    if timeline is not None and server.timeline < timeline:
        raise PublisherWentBack(
            f"the publisher is on timeline {server.timeline}, but changes up to {remote_lsn} of timeline {timeline} "
            "are durable here: it is a former primary, or was restored from a backup",
            hint=f"check the connection string; if the server is right, {anew}",
        )
    if server.flush_lsn < remote_lsn:
        if standby:
            raise PublisherError(
                f"the standby lags: it has WAL up to {server.flush_lsn}, but changes up to {remote_lsn} are durable "
                "here",
                retry=True,
            )
        raise PublisherWentBack(
            f"the publisher went back: it has WAL up to {server.flush_lsn}, but changes up to {remote_lsn} are durable "
            "here; a standby that lagged was promoted, or the server was restored from a backup",
            hint=anew,
        )
    if timeline is not None and server.timeline > timeline:
        left_lsn = switch_point(history(server.timeline), timeline)
        if left_lsn is None or left_lsn < remote_lsn:
            where = "is no descendant of it" if left_lsn is None else f"left it at {left_lsn}"
            raise PublisherWentBack(
                f"the publisher went back: changes up to {remote_lsn} of timeline {timeline} are durable here, but its "
                f"timeline {server.timeline} {where}; a standby that lagged was promoted, or the server was restored "
                "to a point in time",
                hint=anew,
            )
    return None if standby else server.timeline


def switch_point(history: str, timeline: int) -> Lsn | None:
    """The LSN at which a timeline history leaves a timeline; None if it does not contain it."""
    for line in history.splitlines():
        fields = line.split("\t")
        if fields[0].strip() == str(timeline):
            return Lsn.parse(fields[1])
    return None

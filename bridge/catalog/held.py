"""The durable positions of a subscription in the catalog: where they are read together, and their timeline is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbridge.bridge.track.position import Held, Position, ServerHistory
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.catalog.catalog_rows import RelRow


def held(catalog: Catalog, name: str) -> Held | None:
    """The positions of a subscription, or of a tablesync worker; None before it has an origin."""
    rows = catalog.rows(
        "SELECT s.system_identifier, o.remote_lsn, o.timeline, o.fence_lsn, o.fence_timeline, s.skip_lsn, "
        "s.skip_timeline, b.end_lsn, b.timeline FROM origin o "
        "JOIN subscription s ON s.name = o.subscription LEFT JOIN batch b ON b.subscription = o.subscription "
        "WHERE o.subscription = ?",
        name,
    )
    if not rows:
        return None
    system, remote_lsn, timeline, fence_lsn, fence_timeline, *skip, batch_lsn, batch_timeline = rows[0]

    begins = timeline_begins(catalog, name)

    def at(lsn: int | None, timeline: int | None) -> Position | None:
        return Position(system, timeline, Lsn(lsn), begins.get(timeline)) if lsn else None

    return Held(
        Position(system, timeline, Lsn(remote_lsn), begins.get(timeline)),
        at(batch_lsn, batch_timeline),
        {
            (rel.namespace, rel.name): Position(system, rel.timeline, rel.since_lsn, begins.get(rel.timeline))
            for rel in catalog.rels(name)
            if rel.waits is None  # its rows will be replaced
        },
        at(*skip),
        # once the origin has reached it, the origin stands for it
        at(fence_lsn, fence_timeline) if fence_lsn > remote_lsn else None,
    )


def timeline_begins(catalog: Catalog, name: str) -> dict[int | None, Lsn]:
    """Return the LSN at which each timeline of a durable position begins."""
    rows = catalog.rows("SELECT timeline, begin_lsn FROM timeline WHERE subscription = ?", name)
    return {timeline: Lsn(begin_lsn) for timeline, begin_lsn in rows}


def note_timeline(catalog: Catalog, name: str, server: ServerHistory) -> int | None:
    """Record the timeline of a server whose history has all that is durable here; return the one before.

    All that is recorded from now on is on it, until the next call.
    """
    timeline = server.timeline
    rows = catalog.rows("SELECT timeline FROM origin WHERE subscription = ?", name)
    before: int | None = rows[0][0] if rows else None
    if before != timeline or timeline not in timeline_begins(catalog, name):
        begin_lsn = server.begin_of(timeline)
        with catalog.transaction() as db:
            db.execute("UPDATE origin SET timeline = ? WHERE subscription = ?", (timeline, name))
            db.execute("INSERT OR REPLACE INTO timeline VALUES (?, ?, ?)", (name, timeline, begin_lsn))
    return before


def ahead_of_origin(catalog: Catalog, name: str) -> list[RelRow]:
    """The tables that have transactions beyond the origin of a batch that was cut short, not of a copy.

    One that waits for its resync keeps what it has: the stream brings it nothing.
    """
    remote_lsn = catalog.remote_lsn(name) or INVALID
    rels = (rel for rel in catalog.rels(name) if rel.waits is None)
    beyond = (rel for rel in rels if rel.position > remote_lsn)
    return [rel for rel in beyond if rel.position > (rel.first_lsn or rel.lsn)]


def fence_lsn(catalog: Catalog, subscription: str) -> Lsn:
    """The end of a batch that a handler was given and did not accept: batches do not go over it; 0 if there is none.

    Rows that the handler has written with that end as their version stay written. So all that follows in smaller
    batches ends there, too: a table that has that version leaves them out, and one that lacks it gets each of them.
    """
    rows = catalog.rows("SELECT fence_lsn FROM origin WHERE subscription = ?", subscription)
    return Lsn(rows[0][0]) if rows else Lsn(0)


def give_up_batch(catalog: Catalog, subscription: str) -> Lsn | None:
    """Drop the intent of the batch under way; remember and return its end, None without one. One transaction."""
    with catalog.transaction() as db:
        row = db.execute("SELECT end_lsn, timeline FROM batch WHERE subscription = ?", (subscription,)).fetchone()
        if row is None:
            return None
        db.execute(
            "UPDATE origin SET fence_lsn = ?2, fence_timeline = ?3 WHERE subscription = ?1 AND fence_lsn < ?2",
            (subscription, *row),
        )
        db.execute("DELETE FROM batch WHERE subscription = ?", (subscription,))
    return Lsn(row[0])

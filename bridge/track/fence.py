"""The end of a batch that a handler was given and did not accept, in the catalog: batches do not go over it.

What the handler has written with that end as its version stays written. So all that follows in smaller batches ends
there, too: a table that has that version leaves them out, and one that lacks it gets each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.lsn import Lsn

if TYPE_CHECKING:
    from bridge.track.catalog import Catalog


def fence_lsn(catalog: Catalog, subscription: str) -> Lsn:
    """The LSN; 0 if there was no such batch."""
    rows = catalog.rows("SELECT fence_lsn FROM origin WHERE subscription = ?", subscription)
    return Lsn(rows[0][0]) if rows else Lsn(0)


def give_up_batch(catalog: Catalog, subscription: str) -> Lsn | None:
    """Drop the intent of the batch under way, and remember its end; one transaction.

    Returns:
        The batch's end; None if there is no batch.
    """
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

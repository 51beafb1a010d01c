"""The catalog's part of a publisher that pg_upgrade has replaced: positions are those of another server from now on.

The new server's WAL begins behind the old one's, and its slots stand where it begins: pg_upgrade refuses a slot that
has not consumed everything. So every table has all of the old server, and nothing of the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.catalog import commits, refresh
from bridge.catalog.catalog_rows import sync_name
from bridge.catalog.held import ahead_of_origin
from bridge.runtime.errors import StateError

if TYPE_CHECKING:
    from bridge.catalog.catalog import Catalog
    from bridge.track.position import ServerHistory
    from protocol.lsn import Lsn


def check_finished(catalog: Catalog, name: str) -> None:
    """Check that nothing is under way that only the old server could have finished.

    Raises:
        StateError: A batch, a prepared transaction, or a table that is ahead of the others is.
    """
    under_way = {
        "a batch that was begun and not finished": catalog.batch(name),
        "a table with changes that the others lack": ahead_of_origin(catalog, name),
        "a prepared transaction that has not ended": catalog.prepared(name),
    }
    for what, rows in under_way.items():
        if rows:
            raise StateError(
                f'subscription "{name}" has {what}: pg_upgrade refuses a server with such a slot',
                hint="start the old server again, run the daemon until all is applied, and upgrade then",
            )


def follow(catalog: Catalog, name: str, server: ServerHistory, slot_lsn: Lsn) -> None:
    """Have a subscription go on at the LSN of its slot on the new server; one transaction. See `check_finished`.

    Tables that were being added are copied again. What was seen of partitions is looked at again, because pg_upgrade
    does not keep the transactions that made them.
    """
    with catalog.transaction() as db:
        for owner in (name, sync_name(name)):
            db.execute(
                "UPDATE subscription SET system_identifier = ?2, skip_lsn = NULL, skip_timeline = NULL WHERE name = ?1",
                (owner, server.system_identifier),
            )
        if catalog.subscription(sync_name(name)) is not None:
            refresh.begin_anew(catalog, name)
        db.execute(
            "UPDATE origin SET remote_lsn = ?2, timeline = ?3, fence_lsn = 0, fence_timeline = NULL "
            "WHERE subscription = ?1",
            (name, slot_lsn, server.timeline),
        )
        db.execute("DELETE FROM timeline WHERE subscription = ?", (name,))
        db.execute(
            # their logs have positions of the old server only
            "UPDATE subscription_rel SET lsn = 0, position = 0, first_lsn = 0, timeline = NULL, "
            "state = iif(state = 's', 'r', state) WHERE subscription = ? AND state IN ('s', 'r')",
            (name,),
        )
        for table in ("followed", "difference", "copied_range"):
            db.execute(f"DELETE FROM {table} WHERE subscription = ?", (name,))
        commits.join_again(catalog, name)

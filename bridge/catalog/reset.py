"""The catalog's part of ending a subscription, of beginning it afresh, and of going on with another server.

No worker of the subscription may run meanwhile. The row of one that has ended (DROP SUBSCRIPTION) stays, disabled: the
configuration file may still name it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import commits, refresh
from pgbridge.bridge.catalog.catalog_rows import sync_name
from pgbridge.bridge.catalog.held import ahead_of_origin
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.track.spool import spool_folder

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.track.position import ServerHistory
    from pgbridge.protocol.lsn import Lsn

_OF_A_LIFE = (
    *("origin", "batch", "prepared", "error", "copy_progress", "refresh", "left_out"),
    *("maintenance", "commit_record", "timeline", "followed", "difference", "removed", "known_type", "verified"),
    "copied_range",
)
"""Tables whose rows end with a subscription's life. Others are looked at one by one. An OPTIMIZE under way stays: if it
must be undone, that is before a table is copied afresh."""


def forget(catalog: Catalog, name: str) -> None:
    """Forget everything of a subscription but its name, and disable it. Its Delta tables stay as they are.

    Enabled again, it is new: it creates a slot, and copies into tables that are empty or do not exist.
    """
    forget_rows(catalog, name)
    _remove_spool(catalog, name)


def forget_rows(catalog: Catalog, name: str) -> None:
    """The same, but for its spool files."""
    with catalog.transaction() as db:
        for table in ("subscription_rel", "conflict", "optimizing"):
            db.execute(f"DELETE FROM {table} WHERE subscription = ?", (name,))
        _end_life(db, name)
        db.execute(
            "UPDATE subscription SET enabled = 0, epoch = 0, apply_error_count = 0, sync_error_count = 0 "
            "WHERE name = ?",
            (name,),
        )


def start_afresh(catalog: Catalog, name: str, published: Collection[tuple[str, str]]) -> list[str]:
    """Have the next start create the slot again and copy all tables again, each replaced by one commit.

    Args:
        published: (namespace, name) of the tables that are published now; others do not follow any more.

    Returns:
        The qualified names of the tables that will be copied again.
    """
    sync = sync_name(name)
    with catalog.transaction() as db:
        rels = catalog.rels_by_name(name, sync)
        db.execute("DELETE FROM subscription_rel WHERE subscription = ?", (name,))
        _end_life(db, name, [rel.relid for rel in rels.values() if rel.relid is not None])
        kept = [rel for key, rel in rels.items() if key in published]
        db.executemany(
            "INSERT INTO subscription_rel (subscription, namespace, name, state, lsn, path, relid, shape) "
            "VALUES (?, ?, ?, ?, 0, ?, ?, ?)",
            [
                # d: the rows are its own, so that the copy may replace them; their shape says which ones it may keep
                (name, rel.namespace, rel.name, "i" if rel.state == "i" else "d", rel.path, rel.relid, rel.shape)
                for rel in kept
            ],
        )
    _remove_spool(catalog, name)
    return [rel.qualified_name for rel in kept]


def _end_life(db: sqlite3.Connection, name: str, relids: Iterable[int] = ()) -> None:
    """Delete what belongs to the present origin and slot, and the tablesync worker altogether.

    The columns of tables with these relids stay: a copy may leave dropped ones in the Delta tables.
    """
    sync = sync_name(name)
    for table in _OF_A_LIFE:
        db.execute(f"DELETE FROM {table} WHERE subscription IN (?, ?)", (name, sync))
    kept = ", ".join(map(str, relids))
    db.execute(f"DELETE FROM rel_column WHERE subscription = ? AND relid NOT IN ({kept})", (name,))
    for table in ("subscription_rel", "rel_column", "conflict"):
        db.execute(f"DELETE FROM {table} WHERE subscription = ?", (sync,))
    db.execute("DELETE FROM subscription WHERE name = ?", (sync,))
    db.execute(
        # another incarnation: Delta must not take the next life's commits for ones that it has
        "UPDATE subscription SET incarnation = NULL, slot_name = NULL, slot_state = NULL, system_identifier = NULL, "
        "skip_lsn = NULL, received_lsn = 0 WHERE name = ?",
        (name,),
    )


def _remove_spool(catalog: Catalog, name: str) -> None:
    for owner in (name, sync_name(name)):
        shutil.rmtree(spool_folder(catalog.state_dir, owner), ignore_errors=True)


# --- A publisher that pg_upgrade has replaced: positions are those of another server from now on ----------------------
#
# The new server's WAL begins behind the old one's, and its slots stand where it begins: pg_upgrade refuses a slot that
# has not consumed everything. So every table has all of the old server, and nothing of the new one.


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
        for table in ("followed", "difference", "copied_range", "verified"):
            db.execute(f"DELETE FROM {table} WHERE subscription = ?", (name,))
        commits.join_again(catalog, name)

"""The catalog's part of ending a subscription, and of beginning it afresh: DROP SUBSCRIPTION, and CREATE after it.

No worker of the subscription may run meanwhile. Its row stays, disabled: the configuration file may still name it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bridge.catalog.catalog_rows import sync_name
from bridge.track.spool import spool_folder

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection

    from bridge.catalog.catalog import Catalog

_OF_A_LIFE = (
    *("origin", "batch", "prepared", "rel_column", "error", "copy_progress", "refresh", "left_out"),
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
        _end_life(db, name)
        kept = [rel for key, rel in rels.items() if key in published]
        db.executemany(
            "INSERT INTO subscription_rel (subscription, namespace, name, state, lsn, path, relid) "
            "VALUES (?, ?, ?, ?, 0, ?, ?)",
            # d: the rows are its own, so that the copy may replace them
            [(name, rel.namespace, rel.name, "i" if rel.state == "i" else "d", rel.path, rel.relid) for rel in kept],
        )
    _remove_spool(catalog, name)
    return [rel.qualified_name for rel in kept]


def _end_life(db: sqlite3.Connection, name: str) -> None:
    """Delete what belongs to the present origin and slot, and the tablesync worker altogether."""
    sync = sync_name(name)
    for table in _OF_A_LIFE:
        db.execute(f"DELETE FROM {table} WHERE subscription IN (?, ?)", (name, sync))
    for table in ("subscription_rel", "conflict"):
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

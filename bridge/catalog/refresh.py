"""The catalog's part of REFRESH PUBLICATION: requests, and the tables that a worker of their own synchronizes.

Tables that are added later are copied and brought up to the stream by a tablesync worker. It has catalog rows like a
subscription (its name ends in `SYNC`): a slot, an origin, a batch, and its tables. A table moves between the two in one
transaction with the change that causes it, so at any moment it belongs to exactly one of them, or to none.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import copied_ranges
from pgbridge.bridge.catalog.catalog_rows import (
    AHEAD_OF_2,
    FOLLOWS_STREAM,
    REL_COLUMNS,
    REL_VALUES,
    SYNC,
    RelRow,
    sync_name,
)
from pgbridge.bridge.catalog.followed import forget
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Sequence

    from pgbridge.bridge.catalog.catalog import Catalog

DROPPING = "dropping"
"""The `slot_state` of a slot that is no longer needed; the row stays until the slot is dropped."""


@dataclass(frozen=True, slots=True)
class RefreshRow:
    """A request.

    Attributes:
        number: Grows with each request.
        table: (namespace, name) of a table to copy afresh; None for the publications as a whole.
        copy_data: Whether tables that were added are copied.
        unpublished: The table was subscribed, but not published when the publications were to be refreshed. If it is
            published again when the request is taken up, its changes in between were not sent.
        joins: The table is only to be added, and only if it is new: nobody has asked to copy over what is there.
    """

    number: int
    table: tuple[str, str] | None
    copy_data: bool
    unpublished: bool = False
    joins: bool = False


Wanted = tuple[list[RefreshRow], Lsn | None, Lsn | None]
"""Requests, and the transactions to skip: by the subscription, and by its tablesync worker."""


def ask(
    catalog: Catalog,
    subscription: str,
    tables: Iterable[tuple[str, str] | None],
    *,
    copy_data: bool,
    unpublished: Iterable[tuple[str, str]] = (),
) -> None:
    """Record requests for the worker; see `RefreshRow`."""
    rows = [(subscription, *(table or (None, None)), int(copy_data), 0) for table in tables]
    rows += [(subscription, *table, int(copy_data), 1) for table in unpublished]
    with catalog.transaction() as db:
        db.executemany(
            "INSERT INTO refresh (subscription, namespace, name, copy_data, unpublished) VALUES (?, ?, ?, ?, ?)", rows
        )


def ask_to_join(
    catalog: Catalog, subscription: str, tables: Iterable[tuple[str, str]], *, copy_data: bool
) -> list[tuple[str, str]]:
    """Record requests to add tables, unless one that waits does so; returns the tables."""
    with catalog.transaction() as db:
        waiting = {row.table for row in asked(catalog, subscription) if not row.unpublished}
        joining = [table for table in tables if not waiting.intersection({None, table})]
        db.executemany(
            "INSERT INTO refresh (subscription, namespace, name, copy_data, joins) VALUES (?, ?, ?, ?, 1)",
            [(subscription, *table, int(copy_data)) for table in joining],
        )
    return joining


def asked(catalog: Catalog, subscription: str) -> list[RefreshRow]:
    """The requests that the worker has not taken up, in their order."""
    rows = catalog.rows(
        "SELECT id, namespace, name, copy_data, unpublished, joins FROM refresh WHERE subscription = ? ORDER BY id",
        subscription,
    )
    return [
        RefreshRow(number, None if name is None else (namespace, name), *map(bool, flags))
        for number, namespace, name, *flags in rows
    ]


def wanted(catalog: Catalog, subscription: str) -> Wanted | None:
    """What an operator asks for: a change of it ends a pause after an error. None while the catalog cannot be read."""
    try:
        skips = catalog.skip_lsn(subscription), catalog.skip_lsn(sync_name(subscription))
        return asked(catalog, subscription), *skips
    except StateError:
        return None


def removed(catalog: Catalog, subscription: str) -> dict[tuple[str, str], str]:
    """Where the tables are that a refresh has removed, and none has added since: what is there is ours."""
    rows = catalog.rows("SELECT namespace, name, path FROM removed WHERE subscription = ?", subscription)
    return {(namespace, name): path for namespace, name, path in rows}


def take_up(
    catalog: Catalog,
    subscription: str,
    up_to: int,
    *,
    bring_in: Sequence[RelRow],
    follow: Sequence[RelRow],
    remove: Collection[tuple[str, str]],
) -> None:
    """Turn requests into the tables' states, in one transaction.

    Args:
        up_to: The number of the last of the requests.
        bring_in: Tables to copy: they move to the tablesync worker until they are handed over.
        follow: Tables that follow the subscription's stream at once.
    """
    sync = sync_name(subscription)
    with catalog.transaction() as db:
        for owner in (subscription, sync):
            db.executemany(
                "INSERT OR REPLACE INTO removed (subscription, namespace, name, path) SELECT ?1, namespace, name, path "
                "FROM subscription_rel WHERE subscription = ?2 AND namespace = ?3 AND name = ?4 AND state <> 'i'",
                [(subscription, owner, *name) for name in remove],
            )
        db.executemany(
            "DELETE FROM removed WHERE subscription = ? AND namespace = ? AND name = ?",
            [(subscription, rel.namespace, rel.name) for rel in (*bring_in, *follow)],
        )
        if bring_in:
            db.execute(
                "INSERT OR IGNORE INTO subscription (name, enabled, configured_enabled) VALUES (?, 1, 1)", (sync,)
            )
        gone = [*remove, *((rel.namespace, rel.name) for rel in bring_in)]
        for owner in (subscription, sync):
            _delete(db, owner, gone)
            copied_ranges.forget(db, owner, gone)
        forget(db, subscription, gone)
        _put(db, sync, bring_in)
        _put(db, subscription, follow)
        db.execute("DELETE FROM refresh WHERE subscription = ? AND id <= ?", (subscription, up_to))


def copy_afresh(catalog: Catalog, name: str, table: tuple[str, str]) -> None:
    """Have a table copied afresh, because its Delta table has what the server lost.

    If it follows the subscription's stream, the tablesync worker copies it beside the others; else it is copied where
    it is.
    """
    rel = catalog.rels_by_name(name)[table]
    anew = RelRow(rel.namespace, rel.name, "d", INVALID, rel.path, rel.relid, shape=rel.shape)
    if rel.state in FOLLOWS_STREAM and not name.endswith(SYNC):
        take_up(catalog, name, 0, bring_in=[anew], follow=(), remove=())
    else:
        with catalog.transaction() as db:
            copied_ranges.forget(db, name, [table])
            catalog.put_rel(name, anew)


def have_wait(catalog: Catalog, name: str, tables: Iterable[tuple[str, str]], why: str, now_s: float) -> None:
    """Leave tables' changes out from now on, until they are copied afresh. They have all up to the origin.

    It is one transaction.

    Args:
        name: The subscription, or its tablesync worker.
        why: What `status` shows, with the hint.
    """
    with catalog.transaction() as db:
        db.executemany(
            "UPDATE subscription_rel SET waits = ?, waits_since = ? "
            "WHERE subscription = ? AND namespace = ? AND name = ?",
            [(why, now_s, name, *table) for table in tables],
        )


def waiting(catalog: Catalog, subscription: str) -> list[RelRow]:
    """The tables that wait for their resync, those with the tablesync worker included."""
    rels = [*catalog.rels(subscription), *catalog.rels(sync_name(subscription))]
    return [rel for rel in rels if rel.waits is not None]


def hand_over(catalog: Catalog, subscription: str) -> list[RelRow]:
    """Move synchronized tables from the tablesync worker to the subscription, if its stream has not passed them.

    It is one transaction. The tables hold exactly the transactions that end at or before the worker's origin. The
    subscription's stream must not run meanwhile, and has applied no transaction beyond its own origin. If that is not
    past the worker's origin, nothing is lost and nothing is applied twice when the stream takes these tables over from
    there.

    Returns:
        The tables as they now are in the subscription; none if the stream has passed them. Afterwards the worker's slot
        is to be dropped; tables that are not copied yet stay with the worker and start again.
    """
    sync = sync_name(subscription)
    with catalog.transaction() as db:
        sync_lsn, remote_lsn = (_origin(db, name) for name in (sync, subscription))
        # nor while a table is ahead of the others, of a batch that was cut short
        batch = db.execute(
            "SELECT 1 FROM batch WHERE subscription = ?1 UNION ALL "
            f"SELECT 1 FROM subscription_rel WHERE subscription = ?1 AND {AHEAD_OF_2}",
            (sync, sync_lsn),
        ).fetchone()
        if sync_lsn is None or remote_lsn is None or sync_lsn < remote_lsn or batch is not None:
            return []
        (timeline,) = db.execute("SELECT timeline FROM origin WHERE subscription = ?", (sync,)).fetchone()
        copied = [rel for rel in catalog.rels(sync) if rel.state in "fsr"]
        copied = [
            replace(
                rel,
                lsn=max(rel.lsn, sync_lsn),
                timeline=timeline,
                first_lsn=max(rel.first_lsn, sync_lsn) if rel.first_lsn and sync_lsn < rel.lsn else INVALID,
            )
            for rel in copied
        ]
        given = [replace(rel, state="r" if rel.since_lsn <= remote_lsn else "s") for rel in copied]
        if not given:
            return []
        moved = "SELECT relid FROM rel_column WHERE subscription = ?2"
        db.execute(f"DELETE FROM rel_column WHERE subscription = ?1 AND relid IN ({moved})", (subscription, sync))
        db.execute("UPDATE rel_column SET subscription = ?1 WHERE subscription = ?2", (subscription, sync))
        _delete(db, sync, [(rel.namespace, rel.name) for rel in given])
        copied_ranges.hand_over(db, subscription, given, sync_lsn)
        _put(db, subscription, given)
        db.execute(
            "INSERT OR IGNORE INTO timeline SELECT ?1, timeline, begin_lsn FROM timeline WHERE subscription = ?2",
            (subscription, sync),
        )
        _begin_anew(db, sync)
    return given


def begin_anew(catalog: Catalog, subscription: str) -> None:
    """Reset the tablesync worker: all its tables are copied again, with another slot."""
    sync = sync_name(subscription)
    with catalog.transaction() as db:
        _begin_anew(db, sync)


def slot_dropped(catalog: Catalog, subscription: str) -> None:
    """The tablesync worker's slot is dropped: delete its rows if it has no tables; keep its conflict counters."""
    sync = sync_name(subscription)
    with catalog.transaction() as db:
        db.execute("UPDATE subscription SET slot_state = NULL WHERE name = ?", (sync,))
        if not catalog.rels(sync):
            db.execute(
                "INSERT INTO conflict (subscription, conflict, count) SELECT ?1, conflict, count FROM conflict "
                "WHERE subscription = ?2 "
                "ON CONFLICT (subscription, conflict) DO UPDATE SET count = count + excluded.count",
                (subscription, sync),
            )
            for table in ("error", "conflict", "prepared", "copy_progress"):
                db.execute(f"DELETE FROM {table} WHERE subscription = ?", (sync,))
            db.execute("DELETE FROM subscription WHERE name = ?", (sync,))


def count_sync_error(catalog: Catalog, subscription: str) -> None:
    """Count an error of the tablesync worker as one of the subscription."""
    with catalog.transaction() as db:
        db.execute("UPDATE subscription SET sync_error_count = sync_error_count + 1 WHERE name = ?", (subscription,))


def _begin_anew(db: sqlite3.Connection, sync: str) -> None:
    for table in ("origin", "batch", "prepared", "rel_column", "timeline", "copied_range"):
        db.execute(f"DELETE FROM {table} WHERE subscription = ?", (sync,))
    db.execute("UPDATE subscription SET slot_state = ? WHERE name = ?", (DROPPING, sync))
    db.execute(
        "UPDATE subscription_rel SET state = 'd', lsn = 0, position = 0, first_lsn = 0, waits = NULL, "
        "waits_since = NULL "
        "WHERE subscription = ? AND state <> 'i'",
        (sync,),
    )


def _origin(db: sqlite3.Connection, name: str) -> Lsn | None:
    row = db.execute("SELECT remote_lsn FROM origin WHERE subscription = ?", (name,)).fetchone()
    return None if row is None else Lsn(row[0])


def _delete(db: sqlite3.Connection, owner: str, tables: Iterable[tuple[str, str]]) -> None:
    db.executemany(
        "DELETE FROM subscription_rel WHERE subscription = ? AND namespace = ? AND name = ?",
        [(owner, *table) for table in tables],
    )


def _put(db: sqlite3.Connection, owner: str, rels: Iterable[RelRow]) -> None:
    db.executemany(
        f"INSERT INTO subscription_rel (subscription, {REL_COLUMNS}) VALUES (?, {REL_VALUES})",
        [(owner, *astuple(rel)) for rel in rels],
    )

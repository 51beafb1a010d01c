"""The catalog's part of REFRESH PUBLICATION: what was asked for, and tables that change hands.

Tables that come later are copied and brought up to the stream by a worker of their own, which has the catalog rows
of a subscription (`SYNC`): a slot, an origin, a batch, and the tables as long as they are its. They change hands in
one transaction with whatever says so, so that at any moment each table is of exactly one of the two, or of none.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from protocol.lsn import Lsn

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Sequence

    from bridge.track.catalog import Catalog
    from bridge.track.rows import RelRow

SYNC = ":sync"
"""Ends the name of the catalog's rows for the tables that are being brought in: no subscription's name has a colon."""

DROPPING = "dropping"
"""The `slot_state` of a slot that has done its work; until it is gone, the row stays."""


def sync_name(subscription: str) -> str:
    """The name under which the catalog has the tables of a subscription that are being brought in."""
    return subscription + SYNC


def owner_of(name: str) -> str:
    """The subscription whose tables are under this name."""
    return name.removesuffix(SYNC)


@dataclass(frozen=True, slots=True)
class RefreshRow:
    """One thing that was asked for.

    Attributes:
        number: Grows with each.
        table: (namespace, name) of a table to copy afresh; None for the publications as a whole.
        copy_data: The tables that were added are copied.
    """

    number: int
    table: tuple[str, str] | None
    copy_data: bool


def ask(catalog: Catalog, subscription: str, tables: Iterable[tuple[str, str] | None], *, copy_data: bool) -> None:
    """Record what the worker shall take up; see `RefreshRow.table`."""
    with catalog.transaction() as db:
        db.executemany(
            "INSERT INTO refresh (subscription, namespace, name, copy_data) VALUES (?, ?, ?, ?)",
            [(subscription, *(table or (None, None)), int(copy_data)) for table in tables],
        )


def asked(catalog: Catalog, subscription: str) -> list[RefreshRow]:
    """What is to be taken up, in the order in which it was asked for."""
    with catalog.transaction() as db:
        rows = db.execute(
            "SELECT id, namespace, name, copy_data FROM refresh WHERE subscription = ? ORDER BY id", (subscription,)
        ).fetchall()
    return [
        RefreshRow(number, None if name is None else (namespace, name), bool(copy_data))
        for number, namespace, name, copy_data in rows
    ]


def take_up(
    catalog: Catalog,
    subscription: str,
    up_to: int,
    *,
    bring_in: Sequence[RelRow],
    follow: Sequence[RelRow],
    remove: Collection[tuple[str, str]],
) -> None:
    """What was asked for becomes the tables' states, in one transaction.

    Args:
        catalog: The catalog.
        subscription: Whose tables.
        up_to: The number of the last request this is.
        bring_in: Tables to copy: they leave the subscription, if they are in it, until they are handed over.
        follow: Tables that follow the subscription's stream at once.
        remove: Tables that stop.
    """
    sync = sync_name(subscription)
    with catalog.transaction() as db:
        if bring_in:
            db.execute(
                "INSERT OR IGNORE INTO subscription (name, enabled, configured_enabled) VALUES (?, 1, 1)", (sync,)
            )
        gone = [*remove, *((rel.namespace, rel.name) for rel in bring_in)]
        for owner in (subscription, sync):
            _delete(db, owner, gone)
        _put(db, sync, bring_in)
        _put(db, subscription, follow)
        db.execute("DELETE FROM refresh WHERE subscription = ? AND id <= ?", (subscription, up_to))


def hand_over(catalog: Catalog, subscription: str) -> list[RelRow]:
    """Give what was brought in to the subscription's own stream, if that has not gone past it. One transaction.

    Transactions that end at or before the one origin's LSN are in the tables, and none that ends after it; the
    subscription's stream has no batch beyond the other origin's LSN, and must not run meanwhile. If that is not past
    the first, nothing is lost and nothing applied twice when the stream goes on with these tables from the first on.

    Returns:
        The tables as they are now the subscription's; none when the LSNs do not meet yet. After it the slot is to be
        dropped; tables that are not copied stay, and begin anew.
    """
    sync = sync_name(subscription)
    with catalog.transaction() as db:
        sync_lsn, remote_lsn = (_origin(db, name) for name in (sync, subscription))
        batch = db.execute("SELECT 1 FROM batch WHERE subscription = ?", (sync,)).fetchone()
        if sync_lsn is None or remote_lsn is None or sync_lsn < remote_lsn or batch is not None:
            return []
        given = []
        for rel in catalog.rels(sync):
            if rel.state in "fsr":
                lsn = max(rel.lsn, sync_lsn)
                given.append(replace(rel, lsn=lsn, state="r" if lsn <= remote_lsn else "s"))
        if not given:
            return []
        moved = "SELECT relid FROM rel_column WHERE subscription = ?2"
        db.execute(f"DELETE FROM rel_column WHERE subscription = ?1 AND relid IN ({moved})", (subscription, sync))
        db.execute("UPDATE rel_column SET subscription = ?1 WHERE subscription = ?2", (subscription, sync))
        _delete(db, sync, [(rel.namespace, rel.name) for rel in given])
        _put(db, subscription, given)
        _begin_anew(db, sync)
    return given


def begin_anew(catalog: Catalog, subscription: str) -> None:
    """Forget how far the tables that are being brought in have come: all are copied again, under another slot."""
    sync = sync_name(subscription)
    with catalog.transaction() as db:
        _begin_anew(db, sync)


def slot_dropped(catalog: Catalog, subscription: str) -> None:
    """The slot is gone; without tables that are to be brought in, so are the catalog's rows. Conflicts are kept."""
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
    """Count an error of the tables that are being brought in as one of the subscription."""
    with catalog.transaction() as db:
        db.execute("UPDATE subscription SET sync_error_count = sync_error_count + 1 WHERE name = ?", (subscription,))


def _begin_anew(db: sqlite3.Connection, sync: str) -> None:
    for table in ("origin", "batch", "prepared", "rel_column"):
        db.execute(f"DELETE FROM {table} WHERE subscription = ?", (sync,))
    db.execute("UPDATE subscription SET slot_state = ? WHERE name = ?", (DROPPING, sync))
    db.execute("UPDATE subscription_rel SET state = 'd', lsn = 0 WHERE subscription = ? AND state <> 'i'", (sync,))


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
        "INSERT INTO subscription_rel (subscription, namespace, name, state, lsn, path, relid) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(owner, *astuple(rel)) for rel in rels],
    )

"""The part of the catalog that `status` shows, and that recovery does not need.

Conflict counters are those of pg_stat_subscription_stats, the progress of copies is that of pg_stat_progress_copy. The
published tables that are left out, with the reasons, are pgbridge's own.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from bridge.track.catalog_rows import CopyRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from bridge.track.catalog import Catalog

    Name = tuple[str, str]


def count_conflicts(catalog: Catalog, subscription: str, counts: Mapping[str, int]) -> None:
    """Add to the conflict counters, by the conflicts' names."""
    with catalog.transaction() as db:
        db.executemany(
            "INSERT INTO conflict (subscription, conflict, count) VALUES (?1, ?2, ?3) "
            "ON CONFLICT (subscription, conflict) DO UPDATE SET count = count + ?3",
            [(subscription, conflict, count) for conflict, count in counts.items()],
        )


def conflicts(catalog: Catalog, subscription: str) -> dict[str, int]:
    """The conflict counters by the conflicts' names, without those that are 0."""
    rows = catalog.rows("SELECT conflict, count FROM conflict WHERE subscription = ? ORDER BY conflict", subscription)
    return dict(rows)


def put_copies(catalog: Catalog, subscription: str, copies: Iterable[CopyRow]) -> None:
    """Record the progress of all copies that a subscription is making."""
    with catalog.transaction() as db:
        db.execute("DELETE FROM copy_progress WHERE subscription = ?", (subscription,))
        rows = [(subscription, *astuple(copy)) for copy in copies]
        db.executemany("INSERT INTO copy_progress VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def copies(catalog: Catalog, subscription: str) -> list[CopyRow]:
    """The copies that were recorded last, by the tables' names."""
    columns = "namespace, name, rows, bytes, total_bytes_estimate, rows_per_s, seconds_left"
    rows = catalog.rows(f"SELECT {columns} FROM copy_progress WHERE subscription = ? ORDER BY 1, 2", subscription)
    return [CopyRow(*row) for row in rows]


def put_left_out(catalog: Catalog, subscription: str, reasons: Mapping[Name, str]) -> list[Name]:
    """Replace the list of tables that are left out; return those that are new in it, or have another reason."""
    with catalog.transaction() as db:
        before = _left_out(db, subscription)
        db.execute("DELETE FROM left_out WHERE subscription = ?", (subscription,))
        db.executemany(
            "INSERT INTO left_out (subscription, namespace, name, reason) VALUES (?, ?, ?, ?)",
            [(subscription, *name, reason) for name, reason in reasons.items()],
        )
    return [name for name, reason in reasons.items() if before.get(name) != reason]


def left_out(catalog: Catalog, subscription: str) -> dict[Name, str]:
    """The tables that are left out, and why, by (namespace, name), in their order."""
    with catalog.transaction() as db:
        return _left_out(db, subscription)


def _left_out(db: sqlite3.Connection, subscription: str) -> dict[Name, str]:
    rows = db.execute(
        "SELECT namespace, name, reason FROM left_out WHERE subscription = ? ORDER BY 1, 2", (subscription,)
    )
    return {(namespace, name): reason for namespace, name, reason in rows}

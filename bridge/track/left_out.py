"""The catalog's part of tables that are published and left out: which, and why, for `status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from bridge.track.catalog import Catalog

    Name = tuple[str, str]


def put(catalog: Catalog, subscription: str, reasons: Mapping[Name, str]) -> list[Name]:
    """Write down all that are left out now; returns those that were not, or for another reason."""
    with catalog.transaction() as db:
        before = _left_out(db, subscription)
        db.execute("DELETE FROM left_out WHERE subscription = ?", (subscription,))
        db.executemany(
            "INSERT INTO left_out (subscription, namespace, name, reason) VALUES (?, ?, ?, ?)",
            [(subscription, *name, reason) for name, reason in reasons.items()],
        )
    return [name for name, reason in reasons.items() if before.get(name) != reason]


def left_out(catalog: Catalog, subscription: str) -> dict[Name, str]:
    """The reasons by (namespace, name), sorted."""
    with catalog.transaction() as db:
        return _left_out(db, subscription)


def _left_out(db: sqlite3.Connection, subscription: str) -> dict[Name, str]:
    rows = db.execute(
        "SELECT namespace, name, reason FROM left_out WHERE subscription = ? ORDER BY 1, 2", (subscription,)
    )
    return {(namespace, name): reason for namespace, name, reason in rows}

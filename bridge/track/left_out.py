"""The catalog's list of published tables that are left out, with the reasons, for `status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from bridge.track.catalog import Catalog

    Name = tuple[str, str]


def put(catalog: Catalog, subscription: str, reasons: Mapping[Name, str]) -> list[Name]:
    """Replace the list; return the tables that are new in it, or have another reason."""
    with catalog.transaction() as db:
        before = _left_out(db, subscription)
        db.execute("DELETE FROM left_out WHERE subscription = ?", (subscription,))
        db.executemany(
            "INSERT INTO left_out (subscription, namespace, name, reason) VALUES (?, ?, ?, ?)",
            [(subscription, *name, reason) for name, reason in reasons.items()],
        )
    return [name for name, reason in reasons.items() if before.get(name) != reason]


def left_out(catalog: Catalog, subscription: str) -> dict[Name, str]:
    """The reasons by (namespace, name), in their order."""
    with catalog.transaction() as db:
        return _left_out(db, subscription)


def _left_out(db: sqlite3.Connection, subscription: str) -> dict[Name, str]:
    rows = db.execute(
        "SELECT namespace, name, reason FROM left_out WHERE subscription = ? ORDER BY 1, 2", (subscription,)
    )
    return {(namespace, name): reason for namespace, name, reason in rows}

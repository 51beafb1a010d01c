"""The publisher's timeline that a subscription's origin is on, in the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.track.catalog import Catalog


def timeline(catalog: Catalog, subscription: str) -> int | None:
    """The timeline; None when it is not known."""
    with catalog.transaction() as db:
        row = db.execute("SELECT timeline FROM subscription WHERE name = ?", (subscription,)).fetchone()
    return None if row is None else row[0]


def set_timeline(catalog: Catalog, subscription: str, number: int | None) -> None:
    """Record the timeline; WAL that the origin passes from now on belongs to it."""
    with catalog.transaction() as db:
        db.execute("UPDATE subscription SET timeline = ? WHERE name = ?", (number, subscription))

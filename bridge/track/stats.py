"""The part of the catalog that PostgreSQL shows in its statistics views; `status` shows it, recovery does not need it.

Conflict counters are those of pg_stat_subscription_stats, the progress of copies is that of pg_stat_progress_copy.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from bridge.track.catalog_rows import CopyRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bridge.track.catalog import Catalog


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

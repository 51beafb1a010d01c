"""The catalog's part of maintenance: which tables were maintained when, and an OPTIMIZE that may not be on disk.

An OPTIMIZE has no batch, so nothing would undo it after a power cut between its commit and the flush: Delta's log would
name files whose data is lost, in place of files that were durable. So its table and the version before it are recorded
first, and dropped once it is flushed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog.catalog import Catalog, boot_id
from pgbridge.bridge.catalog.held import ahead_of_origin
from pgbridge.bridge.runtime.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class MaintainedRow:
    """The record of a table's maintenance.

    Attributes:
        since_s: When it was first looked at, in seconds since 1970.
        files: The number of its data files, as last measured.
        optimized_s: When it was last optimized; None for never.
        error: The last attempt's error; None if it succeeded.
    """

    since_s: float
    files: int = 0
    optimized_s: float | None = None
    vacuumed_s: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class OptimizeIntent:
    """An OPTIMIZE that was begun and is not known to be on disk.

    Attributes:
        version: Its version before.
        doubtful: What it wrote is not to be relied on: the machine was rebooted since, or a flush was begun and has not
            succeeded (see `BatchIntent`).
    """

    path: str
    version: int
    doubtful: bool = field(default=False, compare=False)


def put(catalog: Catalog, subscription: str, path: str, row: MaintainedRow) -> None:
    """Record what is known of a table."""
    with catalog.transaction() as db:
        db.execute(
            "INSERT OR REPLACE INTO maintenance (subscription, path, since, files, optimized, vacuumed, error) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (subscription, path, row.since_s, row.files, row.optimized_s, row.vacuumed_s, row.error),
        )


def rows(catalog: Catalog, subscription: str) -> Mapping[str, MaintainedRow]:
    """Return the records of the subscription's tables, by path."""
    rows = catalog.rows(
        "SELECT path, since, files, optimized, vacuumed, error FROM maintenance WHERE subscription = ?", subscription
    )
    return {path: MaintainedRow(*row) for path, *row in rows}


def begin(catalog: Catalog, subscription: str, intent: OptimizeIntent) -> bool:
    """Record an OPTIMIZE before it is begun; returns False, with nothing recorded, if a batch is under way."""
    with catalog.transaction() as db:
        begun = db.execute(
            "INSERT INTO optimizing (subscription, path, version, boot_id) SELECT ?1, ?2, ?3, ?4 "
            "WHERE NOT EXISTS (SELECT 1 FROM batch WHERE subscription = ?1)",
            (subscription, intent.path, intent.version, boot_id()),
        )
    return begun.rowcount > 0


def begin_flush(catalog: Catalog, subscription: str) -> None:
    """Record that the table is about to be flushed: until `end`, that may have failed."""
    with catalog.transaction() as db:
        db.execute("UPDATE optimizing SET flushing = 1 WHERE subscription = ?", (subscription,))


def standing(catalog: Catalog, subscription: str) -> OptimizeIntent | None:
    """The OPTIMIZE that was begun and has neither ended nor been undone."""
    rows = catalog.rows("SELECT path, version, flushing, boot_id FROM optimizing WHERE subscription = ?", subscription)
    if not rows:
        return None
    path, version, flushing, booted = rows[0]
    return OptimizeIntent(path, version, doubtful=bool(flushing) or booted != boot_id())


def end(catalog: Catalog, subscription: str) -> None:
    """The OPTIMIZE is flushed, or undone and that is flushed."""
    with catalog.transaction() as db:
        db.execute("DELETE FROM optimizing WHERE subscription = ?", (subscription,))


def check_finished(catalog: Catalog, subscription: str) -> None:
    """Check that nothing is unfinished whose undo would revert what a command commits.

    Raises:
        StateError: A batch is, in one of its tables perhaps, or an OPTIMIZE.
    """
    batch = catalog.batch(subscription) or ahead_of_origin(catalog, subscription)
    for what, unfinished in (("a batch", batch), ("an OPTIMIZE", standing(catalog, subscription))):
        if unfinished:
            raise StateError(
                f'subscription "{subscription}" has {what} that was begun and not finished',
                hint="run the daemon until that is finished or undone, stop it, and repeat the command",
            )

"""Fault points: named places where a test can kill the daemon or raise an error. Otherwise they do nothing.

They are where a crash would be worst. Tests go through all points of a list, so a new point is tested at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FAULT_POINTS = (
    "slot_created",  # the slot exists, the catalog does not have its consistent point
    "table_copied",  # a table's rows are in Delta, the catalog still has state d
    "after_receive",  # a whole transaction was received, and nothing is done with it
    "prepare_kept",  # a prepared transaction's spool file is durable, the catalog does not have it
    "batch_begun",  # the intent is in the catalog, nothing is committed
    "table_begun",  # one table of a batch is about to be committed
    "table_committed",  # one table of a batch is committed, others may not be
    "batch_committed",  # all tables are committed, the catalog still has the intent
    "before_confirm",  # the catalog has the origin's LSN, the server does not
)

RANGED_COPY_POINTS = ("range_copied",)  # the catalog has a range of a large table, no version of the table does
"""Fault points of a large table's copy."""

UNDO_POINTS = (
    "undo_begun",  # a batch has failed, the catalog has that it is to be undone
    "table_restored",  # one table is restored, others may not be
    "batch_undone",  # all tables are restored, and the catalog has that
    "skipped_written",  # a skipped transaction's changes are in files, the catalog has it still to come
)
"""Fault points of a transaction that cannot be applied."""

REFRESH_POINTS = (
    "refresh_taken",  # the requests are in the tables' states, and nothing is copied
    "sync_caught_up",  # added tables are at the LSN where the subscription's stream has ended
    "handed_over",  # they follow the subscription's stream, their own slot still exists
    "sync_slot_dropped",  # their slot is dropped, the catalog still has it
    "manifest_written",  # the warehouse has what has changed of the tables, the catalog does not know
)
"""Fault points of added tables, which also reach those of copies and batches."""

SCHEMA_POINTS = (
    "table_waits",  # the catalog has that a table waits for its resync, nothing of the transaction is applied
    "schema_changed",  # one change of a table's columns is committed, others and the batch are not
    "column_filled",  # existing rows have the default of a new column, the batch is not committed
)
"""Fault points of a batch that changes columns."""

LARGE_POINTS = ("vectors_enabled",)  # a large table has deletion vectors from here on, the batch is not committed to it
"""Fault points of the first batch that changes rows of a table that has become large."""

MAINTENANCE_POINTS = (
    "optimize_begun",  # the catalog has that a table is optimized
    "optimized",  # Delta has committed it, and it is not flushed
    "optimize_flushed",  # it is flushed, the catalog still has it
)
"""Fault points of an OPTIMIZE between two batches."""

MAINTENANCE_UNDO_POINTS = ("optimize_undone",)  # a table is restored to before an OPTIMIZE, and it is not flushed
"""Fault points of an OPTIMIZE that may not be on disk."""

RECOVERY_POINTS = ("claimed", "fenced")
"""Fault points of a recovery: its generation has begun; the former owner's batch is kept out of all tables."""


def _nothing(_point: str) -> None:
    """Do nothing: the action unless a test installs another."""


_action: Callable[[str], None] = _nothing


def install(action: Callable[[str], None]) -> None:
    """Set the function that is called with the name of each point that is reached, in the thread that reaches it."""
    globals()["_action"] = action


def reach(point: str) -> None:
    """Call the installed action for a point."""
    _action(point)

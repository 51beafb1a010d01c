"""Named points at which a test may kill or fail the daemon; nothing happens at them otherwise.

A point stands where a crash would be worst. `FAULT_POINTS` lists all of them, so that tests can go through the
list rather than through what somebody thought of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FAULT_POINTS = (
    "slot_created",  # the slot is on the server, the catalog does not know its consistent point
    "table_copied",  # a table's rows are in Delta, the catalog still says it is being copied
    "after_receive",  # a whole transaction was received, nothing else has happened
    "prepare_kept",  # a prepared transaction's spool file is durable, nothing else knows of it
    "batch_begun",  # the intent is in the catalog, nothing is committed
    "table_begun",  # one table of a batch is about to be committed
    "table_committed",  # one table of a batch is committed, others may not be
    "batch_committed",  # all tables are committed, the catalog does not know
    "before_confirm",  # the catalog knows, the server does not
)

UNDO_POINTS = (
    "undo_begun",  # a batch has failed, the catalog knows that it is to be taken back
    "table_restored",  # one table is as before the batch, others may not be
    "batch_undone",  # all tables are as before the batch, the catalog knows
    "skipped_written",  # the changes of a transaction to skip are written down, the catalog says it is still to come
)
"""Points that are reached only where a transaction cannot be applied."""

REFRESH_POINTS = (
    "refresh_taken",  # what was asked for is in the tables' states, nothing of it is begun
    "sync_caught_up",  # tables are where the subscription's stream has stopped, and are not in it yet
    "handed_over",  # they follow the subscription's stream, their own slot is still on the server
    "sync_slot_dropped",  # it is gone, the catalog still has it
)
"""Points that are reached only where tables come later; there also those of the copy and of the batches."""

SCHEMA_POINTS = (
    "schema_changed",  # one change of a target's columns is committed, others and the batch itself are not
    "column_filled",  # rows that exist have the constant of a new column, the batch itself is not committed
)
"""Points that are reached only where a batch changes columns."""


def _nothing(_point: str) -> None:
    """What happens at a point unless a test says otherwise."""


_action: Callable[[str], None] = _nothing


def install(action: Callable[[str], None]) -> None:
    """Have `action` called with the point's name, in the thread that reaches it."""
    globals()["_action"] = action


def reach(point: str) -> None:
    """Mark a point."""
    _action(point)

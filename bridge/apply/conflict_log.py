"""Tells of conflicts where `target.conflict_log_destination` says: in the log, in a Delta table, or in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgbridge.bridge.catalog.catalog_rows import owner_of
from pgbridge.bridge.lake.changes.conflict_rows import ConflictRows, rows_of
from pgbridge.bridge.spark.outcome import is_lost

if TYPE_CHECKING:
    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.apply.stream_events import StreamEvents
    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.bridge.effects.conflicts import Conflicts


class ConflictLog:
    """Tells of one stream's conflicts.

    Args:
        rows: The Delta table; None for the log only.
    """

    def __init__(self, context: Context, events: StreamEvents, rows: ConflictRows | None) -> None:
        self._subscription, self._catalog = context.subscription, context.catalog
        self._events, self._rows = events, rows

    def __call__(self, conflicts: Conflicts, batch: Batch) -> None:
        """Tell of a table's conflicts in a batch. The error that stops a batch tells of its own by itself.

        A conflict that stops the subscription comes again with each try: it is one row as long as it is the same.

        Raises:
            Exception: Spark is lost, before the batch is durable (`is_lost`).
        """
        written = self._rows is not None and self._append(self._rows, conflicts, batch)
        if conflicts.stopped:
            return
        only_there = written and self._subscription.target.conflict_log_destination == "table"
        table = self._rows.path if self._rows is not None and only_there else None
        self._events.conflicts(conflicts, batch.finish_lsn, table)

    def _append(self, table: ConflictRows, conflicts: Conflicts, batch: Batch) -> bool:
        """Append the rows; returns whether they are there. Without them the batch is as good."""
        if conflicts.stopped and self._is_last_error(conflicts, batch):
            return True
        rows = rows_of(
            owner_of(self._subscription.name),
            conflicts,
            xid=batch.xid,
            finish_lsn=batch.finish_lsn,
            commit_time_us=batch.commit_time_us,
        )
        try:
            table.append(rows)
        except Exception as error:  # whatever it was: what has become of the batch matters more
            if conflicts.stopped and is_lost(error):
                raise
            self._events.conflicts_not_written(error)
            return False
        return True

    def _is_last_error(self, conflicts: Conflicts, batch: Batch) -> bool:
        """Whether the same conflict has stopped the subscription the last time."""
        error = self._catalog.last_error(self._subscription.name)
        if error is None or (error.relation, error.finish_lsn) != (conflicts.relation, batch.finish_lsn):
            return False
        told = [conflict for kept in conflicts.kept.values() for conflict in kept]
        return all(text in error.message for conflict in told for text in (conflict.message, conflict.key))


def conflict_rows(context: Context) -> ConflictRows | None:
    """Return the Delta table for conflicts, created if it does not exist; None if none is wanted.

    Raises:
        ConfigError: A published table's Delta table is there.
        TargetError: Another Delta table is.
    """
    destination = context.subscription.target.conflict_log_destination
    if destination == "log":
        return None
    rows = ConflictRows.of(context.spark, context.subscription.warehouse)
    key = f'target.conflict_log_destination = "{destination}"'
    context.check_free(rows.path, key, hint='set target.conflict_log_destination = "log"')
    rows.ensure()
    return rows

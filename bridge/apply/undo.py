"""Settles the batch under way, so that the catalog has none: its tables keep what they have of it, or are restored.

A batch that was cut short is kept. One that cannot be applied, or whose flush failed, is undone: its tables are
restored, its messages are deleted. The catalog records the undo before the first RESTORE. A process that ends in
between undoes the rest at its next start; until then nothing else is applied. `bridge.lake.commit.restore` finds and
reverts the commits. If a flush fails, of the batch's commits or of the undo's, they are reverted so that none of their
log entries matters.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.catalog import catalog_rows, held
from pgbridge.bridge.lake.commit import messages, restore
from pgbridge.bridge.lake.log.commit_info import ANY_LSN
from pgbridge.bridge.lake.table_position import has_committed
from pgbridge.bridge.recovery import manifest_table
from pgbridge.bridge.runtime import errors, faults
from pgbridge.bridge.spark.outcome import summary

if TYPE_CHECKING:
    from collections.abc import Collection

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.lake.log.local_tables import LocalTables
    from pgbridge.protocol.lsn import Lsn


class BatchUndo:
    """Undoes one subscription's batches.

    `messages_path` is the Delta table for logical messages; None for none. The batch under way may have written to
    another one, before the configuration was changed.
    """

    def __init__(self, context: Context, messages_path: str | None, local: LocalTables) -> None:
        self._spark, self._catalog, self._log = context.spark, context.catalog, context.log
        self._subscription = context.name
        self.check_owned = partial(manifest_table.check_owned, context.spark, context.catalog, context.subscription)
        self._messages_path, self._local = messages_path, local

    def undo(self, paths: Collection[str] | None = None) -> None:
        """Take back what the batch under way has committed; does nothing if there is no such batch.

        Args:
            paths: The tables that this process may have committed to. None for all of the batch, by whichever process:
                it may still commit.

        Raises:
            TargetBusy: Another writer's commits kept a table from being restored.
            TargetError: Another writer has changed a table's rows since, or has restored it to before earlier batches.
            StateError: A restored table cannot be flushed.
            TakenOver: What follows the batch's start in the tables is another machine's, by now.
            PySparkException: Spark cannot restore a table.

            After each of these the undo stays recorded, and has to be called again.
        """
        intent = self._catalog.batch(self._subscription)
        if intent is None:
            return
        self.check_owned()
        self._catalog.begin_undo(self._subscription)
        faults.reach("undo_begun")
        batch = self._batch(intent)
        tables, own_messages = self._places(intent, paths)
        restore.restore_tables(
            self._spark,
            tables,
            batch,
            fence=paths is None,
            on_restored=lambda: faults.reach("table_restored"),
            own_messages=own_messages,
            log=self._log,
        )
        self._end([*tables, *(own.path for own in own_messages)])

    def keep(self) -> None:
        """Have tables keep what they have beyond the origin; the catalog has no batch under way afterwards.

        The batch was cut short. Tables that lack it get its transactions again, perhaps in other batches: so a commit
        that comes late, of a Spark that lives on, is kept out of them. Messages have no position in their table: what
        is beyond the origin is deleted, and comes again.

        Raises:
            TargetBusy: Another writer's commits were in the way.
            StateError: A table cannot be flushed; the batch is to be undone then.
            PySparkException: Spark cannot commit.
        """
        intent, remote_lsn = self._catalog.batch(self._subscription), self._catalog.remote_lsn(self._subscription)
        if remote_lsn is None or (intent is None and not held.ahead_of_origin(self._catalog, self._subscription)):
            return
        self.check_owned()
        batch = self._batch(intent or catalog_rows.BatchIntent(remote_lsn, ANY_LSN))
        tables: Collection[str] = ()
        if intent is not None:
            tables = self._places(intent, None)[0]
            for path in tables:
                if not has_committed(self._spark, path, batch.app_id, intent.end_lsn):
                    restore.fence_table(self._spark, path, batch.fence, log=self._log)
        own_messages = [
            messages.BatchRows(path, self._subscription, remote_lsn, ANY_LSN) for path in self._of_messages(intent)
        ]
        restore.restore_tables(
            self._spark,
            {},
            batch,
            fence=intent is not None,
            on_restored=lambda: None,
            own_messages=own_messages,
            log=self._log,
        )
        # also without a batch: messages that were deleted come again, and Delta must not leave them out
        self._end([*tables, *(own.path for own in own_messages)])

    def bring_back(self) -> bool:
        """Take back what tables have of batches beyond the origin, because a transaction there is to be skipped.

        Returns whether a table had any. Then the stream has to begin again, at the origin.
        """
        ahead = held.ahead_of_origin(self._catalog, self._subscription)
        remote_lsn = self._catalog.remote_lsn(self._subscription)
        if not ahead or remote_lsn is None:
            return False
        intent = catalog_rows.BatchIntent(
            remote_lsn, max(rel.position for rel in ahead), tables=tuple(rel.path for rel in ahead)
        )
        self._catalog.begin_batch(self._subscription, intent, forget_positions=True)
        self.undo()
        return True

    def _batch(self, intent: catalog_rows.BatchIntent) -> restore.UndoneBatch:
        row = self._catalog.subscription(self._subscription)
        assert row is not None  # noqa: S101 - a batch has a subscription
        return restore.UndoneBatch(row.batch_app_id, intent.start_lsn, intent.end_lsn, intent.flushing)

    def _places(
        self, intent: catalog_rows.BatchIntent, paths: Collection[str] | None
    ) -> tuple[dict[str, Lsn], list[messages.BatchRows]]:
        """The tables of a batch, or those at these paths, with their positions before it; and its messages."""
        of_messages = self._of_messages(intent)
        # a copy, or an earlier attempt, may have brought a table beyond the batch's start
        positions = {rel.path: max(rel.whole_lsn, intent.start_lsn) for rel in self._catalog.rels(self._subscription)}
        if paths is None:
            # an earlier version did not record them
            paths = {*(positions if intent.tables is None else intent.tables), *of_messages}
        own_messages = [
            messages.BatchRows(path, self._subscription, intent.start_lsn, intent.end_lsn)
            for path in of_messages.intersection(paths)
        ]
        return {path: positions.get(path, intent.start_lsn) for path in paths if path not in of_messages}, own_messages

    def _of_messages(self, intent: catalog_rows.BatchIntent | None) -> set[str]:
        paths = (self._messages_path, intent.messages_path if intent is not None else None)
        return {path for path in paths if path is not None}

    def _end(self, paths: Collection[str]) -> None:
        """Flush the tables, and drop the batch."""
        self._local.flush(paths, lambda: self._catalog.begin_flush(self._subscription))
        self._catalog.drop_batch(self._subscription)
        faults.reach("batch_undone")

    def undo_after(self, error: errors.ApplyError, paths: Collection[str]) -> None:
        """Undo a batch that failed; if that fails, too, raise the batch's error with the other one as its DETAIL."""
        try:
            self.undo(paths)
        except errors.TakenOver:
            raise
        except Exception as failed:  # noqa: BLE001 - whatever it was, both are told, and the undo is recorded
            raise errors.ApplyError(
                f"{error.message}\nDETAIL:  the batch's other commits are not undone yet: {summary(failed)}",
                error.context,
                hint=error.hint,
            ) from error

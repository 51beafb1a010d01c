"""Undoes the batch under way: its tables are restored, its messages are deleted, and the catalog has no batch.

The catalog records the undo before the first RESTORE. A process that ends in between undoes the rest at its next start;
until then nothing else is applied. `bridge.apply.delta.restore` finds and reverts the commits. If a flush fails, of the
batch's commits or of the undo's, they are reverted so that none of their log entries matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge import faults
from bridge.apply.delta import messages, restore
from bridge.apply.delta.spark_errors import summary
from bridge.errors import ApplyError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from bridge.apply.delta.durable import LocalTables
    from bridge.track.catalog import Catalog


class BatchUndo:
    """Undoes one subscription's batches.

    Args:
        spark: A session of the subscription's own.
        catalog: Has the intent of the batch under way.
        subscription: The subscription's name.
        messages_path: The Delta table for logical messages; None for none. The batch under way may have written to
            another one, before the configuration was changed.
        local: Flushes the tables that are local.
        log: The subscription's logger.
    """

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        *,
        subscription: str,
        messages_path: str | None,
        local: LocalTables,
        log: FilteringBoundLogger,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._subscription = subscription
        self._messages_path = messages_path
        self._local = local
        self._log = log

    def undo(self, paths: Collection[str] | None = None, *, fence: bool = False) -> None:
        """Take back what the batch under way has committed; does nothing if there is no such batch.

        Args:
            paths: The tables it may have committed to; None for all of the subscription.
            fence: An earlier attempt may have committed to any table of the subscription, because the configuration or
                the publications were others, and it may still commit (see `restore.UndoneBatch`).

        Raises:
            TargetBusy: Another writer's commits kept a table from being restored.
            TargetError: Another writer has changed a table's rows since, or has restored it to before earlier batches.
            StateError: A restored table cannot be flushed.
            PySparkException: Spark cannot restore a table.

            After each of these the undo stays recorded, and has to be called again.
        """
        intent = self._catalog.batch(self._subscription)
        if intent is None:
            return
        of_messages = {path for path in (self._messages_path, intent.messages_path) if path is not None}
        if paths is None or fence:
            paths = {*(paths or ()), *(rel.path for rel in self._catalog.rels(self._subscription)), *of_messages}
        own_messages = [
            messages.BatchRows(path, self._subscription, intent.start_lsn, intent.end_lsn)
            for path in of_messages.intersection(paths)
        ]
        self._catalog.begin_undo(self._subscription)
        faults.reach("undo_begun")
        row = self._catalog.subscription(self._subscription)
        assert row is not None  # noqa: S101 - a batch has a subscription
        restore.restore_tables(
            self._spark,
            [path for path in paths if path not in of_messages],
            restore.UndoneBatch(row.batch_app_id, intent.end_lsn, fence, intent.flushing),
            on_restored=lambda: faults.reach("table_restored"),
            own_messages=own_messages,
            log=self._log,
        )
        self._local.flush(paths, lambda: self._catalog.begin_flush(self._subscription))
        self._catalog.finish_undo(self._subscription)
        faults.reach("batch_undone")

    def undo_after(self, error: ApplyError, paths: Collection[str], *, fence: bool) -> None:
        """Undo a batch that failed.

        Raises:
            ApplyError: The undo failed too: the batch's error, with that one as its DETAIL.
        """
        try:
            self.undo(paths, fence=fence)
        except Exception as failed:  # noqa: BLE001 - whatever it was, both are told, and the undo is recorded
            raise ApplyError(
                f"{error.message}\nDETAIL:  the batch's other commits are not undone yet: {summary(failed)}",
                error.context,
                hint=error.hint,
            ) from error

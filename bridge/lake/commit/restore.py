"""Reverts a batch's commits: restores each table, with its columns, to the version before the first of them.

The tables' histories tell what a batch has committed, because each commit's user metadata names its batch; so it does
not matter whether Spark answered. RESTORE is a commit too: a table that was restored before, by an undo that was cut
short or by hand, does not have the batch any more. The table of logical messages is not restored, because it may serve
several subscriptions: the batch's own rows are deleted.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pgbridge.bridge.lake.commit import messages
from pgbridge.bridge.lake.log.stamp import TABLES_AT_ONCE, CommitStamp, stamped
from pgbridge.bridge.lake.retry import retry_commit
from pgbridge.bridge.lake.table import written_schema
from pgbridge.bridge.lake.table_position import history_of
from pgbridge.bridge.lake.writes import commit_nothing, write_checkpoint
from pgbridge.bridge.targets.location import sql_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.lake.log.history import History
    from pgbridge.protocol.lsn import Lsn


@dataclass(frozen=True, slots=True)
class UndoneBatch:
    """The batch whose commits are reverted.

    Attributes:
        doubtful: A flush of its commits, or of an earlier undo of them, may have failed: a power cut may lose their log
            entries yet. So a checkpoint follows, with which they do not matter.
    """

    app_id: str
    start_lsn: Lsn
    end_lsn: Lsn
    doubtful: bool = False

    @property
    def fence(self) -> CommitStamp:
        """The stamp of an empty commit that keeps out a late one of the batch: Delta refuses it.

        The batch may be of a process that was killed, or of an attempt that Spark did not answer, and Spark may still
        be committing.
        """
        return CommitStamp(self.app_id, self.start_lsn, self.end_lsn, fences=True)

    @property
    def undo(self) -> CommitStamp:
        """The stamp of an undo, for what Delta can refuse of it: the DELETE of messages."""
        return CommitStamp(self.app_id, self.start_lsn, self.end_lsn, fences=True, undo_number=time.time_ns() // 1000)

    def version(self, history: History, position: Lsn) -> int | None:
        """The version to restore, to bring a table back to where it was before the batch; None if it does not have it.

        Raises:
            TargetError: Another writer has changed rows after the batch's commit.
            TakenOver: What is beyond the position is another machine's.
        """
        first = history.first_beyond(position)
        if first is None:
            return None
        history.check_owned(self.app_id)  # all since the batch began was read
        return first - 1

    def settle(self, spark: SparkSession, path: str, *, had_it: bool) -> None:
        """Have a checkpoint follow, if the batch is doubtful, and the table has had commits of it, undone or not."""
        if self.doubtful and had_it:
            write_checkpoint(spark, path)


def restore_tables(
    spark: SparkSession,
    tables: Mapping[str, Lsn],
    batch: UndoneBatch,
    *,
    fence: bool,
    on_restored: Callable[[], None],
    own_messages: Iterable[messages.BatchRows] = (),
    log: FilteringBoundLogger | None = None,
) -> None:
    """Restore tables to where they were before a batch, where they have commits of it.

    Args:
        spark: The caller's own session: the commits' user metadata is a setting of the session.
        tables: The position of each Delta table before the batch; one that does not exist is ignored.
        fence: An earlier process, or a Spark that did not answer, may still commit it.
        on_restored: Called after each RESTORE, and after the DELETE of messages.
        own_messages: The batch's rows in tables of logical messages, where it may have some.

    Raises:
        TargetBusy: Concurrent commits made every attempt fail; the undo has to be called again.
        TargetError: Another writer has changed rows after the batch's commit, which would be lost; or has restored a
            table to before earlier batches.
    """

    def restore(path: str, position: Lsn) -> None:
        history = history_of(spark, path)
        version = batch.version(history, position)
        if version is not None:
            spark.sql(f"RESTORE TABLE {sql_name(path)} TO VERSION AS OF {version}").collect()
            _bring_back(spark, path)
        batch.settle(spark, path, had_it=history.has_after(position))
        if version is not None:
            on_restored()

    def delete(own: messages.BatchRows) -> None:
        deleted = messages.delete(spark, own)
        batch.settle(spark, own.path, had_it=True)
        if deleted:
            on_restored()

    def part(path: str, what: Callable[[], None]) -> None:
        if fence:
            fence_table(spark, path, batch.fence, log=log)
        retry_commit(what, path, log)

    with stamped(spark, batch.undo), ThreadPoolExecutor(TABLES_AT_ONCE, "undo") as pool:
        parts = [pool.submit(part, path, partial(restore, path, position)) for path, position in tables.items()]
        parts += [pool.submit(part, own.path, partial(delete, own)) for own in own_messages]
    for future in parts:
        future.result()


def fence_table(spark: SparkSession, path: str, *fences: CommitStamp, log: FilteringBoundLogger | None = None) -> None:
    """Keep late commits out of a table, if it exists, by empty ones with their stamps."""
    if (schema := written_schema(spark, path)) is not None:
        retry_commit(partial(commit_nothing, spark, path, schema, *fences), path, log)


def _bring_back(spark: SparkSession, path: str) -> None:
    """Bring back what another writer committed between the look at the history and the RESTORE, which reverted it.

    Raises:
        TargetError: There was such a commit: the batch cannot be undone any more.
    """
    history = history_of(spark, path)
    undo = history.last_undo()
    lost = None if undo is None else history.reverted_by(undo)
    if undo is not None and undo.restored is not None and lost is not None:
        if undo.version != history.latest:  # another RESTORE would revert what came since
            raise history.reverted(undo, lost)
        spark.sql(f"RESTORE TABLE {sql_name(path)} TO VERSION AS OF {undo.version - 1}").collect()
        raise history.would_be_lost(undo.restored + 1, lost)

"""Reverts a batch's commits: restores each table, with its columns, to the version before the first of them.

The tables' histories tell what a batch has committed, because each commit's user metadata names its batch; so it does
not matter whether Spark answered. RESTORE is a commit too: a table that was restored before, by an undo that was cut
short or by hand, does not have the batch any more. The table of logical messages is not restored, because it may serve
several subscriptions: the batch's own rows are deleted.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bridge.apply.delta import messages
from bridge.apply.delta.append import commit_nothing
from bridge.apply.delta.commit_retry import retry_commit
from bridge.apply.delta.delta_table import schema_of
from bridge.apply.delta.history import History
from bridge.apply.delta.log_commits import described_commits
from bridge.apply.delta.stamp import TABLES_AT_ONCE, USER_METADATA, CommitStamp
from bridge.apply.target.location import sql_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from protocol.lsn import Lsn


@dataclass(frozen=True, slots=True)
class UndoneBatch:
    """The batch whose commits are reverted.

    Attributes:
        app_id: Delta's application id.
        end_lsn: The batch's end.
        fence: It is of a process that was killed, or of an attempt that Spark did not answer: Spark may still be
            committing. An empty commit with the batch's stamp keeps such a commit out: Delta refuses it.
        doubtful: A flush of its commits, or of an earlier undo of them, may have failed (see `History.doubtful_of`). Of
            the table of logical messages, a DELETE that was made already is not repeated.
    """

    app_id: str
    end_lsn: Lsn
    fence: bool = False
    doubtful: bool = False

    @property
    def mark(self) -> str:
        """The user metadata of the undo's own commits."""
        return json.dumps({"pgbridge": {"origin": self.app_id, "end_lsn": str(self.end_lsn), "undone": True}})

    def versions(self, history: History) -> list[int]:
        """The versions to restore one after the other; none if the table has none of its commits."""
        if self.doubtful:
            return history.doubtful_of(self.app_id, self.end_lsn)
        first = history.first_of(self.app_id, self.end_lsn)
        return [] if first is None else [first - 1]


def restore_tables(
    spark: SparkSession,
    paths: Iterable[str],
    batch: UndoneBatch,
    *,
    on_restored: Callable[[], None],
    own_messages: Iterable[messages.BatchRows] = (),
    log: FilteringBoundLogger | None = None,
) -> None:
    """Restore tables to the version before a batch's first commit, where they have one.

    Args:
        spark: The caller's own session: the commits' user metadata is a setting of the session.
        paths: Delta tables; one that does not exist is ignored.
        batch: The batch.
        on_restored: Called after each RESTORE, and after the DELETE of messages.
        own_messages: The batch's rows in tables of logical messages, where it may have some.
        log: Where concurrent commits are logged.

    Raises:
        TargetBusy: Concurrent commits made every attempt fail; the undo has to be called again.
        TargetError: Another writer has changed rows after the batch's commit, which would be lost; or has restored a
            table to before earlier batches.
    """
    stamp = CommitStamp(batch.app_id, batch.end_lsn, batch.end_lsn)

    def keep_out(path: str) -> None:
        if batch.fence and (schema := schema_of(spark, path)) is not None:
            retry_commit(lambda: commit_nothing(spark, path, schema, stamp), path, log)

    def restore(path: str) -> None:
        for version in batch.versions(History(path, lambda latest: described_commits(spark, path, latest))):
            spark.sql(f"RESTORE TABLE {sql_name(path)} TO VERSION AS OF {version}").collect()
            on_restored()

    def delete(own: messages.BatchRows) -> None:
        if messages.delete(spark, own):
            on_restored()

    def part(path: str, what: Callable[[], None]) -> None:
        keep_out(path)
        retry_commit(what, path, log)

    spark.conf.set(USER_METADATA, batch.mark)
    try:
        with ThreadPoolExecutor(TABLES_AT_ONCE, "undo") as pool:
            parts = [pool.submit(part, path, partial(restore, path)) for path in paths]
            parts += [pool.submit(part, own.path, partial(delete, own)) for own in own_messages]
        for one in parts:
            one.result()
    finally:
        spark.conf.unset(USER_METADATA)

"""Takes back a batch's commits: each table as it was before, with its columns, by Delta's RESTORE.

What a batch has committed is found in the tables' histories, where every commit names its batch: it does not matter
whether the answer to a commit came. RESTORE is a commit too; a table that was restored already, by an undo that was cut
short or by hand, does not have the batch any more. The table of logical messages may serve several subscriptions, and
is not restored: the batch's own rows are deleted.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from bridge.apply.delta import messages
from bridge.apply.delta.append import commit_nothing
from bridge.apply.delta.commit_retry import in_place
from bridge.apply.delta.delta_table import schema_of
from bridge.apply.delta.history import Commit, History
from bridge.apply.delta.stamp import TABLES_AT_ONCE, USER_METADATA, CommitStamp
from bridge.apply.target.target import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from protocol.lsn import Lsn


def take_back(
    spark: SparkSession,
    paths: Iterable[str],
    app_id: str,
    end_lsn: Lsn,
    *,
    taken_back: Callable[[], None],
    own_messages: messages.Own | None = None,
    fence: bool = False,
    log: FilteringBoundLogger | None = None,
) -> None:
    """Restore tables to the version before a batch's first commit, where they have one.

    Args:
        spark: The caller's own session: the metadata of the commits is a setting of it.
        paths: Delta tables; where there is none, there is nothing to take back.
        app_id: Delta's application id of the batch.
        end_lsn: The batch's end.
        taken_back: Called after each restored table.
        own_messages: The batch's rows in the table of logical messages, if it may have some there.
        fence: The batch is of a process that was killed, or of a try whose answer did not come: Spark may still be at
            a commit. Keep it out, by an empty commit under the batch's stamp: Delta refuses one that began before.
        log: Where it is logged that others' commits came in the way.

    Raises:
        TargetBusy: Others' commits came in the way of all tries; the undo has to be called again.
        TargetError: Somebody has changed rows after the batch's commit, which would be lost; or has restored a table
            to where earlier batches are lost.
    """
    mark = {"pgbridge": {"origin": app_id, "end_lsn": str(end_lsn), "undone": True}}
    stamp = CommitStamp(app_id, end_lsn, end_lsn)

    def keep_out(path: str) -> None:
        if fence and (schema := schema_of(spark, path)) is not None:
            in_place(lambda: commit_nothing(spark, path, schema, stamp), path, log)

    def restore(path: str) -> None:
        version = History(path, lambda latest: _commits(spark, path, latest)).first_of(app_id, end_lsn)
        if version is not None:
            spark.sql(f"RESTORE TABLE delta.{quoted(path)} TO VERSION AS OF {version - 1}").collect()
            taken_back()

    def delete(own: messages.Own) -> None:
        if messages.delete(spark, own):
            taken_back()

    def part(path: str, what: Callable[[], None]) -> None:
        keep_out(path)
        in_place(what, path, log)

    spark.conf.set(USER_METADATA, json.dumps(mark))
    try:
        with ThreadPoolExecutor(TABLES_AT_ONCE, "undo") as pool:
            parts = [pool.submit(part, path, partial(restore, path)) for path in paths]
            if own_messages is not None:
                parts.append(pool.submit(part, own_messages.path, partial(delete, own_messages)))
        for one in parts:
            one.result()
    finally:
        spark.conf.unset(USER_METADATA)


def _commits(spark: SparkSession, path: str, latest: int) -> Sequence[Commit]:
    """A table's latest commits, the latest first; none where there is no table."""
    try:
        rows = spark.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT {latest}").collect()
    except AnalysisException:
        if schema_of(spark, path) is None:
            return ()
        raise
    return [Commit.of(row) for row in rows]

"""Takes back a batch's commits: each table as it was before, with its columns, by Delta's RESTORE.

What a batch has committed is found in the tables' histories, where every commit names its batch: it does not matter
whether the answer to a commit came. RESTORE is a commit too and says what it is; one that is there already is not made
again, so that an undo can itself be cut short.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from bridge.apply.delta import TABLES_AT_ONCE, USER_METADATA, CommitStamp, append_nothing, schema_of
from bridge.apply.target import quoted
from bridge.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from protocol.lsn import Lsn

_LOOKED_AT = 50
"""How many commits of others, after a batch's, are looked through: maintenance, for the most part."""

_KEEP_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "COMPUTE STATS", "REORG"})
"""Operations after which the rows are the same: nothing is lost when they are taken back too."""


def take_back(
    spark: SparkSession,
    paths: Iterable[str],
    app_id: str,
    end_lsn: Lsn,
    *,
    taken_back: Callable[[], None],
    fence: bool = False,
) -> None:
    """Restore tables to the version before a batch's first commit, where they have one.

    Args:
        spark: The caller's own session: the metadata of the commits is a setting of it.
        paths: Delta tables; where there is none, there is nothing to take back.
        app_id: Delta's application id of the batch.
        end_lsn: The batch's end.
        taken_back: Called after each restored table.
        fence: The batch is of a process that was killed, whose Spark may still be at a commit: keep it out, by an empty
            commit under the batch's stamp, so that Delta refuses one that began before.

    Raises:
        TargetError: Somebody has changed rows after the batch's commit; they would be lost.
    """
    mark = {"pgbridge": {"origin": app_id, "end_lsn": str(end_lsn), "undone": True}}

    stamp = CommitStamp(app_id, end_lsn, end_lsn)

    def restore(path: str) -> None:
        if fence and (schema := schema_of(spark, path)) is not None:
            append_nothing(spark, path, schema, stamp)
        version = _version_of(spark, path, app_id, end_lsn)
        if version is not None:
            spark.sql(f"RESTORE TABLE delta.{quoted(path)} TO VERSION AS OF {version - 1}").collect()
            taken_back()

    spark.conf.set(USER_METADATA, json.dumps(mark))
    try:
        with ThreadPoolExecutor(TABLES_AT_ONCE, "undo") as pool:
            restored = [pool.submit(restore, path) for path in paths]
        for table in restored:
            table.result()
    finally:
        spark.conf.unset(USER_METADATA)


def _version_of(spark: SparkSession, path: str, app_id: str, end_lsn: Lsn) -> int | None:
    """The first version that the batch committed; None where there is none, or where it is taken back already."""
    looked_at = _LOOKED_AT
    while True:
        try:
            history = spark.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT {looked_at}").collect()
        except AnalysisException:
            if schema_of(spark, path) is None:
                return None
            raise
        own, others = _commits_of(history, app_id, end_lsn)
        if not own or own[-1] is not history[-1] or len(history) < looked_at:
            break
        looked_at *= 2  # it may have begun before that
    if not own:
        return None
    first = own[-1]
    if others:
        later = others[-1]
        raise TargetError(
            f"{path}: version {first.version} cannot be taken back, because version {later.version} "
            f"({later.operation}) was written after it by somebody else",
            hint=f"look at DESCRIBE HISTORY delta.`{path}`, and RESTORE the table to version "
            f"{first.version - 1} yourself; what was written since has to be written again",
        )
    return int(first.version)


def _commits_of(history: list[Any], app_id: str, end_lsn: Lsn) -> tuple[list[Any], list[Any]]:
    """A batch's commits, and others' after its first one that may have changed rows; the latest first."""
    own: list[Any] = []
    others: list[Any] = []
    waiting: list[Any] = []
    for commit in history:
        mark = _mark(commit.userMetadata)
        if mark.get("origin") != app_id:
            if commit.operation not in _KEEP_ROWS:
                waiting.append(commit)
            continue
        if mark.get("end_lsn") != str(end_lsn) or mark.get("undone"):
            break  # of the batch before it; or it is taken back, and what is before that was
        own.append(commit)
        others += waiting
        waiting = []
    return own, others


def _mark(user_metadata: str | None) -> dict[str, Any]:
    """What a commit says of its batch; empty for others' commits."""
    try:
        document = json.loads(user_metadata or "{}")
    except ValueError:
        return {}
    mark = document.get("pgbridge") if isinstance(document, dict) else None
    return mark if isinstance(mark, dict) else {}

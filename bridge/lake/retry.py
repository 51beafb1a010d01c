"""Retries a commit that Delta refused because of another writer's concurrent commit.

Delta refuses a commit if another one, made since it read the table, could have changed what it read: mostly an OPTIMIZE
that rewrote the files of a MERGE. Nothing is committed then, and nothing is wrong with the changes. The other commit
may also be of the same batch, by the Spark of a killed daemon: then Delta leaves out the retry by its stamp.

A commit whose source was computed outside of Delta's transaction can depend on rows that were looked up before it. The
query that is part of the commit reads the version that the commit replaces: it looks again, and fails if the rows have
changed. Then they are looked up again, and the commit is retried as well.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql import DataFrame, functions as F
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from pgbridge.bridge.lake.commit_errors import error_object
from pgbridge.bridge.runtime import errors, log as logs
from pgbridge.bridge.spark.outcome import is_concurrent
from pgbridge.bridge.targets.location import quoted, sql_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

T = TypeVar("T")

_ATTEMPTS = 10
"""After so many attempts the operator is told: maintenance that never pauses would hold up the batch forever."""

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


def retry_commit(commit: Callable[[], T], path: str, log: FilteringBoundLogger | None = None) -> T:
    """Call `commit`, which reads the table, too, and again while concurrent commits make it fail.

    Raises:
        TargetBusy: Concurrent commits made every attempt fail; nothing is committed.
    """

    def warn(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        (log or logs.get()).warning(
            "a concurrent commit by another writer failed this one: retrying",
            path=path,
            error=_first_line(error),
            attempt=state.attempt_number,
        )

    def give_up(state: RetryCallState) -> T:
        error = state.outcome.exception() if state.outcome else None
        raise errors.TargetBusy(
            f"{path}: {state.attempt_number} attempts to commit failed because of concurrent commits by another "
            f"writer; the last error: {_first_line(error)}",
            hint=f"pgbridge goes on trying; find the writer: DESCRIBE HISTORY {sql_name(path)}; "
            "maintenance must leave pauses of a few seconds",
        ) from error

    return Retrying(
        retry=retry_if_exception(lambda error: is_concurrent(error) or have_changed(error)),
        wait=wait_random_exponential(_PAUSE_S, _LONGEST_PAUSE_S),
        stop=stop_after_attempt(_ATTEMPTS),
        before_sleep=warn,
        retry_error_callback=give_up,
    )(commit)


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0]


_CHANGED: Final = "pgbridge_changed"
"""Marks the error that the rows have changed."""

_SIDE: Final = "pgbridge_side"


def unless_changed(source: DataFrame, looked_up: DataFrame, now: DataFrame) -> DataFrame:
    """The rows of a commit, whose computation fails if rows have changed; `have_changed` knows the error.

    Args:
        source: The rows.
        looked_up: What the source relies on, in columns that Spark can group by. It is a copy: not read again.
        now: The query that reads the same of the table as it is now. Equal rows count.
    """
    sides = looked_up.withColumn(_SIDE, F.lit(1)).unionByName(now.withColumn(_SIDE, F.lit(-1)))
    difference = sides.groupBy(*map(quoted, looked_up.columns)).agg(F.sum(_SIDE).alias(_SIDE))
    changed = F.raise_error(F.lit(json.dumps({_CHANGED: True}))).cast("boolean")
    # a condition that is false without being a constant, which would be divided into two conditions
    no_rows = difference.filter(F.when(F.col(_SIDE) == 0, F.col(_SIDE) > 0).otherwise(changed))
    empty = (F.lit(None).cast(field.dataType).alias(field.name) for field in source.schema.fields)
    return source.unionByName(no_rows.select(*empty))


def have_changed(error: BaseException) -> bool:
    """Whether a commit failed because what it relied on has changed since it was looked up; nothing was committed."""
    return error_object(error, _CHANGED) is not None

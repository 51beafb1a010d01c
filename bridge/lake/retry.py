"""Retries a commit that Delta refused because of another writer's concurrent commit.

Delta refuses a commit if another one, made since it read the table, could have changed what it read: mostly an OPTIMIZE
that rewrote the files of a MERGE. Nothing is committed then, and nothing is wrong with the changes. The other commit
may also be of the same batch, by the Spark of a killed daemon: then Delta leaves out the retry by its stamp.

So does a commit that relies on rows which were looked up before it, and have changed since (see `looked_up`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from bridge.lake.looked_up import have_changed
from bridge.runtime import log as logs
from bridge.runtime.errors import TargetBusy
from bridge.spark.outcome import is_concurrent
from bridge.targets.location import sql_name

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
        raise TargetBusy(
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

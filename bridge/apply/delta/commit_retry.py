"""A commit that another writer's commit came in the way of is made again, in place.

Delta refuses a commit when somebody else's, made since it read the table, could have changed what it read: an OPTIMIZE
that rewrote the files of a MERGE, for the most part. Nothing of it is committed then, and nothing is wrong with what
was to be committed. Under a stamp the same holds of a commit of the same batch, by the Spark of a killed daemon: then
Delta leaves out the second try, because the table has the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from bridge import log as logs
from bridge.errors import TargetBusy

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger
    from tenacity import RetryCallState

T = TypeVar("T")

_ATTEMPTS = 10
"""A table whose maintenance never pauses would hold up its batch for ever: after so many, somebody is told."""

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

_EXCEPTIONS = (
    DeltaConcurrentModificationException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
    ConcurrentAppendException,
    ConcurrentDeleteReadException,
    ConcurrentDeleteDeleteException,
    ConcurrentTransactionException,
)
_JAVA_NAMES = frozenset(exception.__name__ for exception in _EXCEPTIONS)
_CONDITIONS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")


def in_place(commit: Callable[[], T], path: str, log: FilteringBoundLogger | None = None) -> T:
    """Make a commit, again as long as others' commits come in its way.

    Args:
        commit: Reads and commits; called anew for each try.
        path: The Delta table.
        log: Where each try that failed is logged.

    Returns:
        What `commit` returns.

    Raises:
        TargetBusy: Others' commits came in the way of every try; nothing is committed.
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
            hint=f"pgbridge goes on trying; find the writer: DESCRIBE HISTORY delta.`{path}`; "
            "maintenance must leave pauses of a few seconds",
        ) from error

    return Retrying(
        retry=retry_if_exception(came_in_the_way),
        wait=wait_random_exponential(_PAUSE_S, _LONGEST_PAUSE_S),
        stop=stop_after_attempt(_ATTEMPTS),
        before_sleep=warn,
        retry_error_callback=give_up,
    )(commit)


def came_in_the_way(error: BaseException) -> bool:
    """Whether an error is Delta's refusal of a commit because of another one: nothing was committed."""
    if isinstance(error, _EXCEPTIONS):
        return True
    if isinstance(error, PySparkException):
        return (error.getCondition() or "").startswith(_CONDITIONS)
    return isinstance(error, Py4JJavaError) and _is_conflict(error)


def _is_conflict(error: Py4JJavaError) -> bool:
    """What PySpark has not made an exception of its own of, because Spark has put it into another."""
    cause = error.java_exception
    while cause is not None:
        if cause.getClass().getSimpleName() in _JAVA_NAMES:
            return True
        cause = cause.getCause()
    return False


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0]

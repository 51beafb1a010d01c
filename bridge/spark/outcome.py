"""Tells what an error of Spark says about the operation that it ended.

    lost        the connection to Spark is gone, or the session, or the server was started again: the operation may
                have been made, may still run, or never began
    concurrent  Delta refused a commit because of another one: nothing was committed
    failed      any other error: Spark has answered

Classic sessions speak to a JVM by py4j, sessions of Spark Connect to a server by gRPC, and their errors differ. The
other modules need not know which one it is.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from delta import exceptions
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from bridge.runtime.errors import PublisherError

if TYPE_CHECKING:
    from collections.abc import Iterator

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""The exceptions that Spark raises, on both kinds of sessions."""

_CONCURRENT: Final = (
    exceptions.DeltaConcurrentModificationException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentTransactionException,
)
_CONCURRENT_NAMES: Final = frozenset(exception.__name__ for exception in _CONCURRENT)
_CONCURRENT_CONDITIONS: Final = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
_CAUSED: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+)", re.MULTILINE)

_RPC: Final = re.compile(
    r'<_\w+ of RPC that terminated with:\s*status = StatusCode\.(\w+)\s*details = "(.*?)"\s', re.DOTALL
)

_LOST_CONDITIONS: Final = ("INVALID_HANDLE.", "INVALID_CURSOR.", "RESPONSE_ALREADY_RECEIVED", "NO_ACTIVE_SESSION")
"""Conditions of a Connect server for sessions and operations that are not there any more, and of its client for one
that another request found to be gone."""

_UNTOLD: Final = re.compile(r"An error occurred while calling \S+")
"""py4j's message of a call if the JVM did not come to tell its error."""

_ENDED: Final = (
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "Cannot call methods on a stopped SparkContext",
    "RpcEnv has been stopped",
    "SparkContext.dagScheduler()",
)
"""Spark's messages for jobs whose context has ended under them."""

_REFUSED: Final = "RESOURCE_EXHAUSTED"
"""gRPC's status of a message that is too large: the server did not take it."""


def is_lost(error: BaseException) -> bool:
    """Whether an error says that the outcome of the operation is unknown."""
    if isinstance(error, (Py4JNetworkError, ConnectionError)):
        return True
    if _has_ended(error):
        return True
    if isinstance(error, PySparkException):
        condition = error.getCondition() or getattr(error, "_errorClass", None) or ""
        return condition.startswith(_LOST_CONDITIONS) or _is_of_transport(error) or _is_of_another_server(error)
    if isinstance(error, ValueError):  # gRPC's, after the session was closed
        return "closed channel" in str(error)
    grpc = sys.modules.get("grpc")  # it is installed with the extra `connect` only
    return grpc is not None and isinstance(error, grpc.RpcError) and _status(error.code()) != _REFUSED


def lost_in(error: BaseException) -> BaseException | None:
    """The error among an error and its causes that says so; None if there is none. Errors of the publisher are not."""
    return next((cause for cause in _causes(error) if is_lost(cause)), None)


def is_of_spark(error: BaseException) -> bool:
    """Whether Spark has raised an error, or one of its causes."""
    return any(isinstance(cause, SPARK_ERRORS) or is_lost(cause) for cause in _causes(error))


def is_concurrent(error: BaseException) -> bool:
    """Whether Delta refused a commit because of a concurrent one: nothing was committed."""
    if isinstance(error, _CONCURRENT):
        return True
    if isinstance(error, PySparkException):
        if (error.getCondition() or "").startswith(_CONCURRENT_CONDITIONS):
            return True
        # the stack trace of a Connect server; its classes by name, because only the outermost one is sent as such
        trace = getattr(error, "_stacktrace", None)
        return isinstance(trace, str) and not _CONCURRENT_NAMES.isdisjoint(_CAUSED.findall(trace))
    return isinstance(error, Py4JJavaError) and _has_concurrent_cause(error)


def root_text(error: BaseException) -> str:
    """The text of an error: of the innermost cause, if it is a Java exception that PySpark has no class for.

    An error of gRPC gives its status and details.
    """
    if not isinstance(error, Py4JJavaError):
        rpc = _RPC.match(text := str(error))
        return text if rpc is None else f"{rpc[1]}: {rpc[2]}"
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString())


def _has_ended(error: BaseException) -> bool:
    """Whether a job's context has ended under it, by the hooks of a JVM that ends for example; or no JVM says more."""
    if type(error) is Py4JError:
        return _UNTOLD.fullmatch(str(error)) is not None
    if not isinstance(error, (Py4JJavaError, PySparkException)):
        return False
    try:
        text = root_text(error)
    except (Py4JError, OSError):  # the text of a Java exception has to be asked for
        return True
    return any(words in text for words in _ENDED)


def _has_concurrent_cause(error: Py4JJavaError) -> bool:
    """Whether one of an error's causes is Delta's: PySpark only converts the outermost exception."""
    cause = error.java_exception
    while cause is not None:
        if cause.getClass().getSimpleName() in _CONCURRENT_NAMES:
            return True
        cause = cause.getCause()
    return False


def _is_of_transport(error: PySparkException) -> bool:
    """Whether a Connect client's error comes from gRPC alone: Spark's own bring their class and condition."""
    module = sys.modules.get("pyspark.errors.exceptions.connect")
    if module is None or type(error) is not module.SparkConnectGrpcException:
        return False
    return _status(error.getGrpcStatusCode()) != _REFUSED  # type: ignore[attr-defined] # of that class


def _is_of_another_server(error: PySparkException) -> bool:
    """Whether a Connect client got an answer of a server that was started since."""
    return type(error).__name__ == "PySparkAssertionError" and "session identifier" in str(error)


def _status(code: Any) -> str:
    return str(getattr(code, "name", code))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, its causes, and the errors during whose handling it was raised."""
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen or isinstance(current, PublisherError):
            continue
        seen.add(id(current))
        yield current
        waiting += [cause for cause in (current.__cause__, current.__context__) if cause is not None]

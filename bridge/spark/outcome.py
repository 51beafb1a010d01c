"""Tells what an error of Spark says about the operation that it ended, and says it to people.

    lost        the connection to Spark is gone, or the session, or the server was started again: the operation may
                have been made, may still run, or never began
    concurrent  Delta refused a commit because of another one: nothing was committed
    failed      any other error: Spark has answered

Classic sessions speak to a JVM by py4j, sessions of Spark Connect to a server by gRPC, and their errors differ. The
other modules need not know which one it is.

`summary` is the message without stack traces. The hints say what an operator can do about errors of executors, of
Hadoop's S3 client and of catalogs, by the text of their exceptions.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from delta import exceptions
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.targets.location import quoted, sql_name

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

_TOO_LARGE: Final = "RESOURCE_EXHAUSTED"
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
    return grpc is not None and isinstance(error, grpc.RpcError) and _status(error.code()) != _TOO_LARGE


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
    return _status(error.getGrpcStatusCode()) != _TOO_LARGE  # type: ignore[attr-defined] # of that class


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


_MESSAGE_CHARACTERS = 600
_RAISED = re.compile(r"^[A-Za-z_][\w.]*: (.+)", re.MULTILINE)  # the line under a Python traceback
_AROUND = re.compile(r"\AAn error occurred while calling \S+\n: |\s*SQLSTATE: 38000\s*\Z")  # py4j's words, and Spark's


def summary(error: Exception) -> str:
    """An error's message without stack traces; for an error of a Python worker, the message that was raised there."""
    text = root_text(error)
    last_frame = text.rfind("\n  File ")
    if last_frame >= 0 and (raised := _RAISED.search(text, last_frame)):
        text = text[raised.start(1) :]
    text = text.split("\n\tat ", maxsplit=1)[0].split("JVM stacktrace:", maxsplit=1)[0]
    text = _AROUND.sub("", text).strip() or type(error).__name__
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + " …"


_ENDPOINT: Final = "spark.hadoop.fs.s3a.endpoint"

_CREDENTIALS: Final = (
    "give pgbridge's process AWS credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in its environment, a "
    "profile in its user's ~/.aws, or a role of its machine"
)
_REFUSED: Final = (
    "S3 refuses pgbridge's credentials, or its policy does: it needs s3:ListBucket on the bucket, and on the "
    "warehouse's objects s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload"
)
_AWAY: Final = (
    "UnknownHostException|ConnectException|ConnectTimeoutException|SocketTimeoutException|NoRouteToHostException"
    "|ApiCallTimeout|Unable to execute HTTP request|SlowDown|Status Code: 5[0-9][0-9]"
)
_STORE_HINTS: Final = (
    (
        "NoSuchBucket|UnknownStoreException",
        f"create the bucket, or correct warehouse; of another store than AWS, {_ENDPOINT} in [spark.conf]",
    ),
    ("NoAuthWithAWSException|Unable to load credentials", _CREDENTIALS),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|Status Code: 40[13]\b", _REFUSED),
    ("Unable to load region", "set AWS_REGION, or spark.hadoop.fs.s3a.endpoint.region in [spark.conf]"),
    (_AWAY, f"S3 does not answer, or not as it should: check the network, and {_ENDPOINT} in [spark.conf]"),
    ('No FileSystem for scheme "s3n?"', "Hadoop's client has another name for S3: write s3a://… as warehouse"),
    (
        r"Class org\.apache\.hadoop\.fs\.s3a\.\S+ not found",
        "Spark was started without S3: restart the daemon; a Spark of your own needs hadoop-aws",
    ),
)


def store_hint(error: BaseException) -> str:
    """Return what an operator can do about an error of the object store; empty for other errors."""
    text = str(error)
    if "s3a" not in text and "scheme" not in text:
        return ""
    return next((hint for pattern, hint in _STORE_HINTS if re.search(pattern, text)), "")


def catalog_hint(error: BaseException) -> str:
    """Return what an operator can do about an error of a catalog."""
    if "Derby" in str(error):
        return "Derby's files belong to one JVM at a time: end the other one, or use a metastore that is a server"
    return "see the settings of the catalog in [spark.conf], and what its user may do there"


_OTHERS: Final = (
    'name another Python by "spark.pyspark.python" in [spark.conf], or send a packed environment by spark.archives '
    "(docs/clusters.md)"
)
_NO_PYTHON: Final = (
    f"Spark's executors have no Python at {{found}}: install one there on every machine of the cluster, {_OTHERS}"
)
_NO_LIBRARY: Final = (
    "the Python of Spark's executors lacks a library: install numpy, pandas, pyarrow and psycopg[binary] in it on "
    f"every machine of the cluster, {_OTHERS}"
)
_OTHER_VERSION: Final = (
    f"the Python of Spark's executors must have the same minor version as pgbridge's: install that, {_OTHERS}"
)
_NO_CLASS: Final = "Spark's executors lack {found}: give the cluster the jars that the daemon has (docs/clusters.md)"
_LOST: Final = (
    "an executor was lost, and pgbridge tries again by itself. If this goes on, look at the executors' logs: mostly "
    "one runs out of memory (spark.executor.memory, spark.executor.memoryOverhead)"
)
_LOSSES: Final = (
    "ExecutorLostFailure|Checkpoint block .{1,200} not found|MetadataFetchFailed|Executor heartbeat timed out"
    "|Lost executor"
)
_NO_SUCH_CLASS: Final = r"ClassNotFoundException: (?P<found>(?:io\.delta|org\.apache)\.\S+)"

_EXECUTOR_HINTS: Final = (
    (r'Cannot run program "(?P<found>[^"]+)"', _NO_PYTHON),
    (r"No module named '|PACKAGE_NOT_INSTALLED", _NO_LIBRARY),
    ("PYTHON_VERSION_MISMATCH", _OTHER_VERSION),
    (_NO_SUCH_CLASS, _NO_CLASS),
    (_LOSSES, _LOST),
)


def executor_hint(error: BaseException) -> str:
    """Return what an operator can do about an error of Spark's executors; empty for other errors."""
    text = str(error)
    for pattern, hint in _EXECUTOR_HINTS:
        if match := re.search(pattern, text):
            return hint.format(**match.groupdict())
    return ""


_CHECK: Final = re.compile(r"CHECK constraint (?P<name>.+?) \(.*\) violated by row", re.DOTALL)
_NOT_NULL: Final = re.compile(
    r"NOT NULL constraint violated for column: (?P<name>.+?)\.?$"
    r"|Column (?P<missing>.+?), which has a NOT NULL constraint,",
    re.MULTILINE,
)


def constraint_hint(error: BaseException, location: str) -> str:
    """Return what an operator can do about a row that a constraint of a Delta table refuses; empty for other errors."""
    what = "the Delta table has a constraint that a published row does not meet. To drop it,"
    if check := _CHECK.search(str(error)):
        return f"{what} run in Spark: ALTER TABLE {sql_name(location)} DROP CONSTRAINT {quoted(check['name'])}"
    if column := _NOT_NULL.search(str(error)):
        name = quoted(column["name"] or column["missing"])
        return f"{what} run in Spark: ALTER TABLE {sql_name(location)} ALTER COLUMN {name} DROP NOT NULL"
    return ""

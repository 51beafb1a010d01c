"""What an error of Spark says about the operation: lost, concurrent, or failed; on classic sessions and on Connect.

What is shown of Spark's errors, and the hints.

The texts are of Spark 4.2 and Hadoop 3.5.0; `tests/faults/test_cluster.py` and `tests/faults/test_s3.py` meet some.
"""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from delta.connect import exceptions as connect_delta
from delta.exceptions import base
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions import connect

from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError, PublisherError, SyncError
from pgbridge.bridge.spark.outcome import (
    SPARK_ERRORS,
    catalog_hint,
    constraint_hint,
    executor_hint,
    is_concurrent,
    is_lost,
    lost_in,
    root_text,
    store_hint,
    summary,
)
from pgbridge.protocol.lsn import Lsn

CONCURRENT = [
    base.DeltaConcurrentModificationException,
    base.ConcurrentWriteException,
    base.MetadataChangedException,
    base.ProtocolChangedException,
    base.ConcurrentAppendException,
    base.ConcurrentDeleteReadException,
    base.ConcurrentDeleteDeleteException,
    base.ConcurrentTransactionException,
    connect_delta.ConcurrentAppendException,
]


class OfCondition(PySparkException):
    """As a client without classes of Delta's has it."""

    def __init__(self, condition: str | None) -> None:
        super().__init__("no")
        self.condition = condition

    def getCondition(self) -> str | None:  # noqa: N802 - PySpark's name
        return self.condition


class JavaError(Py4JJavaError):  # type: ignore[misc] # py4j has no types
    """Exceptions of Java's, each the cause of the one before it."""

    def __init__(self, *names: str) -> None:
        self.java_exception = Java(*names)

    def __str__(self) -> str:
        return "no"


class Java:
    """One of them; its class, too."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def getClass(self) -> Java:  # noqa: N802
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return self.names[0]

    def getCause(self) -> Java | None:  # noqa: N802
        return Java(*self.names[1:]) if self.names[1:] else None

    def toString(self) -> str:  # noqa: N802
        return self.names[0]


class RpcError(grpc.RpcError):  # type: ignore[misc] # grpc has no types
    """As gRPC raises it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


def of_grpc(code: grpc.StatusCode) -> Exception:
    """As the client makes it of an error without Spark's details."""
    return connect.SparkConnectGrpcException(message="no", grpc_status_code=code)


def of_server(condition: str, stacktrace: str = "") -> Exception:
    """An error with Spark's details."""
    return connect.AnalysisException(
        message=f"[{condition}] no",
        errorClass=condition,
        messageParameters={},
        server_stacktrace=stacktrace,
        grpc_status_code=grpc.StatusCode.INTERNAL,
    )


LOST = [
    Py4JNetworkError("gone"),
    ConnectionResetError("gone"),
    RpcError(grpc.StatusCode.UNAVAILABLE),
    of_grpc(grpc.StatusCode.UNAVAILABLE),
    of_grpc(grpc.StatusCode.CANCELLED),
    of_grpc(grpc.StatusCode.INTERNAL),
    of_grpc(grpc.StatusCode.UNAUTHENTICATED),
    of_server("INVALID_HANDLE.SESSION_CHANGED"),
    of_server("INVALID_HANDLE.SESSION_CLOSED"),
    of_server("INVALID_HANDLE.OPERATION_ABANDONED"),
    OfCondition("RESPONSE_ALREADY_RECEIVED"),
    connect.SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={}),
    ValueError("Cannot invoke RPC on closed channel!"),
]
FAILED = [
    Py4JError("no"),
    JavaError("SparkException", "IOException"),
    OfCondition(None),
    OfCondition("DELTA_TABLE_NOT_FOUND"),
    AnalysisException("DELTA_CONCURRENT_APPEND"),
    ValueError("DELTA_CONCURRENT_APPEND"),
    of_server("USER_RAISED_EXCEPTION", "a.b.SparkException\nCaused by: java.io.IOException: no"),
    of_grpc(grpc.StatusCode.RESOURCE_EXHAUSTED),
    RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED),
    RuntimeError("no"),
]


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_lost(error):
    assert is_lost(error)
    assert not is_concurrent(error)


@pytest.mark.parametrize("error", FAILED, ids=repr)
def test_failed(error):
    assert not is_lost(error)
    assert not is_concurrent(error)


@pytest.mark.parametrize(
    "error",
    [
        *(exception("no") for exception in CONCURRENT),
        OfCondition("DELTA_CONCURRENT_APPEND.WITHOUT_HINT"),
        OfCondition("DELTA_METADATA_CHANGED"),
        OfCondition("DELTA_PROTOCOL_CHANGED"),
        JavaError("SparkException", "ConcurrentDeleteReadException", "IOException"),
        of_server("WRITE", "a.SparkException\n\tat x\nCaused by: io.delta.exceptions.ConcurrentAppendException: files"),
    ],
    ids=repr,
)
def test_concurrent(error):
    """By class, by condition, or by the Java exception that Spark has put into another."""
    assert is_concurrent(error)
    assert not is_lost(error)


def test_an_answer_of_another_server_is_no_answer():
    client = pytest.importorskip("pyspark.errors").PySparkAssertionError
    assert is_lost(client("Received incorrect server side session identifier for request. (a != b)"))


def test_it_is_looked_for_among_the_causes():
    """Also where an undo failed, while the batch's own error was handled; not where the publisher was lost."""
    lost = of_grpc(grpc.StatusCode.UNAVAILABLE)
    own = ApplyError("no", ApplyContext("o", Lsn(1)))
    undo = ApplyError("undo", ApplyContext("o", Lsn(1)))
    undo.__cause__, undo.__context__ = own, lost
    assert lost_in(undo) is lost
    of_publisher = SyncError("no")
    of_publisher.__cause__ = PublisherError("away")
    of_publisher.__cause__.__cause__ = ConnectionResetError("gone")
    assert lost_in(of_publisher) is None


def test_text_of_the_innermost_cause():
    assert root_text(JavaError("SparkException", "IOException")) == "IOException"
    assert root_text(ValueError("so")) == "so"
    form = '<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.{}\n\tdetails = "{}"\n\tdebug'
    rpc = form.format("UNAVAILABLE", "away")
    assert root_text(ValueError(rpc)) == "UNAVAILABLE: away"
    assert all(issubclass(type(error), SPARK_ERRORS) for error in (JavaError("x"), of_server("X")))


def test_grpc_is_not_imported_for_classic_sessions():
    code = "import sys, bridge.service.daemon, bridge.service.subscriber; print('grpc' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "False\n"


def test_summary_keeps_what_was_raised_in_a_python_worker():
    error = Exception(
        "[X] An exception was thrown:\nTraceback (most recent call last):\n  File x, line 1, in read\n"
        "bridge.runtime.errors.TargetError: column \"d\": value 'infinity' cannot be represented\nHINT:  do this\n"
    )
    assert summary(error) == "column \"d\": value 'infinity' cannot be represented\nHINT:  do this"


def test_summary_finds_what_was_raised_in_a_python_worker_below_java_frames():
    """The form of a Py4JJavaError, which a write raises."""
    raised = "column \"d\": value 'infinity' cannot be represented\nHINT:  do this"
    error = Exception(
        "An error occurred while calling o12.save.\n: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task\n"
        "\tat org.x.y(Z.scala:1)\nCaused by: org.apache.spark.api.python.PythonException: Traceback (most recent):\n"
        f'  File "copy.py", line 1, in read\n    raise TargetError(\nbridge.errors.TargetError: {raised}\n'
        " SQLSTATE: 38000\n\tat org.x.y(Z.scala:1)\n\t... 1 more\n"
    )
    assert summary(error) == raised
    java = "An error occurred while calling o12.save.\n: java.io.IOException: no space\n\tat org.x.y(Z.scala:1)"
    assert summary(Exception(java)) == "java.io.IOException: no space"


def test_summary_cuts_stack_traces_and_length():
    assert summary(Exception("[CODE] what\n\tat org.apache…\n\tat …")) == "[CODE] what"
    assert len(summary(Exception("x" * 5000))) < 700


STORE_TEXTS = {
    "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://lake/t': getFileStatus on s3a://lake/t: "
    "software.amazon.awssdk.services.s3.model.NoSuchBucketException": "create the bucket",
    "java.nio.file.AccessDeniedException: s3a://lake/t: org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: "
    "No AWS Credentials provided by ProfileCredentialsProvider": "AWS_ACCESS_KEY_ID",
    "java.nio.file.AccessDeniedException: s3a://lake/t: getFileStatus on s3a://lake/t: "
    "S3Exception: Forbidden (Service: S3, Status Code: 403, Request ID: 18E):null": "refuses pgbridge's credentials",
    "AWSClientIOException: initializing on s3a://lake/t: Unable to load region from any of the": "AWS_REGION",
    "java.net.ConnectException: getFileStatus on s3a://lake/t: Unable to execute HTTP request": "does not answer",
    "java.net.UnknownHostException: getFileStatus on s3a://lake/t: Received an UnknownHostException": "does not answer",
    'UnsupportedFileSystemException: No FileSystem for scheme "s3"': "s3a://",
    "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found": "restart the daemon",
}


@pytest.mark.parametrize(("text", "words"), STORE_TEXTS.items())
def test_an_error_of_the_store(text, words):
    assert words in store_hint(OSError(text))


@pytest.mark.parametrize("text", ["java.net.ConnectException: of something else", "s3a://lake/t: division by zero"])
def test_errors_of_no_store(text):
    assert store_hint(OSError(text)) == ""


def test_a_catalog_is_told_from_a_derby_that_another_jvm_has():
    assert "one JVM at a time" in catalog_hint(Exception("Another instance of Derby may have already booted"))
    assert "[spark.conf]" in catalog_hint(Exception("PERMISSION_DENIED: no USE SCHEMA"))


EXECUTOR_TEXTS = {
    'java.io.IOException: Cannot run program "/opt/none/bin/python": error=2': "no Python at /opt/none/bin",
    "ModuleNotFoundError: No module named 'psycopg'": "psycopg[binary]",
    "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed": "psycopg[binary]",
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version (3, 9) than that in driver 3.11": "minor version",
    "java.lang.ClassNotFoundException: org.apache.hadoop.fs.s3a.S3AFileSystem": "lack org.apache.hadoop.fs",
    "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137": (
        "tries again by itself"
    ),
    "Checkpoint block rdd_53_0 not found! Either the executor that originally": "tries again by itself",
}


@pytest.mark.parametrize(("text", "words"), EXECUTOR_TEXTS.items())
def test_an_error_of_an_executor(text, words):
    assert words in executor_hint(RuntimeError(text))


def test_errors_of_no_executor():
    assert executor_hint(RuntimeError("division by zero")) == ""


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        (
            "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint small (abs(n) < 100) violated by row with values:",
            "DROP CONSTRAINT `small`",
        ),
        (
            "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: a b.\n",
            "ALTER COLUMN `a b` DROP NOT NULL",
        ),
        (
            "[DELTA_MISSING_NOT_NULL_COLUMN_VALUE] Column c, which has a NOT NULL constraint, is missing from the data",
            "ALTER COLUMN `c` DROP NOT NULL",
        ),
    ],
)
def test_the_statement_that_drops_a_broken_constraint(text, statement):
    assert constraint_hint(Exception(text), "/l/t").endswith(f": ALTER TABLE delta.`/l/t` {statement}")


def test_the_statement_is_run(spark, tmp_path):
    """A row that the constraint refuses is there afterwards."""
    path = str(tmp_path / "t")
    spark.sql(f"CREATE TABLE delta.`{path}` (n int NOT NULL) USING delta").collect()
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (n IS NULL OR n < 9)").collect()
    for row in ("NULL", "10"):
        insert = f"INSERT INTO delta.`{path}` VALUES ({row})"
        with pytest.raises(SPARK_ERRORS) as caught:
            spark.sql(insert).collect()
        spark.sql(constraint_hint(caught.value, path).rpartition(": ")[2]).collect()
        spark.sql(insert).collect()
    assert spark.read.format("delta").load(path).count() == 2


def test_other_errors_have_no_constraint():
    assert constraint_hint(Exception("[DELTA_CONCURRENT_APPEND]"), "/l/t") == ""

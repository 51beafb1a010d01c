"""What an error of Spark says about the operation: lost, concurrent, or failed; on classic sessions and on Connect."""

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

from bridge.runtime.errors import ApplyContext, ApplyError, PublisherError, SyncError
from bridge.spark.outcome import SPARK_ERRORS, is_concurrent, is_lost, lost_in, root_text
from protocol.lsn import Lsn

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

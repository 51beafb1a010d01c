"""Errors of executors get a hint. The texts are of Spark 4.2; `tests/faults/test_cluster.py` meets some of them."""

import pytest

from bridge.apply.delta.executor_errors import executor_hint

TEXTS = {
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


@pytest.mark.parametrize(("text", "words"), TEXTS.items())
def test_an_error_of_an_executor(text, words):
    assert words in executor_hint(RuntimeError(text))


def test_other_errors():
    assert executor_hint(RuntimeError("division by zero")) == ""

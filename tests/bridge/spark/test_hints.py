"""What is shown of Spark's errors, and the hints.

The texts are of Spark 4.2 and Hadoop 3.5.0; `tests/faults/test_cluster.py` and `tests/faults/test_s3.py` meet some.
"""

from __future__ import annotations

import pytest

from bridge.spark.hints import catalog_hint, constraint_hint, executor_hint, store_hint, summary
from bridge.spark.outcome import SPARK_ERRORS


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

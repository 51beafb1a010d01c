"""Errors of S3A get a hint. The texts are of Hadoop 3.5.0; `tests/faults/test_s3.py` meets some of them."""

import pytest

from bridge.apply.delta.store_errors import catalog_hint, store_hint

TEXTS = {
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


@pytest.mark.parametrize(("text", "words"), TEXTS.items())
def test_an_error_of_the_store(text, words):
    assert words in store_hint(OSError(text))


@pytest.mark.parametrize("text", ["java.net.ConnectException: of something else", "s3a://lake/t: division by zero"])
def test_other_errors(text):
    assert store_hint(OSError(text)) == ""


def test_a_catalog_is_told_from_a_derby_that_another_jvm_has():
    assert "one JVM at a time" in catalog_hint(Exception("Another instance of Derby may have already booted"))
    assert "[spark.conf]" in catalog_hint(Exception("PERMISSION_DENIED: no USE SCHEMA"))

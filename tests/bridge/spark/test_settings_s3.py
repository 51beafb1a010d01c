"""Which packages and settings a warehouse on S3 brings."""

from pathlib import Path

import pyspark
import pytest

from pgbridge.bridge.spark.settings import HADOOP, S3_DEFAULTS, with_s3

LAKE = ("/srv/lake", "s3a://bucket/lake")


def test_hadoop_has_the_version_of_pysparks_jars():
    """S3A of another version fails with NoSuchMethodError at some moment."""
    assert (Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{HADOOP}.jar").exists()


def test_a_warehouse_elsewhere_brings_nothing():
    assert with_s3({"a": "b"}, ["/srv/lake", "hdfs://host/lake"], own_spark=True) == {"a": "b"}


def test_packages_come_beside_the_users():
    given = {"spark.jars.packages": "org.example:one:1.0", "spark.jars.excludes": "org.example:two"}
    found = with_s3(given, LAKE, own_spark=True)
    packages = found["spark.jars.packages"].split(",")
    assert packages[:2] == ["org.example:one:1.0", f"org.apache.hadoop:hadoop-aws:{HADOOP}"]
    assert "software.amazon.awssdk:s3" in {package.rpartition(":")[0] for package in packages}
    assert found["spark.jars.excludes"] == "org.example:two,software.amazon.awssdk:bundle"


@pytest.mark.parametrize(
    ("settings", "own_spark"),
    [
        ({}, False),
        ({"spark.jars": "/jars/hadoop-aws-3.5.0.jar"}, True),
        ({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}, True),
        ({"spark.driver.extraClassPath": "/jars/hadoop-aws-3.5.0.jar"}, True),
    ],
)
def test_a_user_brings_the_client(settings, own_spark):
    assert with_s3(settings, LAKE, own_spark=own_spark) == {**S3_DEFAULTS, **settings}


def test_the_configuration_overrides_the_defaults():
    key = "spark.hadoop.fs.s3a.retry.limit"
    assert with_s3({key: "9"}, LAKE, own_spark=True)[key] == "9"

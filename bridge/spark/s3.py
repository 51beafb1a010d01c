"""Gives Spark what warehouses on S3 need: Hadoop's client S3A, and its settings.

hadoop-aws depends on `software.amazon.awssdk:bundle`, all of AWS in one jar of 690 MB. S3A uses the modules that are
named here, 18 MB with theirs. They have the version that this Hadoop was built with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HADOOP: Final = "3.5.0"
"""The version of PySpark's jars: S3A works with the Hadoop of its own version only."""

_SDK: Final = "2.35.4"
_MODULES: Final = ("s3", "s3-transfer-manager", "sts", "apache-client")  # sts is for roles, and for pods on EKS
_PACKAGES: Final = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    *(f"software.amazon.awssdk:{module}:{_SDK}" for module in _MODULES),
)
_BUNDLE: Final = "software.amazon.awssdk:bundle"

_JARS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")

DEFAULTS: Final = {
    # S3A's own tries of a request come on top of the SDK's six. With Hadoop's defaults a batch hangs for minutes at an
    # endpoint that does not answer; the subscription tries again by itself, and says why.
    "spark.hadoop.fs.s3a.attempts.maximum": "3",
    "spark.hadoop.fs.s3a.retry.limit": "4",
    # Each pause is twice the one before: with Hadoop's 20, a store that always answers 503 would hold a batch for days.
    "spark.hadoop.fs.s3a.retry.throttle.limit": "7",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "10s",
    # Hadoop's own list lacks the profiles of ~/.aws, and the roles of EKS and ECS.
    "spark.hadoop.fs.s3a.aws.credentials.provider": (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    ),
}
"""Settings of S3A that suit the bridge. The configuration's `[spark.conf]` overrides them."""


def with_s3(settings: Mapping[str, str], warehouses: Iterable[str], *, own_spark: bool) -> dict[str, str]:
    """Add what Spark needs for S3, if a warehouse is there.

    Args:
        settings: Spark's settings.
        warehouses: Paths and URIs.
        own_spark: Spark is PySpark's own, so its Hadoop is known. Another one brings hadoop-aws itself, as do settings
            that name it.
    """
    if not any(map(is_s3, warehouses)):
        return dict(settings)
    combined = {**DEFAULTS, **settings}
    if own_spark and not any("hadoop-aws" in settings.get(key, "") for key in _JARS):
        for key, names in (("spark.jars.packages", _PACKAGES), ("spark.jars.excludes", (_BUNDLE,))):
            combined[key] = ",".join([*filter(None, settings.get(key, "").split(",")), *names])
    return combined


def is_s3(warehouse: str) -> bool:
    """Whether a warehouse is on S3, by Hadoop's client."""
    return warehouse.startswith("s3a://")

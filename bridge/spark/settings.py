"""Spark's settings: those that results depend on, those that suit the bridge, and what warehouses need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgbridge.bridge.runtime.warehouse import catalogs, with_metastore
from pgbridge.bridge.spark.launch import SPARK_VERSION, is_own_spark

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

_SPARK: Final = SPARK_VERSION[:3]

CHECKSUM_WRITER = "spark.sql.streaming.checkpointFileManagerClass"

REQUIRED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Timestamps become text and dates in UTC, as on the wire.
    "spark.sql.session.timeZone": "UTC",
    # Dates before 1582 are PostgreSQL's, in the proleptic Gregorian calendar, without rebasing.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Spark's default, INT96 in nanoseconds, is read by others as 64 bits: they end in 2262, and then wrap.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # TIMESTAMP is an instant, as timestamptz is.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # A value that does not fit is an error; it never wraps or becomes NULL.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # ${…} in a name is part of the name, in statements too.
    "spark.sql.variable.substitute": "false",
    # An undo restores the version before its batch, whenever that was made. RESTORE looks whether the files are there.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
"""Settings that the results depend on. They override the configuration's `[spark.conf]`."""

CHECKPOINT_INTERVAL = "spark.databricks.delta.properties.defaults.checkpointInterval"
"""After so many commits Delta writes a checkpoint of a table, which has the setting's value from its creation. Without
it, `bridge.lake.ddl` chooses."""

DEFAULTS = {
    "spark.app.name": "pgbridge",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # Idle Python workers of copies; further ones end with their task, these after a minute.
    "spark.python.factory.idleWorkerMaxPoolSize": "4",
    # PostgreSQL's names are case-sensitive; Delta refuses two that differ only in case.
    "spark.sql.caseSensitive": "true",
    # Spark's defaults are for more data than a batch has: with them, planning takes longer than the work.
    "spark.sql.shuffle.partitions": "4",
    # Four tables' commits have 70 generated classes: with Spark's 100, twenty tables would compile theirs each time.
    "spark.sql.codegen.cache.maxEntries": "5000",
    "spark.databricks.delta.snapshotPartitions": "1",
    # VACUUM lists files in so many tasks; with Spark's 10 000, an empty table takes half a minute.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    # Nothing of Delta's reads this list of a checksum's but what checks it: after each commit, by two stages of a job,
    # unless every time zone is UTC.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # Delta writes a checksum after each commit; on a local disk Spark's default starts a dozen `readlink` for that.
    CHECKSUM_WRITER: (
        f"org.apache.spark.sql.execution.streaming.{'' if _SPARK == '4.0' else 'checkpointing.'}"
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "true",
    "spark.sql.debug.maxToStringFields": "200",
    # Spark describes the plan of each query, which nobody reads unless its UI is on: 3 % of a small commit.
    "spark.sql.ui.explainMode": "simple",
    # PySpark notes, for each column of each query, which line of Python made it: seven requests to the JVM, 1.3 ms.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Pages of a fifth of Parquet's own: who looks for a row by its key reads one, where files are sorted by it.
    "parquet.page.row.count.limit": "4000",
    # Parquet would hold a hundred rows before it looks how large they are: of 50 MB each, no heap has room for them.
    "parquet.page.size.row.check.min": "1",
}
"""Settings that suit the bridge. The configuration's `[spark.conf]` overrides them."""


def all_settings(conf: Mapping[str, str | float | bool]) -> dict[str, str]:
    """The settings over `DEFAULTS` and below `REQUIRED`, as Spark's configuration has them."""
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in conf.items()}
    return {**DEFAULTS, **texts, **REQUIRED}


def settings_here(
    conf: Mapping[str, str | float | bool], warehouses: Collection[str], folder: Path | None = None
) -> dict[str, str]:
    """All settings of a driver on this machine.

    Args:
        conf: Settings over `DEFAULTS`.
        warehouses: Where Delta tables are, as configured.
        folder: Gets the folder that Spark makes for a catalog which nobody uses; None for the current one.
    """
    settings = with_metastore(all_settings(conf), warehouses)
    if folder is not None and not catalogs(warehouses):
        settings.setdefault("spark.sql.warehouse.dir", f"file://{folder.absolute()}/spark-warehouse")
    # a catalog's tables are below this folder, unless their namespace says otherwise
    places = [*warehouses, settings.get("spark.sql.warehouse.dir", "")] if catalogs(warehouses) else warehouses
    return with_s3(settings, places, own_spark=is_own_spark())


# --- What warehouses on S3 need: Hadoop's client S3A, and its settings.
#
# hadoop-aws depends on `software.amazon.awssdk:bundle`, all of AWS in one jar of 690 MB. S3A uses the modules that are
# named here, 18 MB with theirs, in the version that this Hadoop was built with.

_VERSIONS: Final = {"4.0": ("3.4.1", "2.29.52"), "4.1": ("3.4.2", "2.29.52")}
"""Spark's Hadoop, and an SDK that suits it; newer Sparks have the last."""

HADOOP, _SDK = _VERSIONS.get(_SPARK, ("3.5.0", "2.35.4"))
"""Hadoop's is that of PySpark's jars: S3A works with the Hadoop of its own version only."""

_MODULES: Final = ("s3", "s3-transfer-manager", "sts", "apache-client")  # sts is for roles, and for pods on EKS
_S3_PACKAGES: Final = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    *(f"software.amazon.awssdk:{module}:{_SDK}" for module in _MODULES),
)
_BUNDLE: Final = "software.amazon.awssdk:bundle"

_JAR_SETTINGS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")

S3_DEFAULTS: Final = {
    # S3A's own tries of a request come on top of the SDK's six. With Hadoop's defaults a batch hangs for minutes at an
    # endpoint that does not answer; the subscription tries again by itself, and says why.
    "spark.hadoop.fs.s3a.attempts.maximum": "3",
    "spark.hadoop.fs.s3a.retry.limit": "4",
    # Each pause is twice the one before: with Hadoop's 20, a store that always answers 503 would hold a batch for days.
    "spark.hadoop.fs.s3a.retry.throttle.limit": "7",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "10s",
    # A file is not looked for, nor a folder of its name, before it is written: Delta's names are new, and its log store
    # looks for the next version itself.
    "spark.hadoop.fs.s3a.performance.flags": "create,mkdir,delete",
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
    combined = {**S3_DEFAULTS, **settings}
    if own_spark and not any("hadoop-aws" in settings.get(key, "") for key in _JAR_SETTINGS):
        for key, names in (("spark.jars.packages", _S3_PACKAGES), ("spark.jars.excludes", (_BUNDLE,))):
            combined[key] = ",".join([*filter(None, settings.get(key, "").split(",")), *names])
    return combined


def is_s3(warehouse: str) -> bool:
    """Whether a warehouse is on S3, by Hadoop's client."""
    return warehouse.startswith("s3a://")

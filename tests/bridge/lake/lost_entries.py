"""Has a power cut lose entries of a table's log, of which a flush had failed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pgbridge.bridge.lake.log.local_log import checkpoint_version, entry_of
from pgbridge.bridge.spark.session import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lose_entries(spark: SparkSession, path: str, first: int) -> None:
    """Empty the entries from a version on, up to the last one that has a checkpoint."""
    log = Path(path) / "_delta_log"
    last = checkpoint_version(log)
    assert last is not None
    assert first < last
    for version in range(first, last):
        entry = entry_of(log, version)
        entry.write_bytes(b"")
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()

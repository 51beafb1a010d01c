"""Sessions for commits of net effects: a subscription's session has companions with settings of their own.

Several tables are committed to at once, and their commits need different settings; settings belong to a session. The
companions have the stamp that the subscription's session has (see `stamp.stamped`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.lake.commit.key_condition import PUSHED_LISTS
from pgbridge.bridge.lake.log.stamp import copy_stamp
from pgbridge.bridge.spark.session import companion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgbridge.bridge.lake.commit.plan import Work

_IMMUTABLE: Final = {
    # Delta would copy every source that is not a Delta table, in case it changes between its passes.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_SMALL: Final = {
    # Each shuffle would be a job of its own; a small commit takes longer to plan than to compute.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
_TINY: Final = {
    # To generate and compile code takes longer than to compute some thousand rows without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_SHARED: Final = {
    # Tasks share one file evenly. By default Spark counts four megabytes for each file that is opened, so of ten
    # megabytes one of two tasks would get seven, and so would one of the table's files.
    "spark.sql.files.openCostInBytes": str(64 << 10),
}
_SETTINGS: Final = MappingProxyType(
    {
        "tiny": _IMMUTABLE | _SMALL | _TINY,
        "small": _IMMUTABLE | _SMALL,
        "keys": _IMMUTABLE | _SMALL | PUSHED_LISTS,
        "large": _IMMUTABLE,
        "copy": _IMMUTABLE | _SHARED,
    }
)


def commit_session(spark: SparkSession, work: Work) -> SparkSession:
    """The companion session for commits whose sources do not change."""
    session = companion(spark, work, _SETTINGS[work])
    copy_stamp(spark, session)
    return session

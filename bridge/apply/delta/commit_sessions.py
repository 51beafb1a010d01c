"""Sessions for commits of net effects: a subscription's session has two companions with settings of their own.

Several tables are committed to at once, and their commits need different settings; settings belong to a session. The
companions have the stamp that the subscription's session has (see `stamp.stamped`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.apply.delta.stamp import copy_stamp
from bridge.session import companion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMMUTABLE: Final = {
    # Delta would copy every source that is not a Delta table, in case it changes between its passes.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_SMALL: Final = {
    # Each shuffle would be a job of its own; a small commit takes longer to plan than to compute.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def commit_session(spark: SparkSession, *, small: bool) -> SparkSession:
    """The companion session for commits whose sources do not change.

    Args:
        spark: The subscription's session.
        small: Neither the source nor what is shuffled of the target is large.
    """
    session = companion(spark, "small", _IMMUTABLE | _SMALL) if small else companion(spark, "large", _IMMUTABLE)
    copy_stamp(spark, session)
    return session

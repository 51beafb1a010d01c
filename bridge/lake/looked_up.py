"""Makes a commit depend on rows that were looked up before it: its query looks again, and fails if they have changed.

This is for commits whose source was computed outside of Delta's transaction. The query that is part of the commit reads
the version that the commit replaces; `retry` has the rows looked up again.
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.lake.raise_error import error_object
from bridge.targets.location import quoted

_CHANGED: Final = "pgbridge_changed"
"""Marks the error that the rows have changed."""

_SIDE: Final = "pgbridge_side"


def unless_changed(source: DataFrame, looked_up: DataFrame, now: DataFrame) -> DataFrame:
    """The rows of a commit, whose computation fails if rows have changed; `have_changed` knows the error.

    Args:
        source: The rows.
        looked_up: What the source relies on, in columns that Spark can group by. It is a copy: not read again.
        now: The query that reads the same of the table as it is now. Equal rows count.
    """
    sides = looked_up.withColumn(_SIDE, F.lit(1)).unionByName(now.withColumn(_SIDE, F.lit(-1)))
    difference = sides.groupBy(*map(quoted, looked_up.columns)).agg(F.sum(_SIDE).alias(_SIDE))
    changed = F.raise_error(F.lit(json.dumps({_CHANGED: True}))).cast("boolean")
    # a condition that is false without being a constant, which would be divided into two conditions
    no_rows = difference.filter(F.when(F.col(_SIDE) == 0, F.col(_SIDE) > 0).otherwise(changed))
    empty = (F.lit(None).cast(field.dataType).alias(field.name) for field in source.schema.fields)
    return source.unionByName(no_rows.select(*empty))


def have_changed(error: BaseException) -> bool:
    """Whether a commit failed because what it relied on has changed since it was looked up; nothing was committed."""
    return error_object(error, _CHANGED) is not None

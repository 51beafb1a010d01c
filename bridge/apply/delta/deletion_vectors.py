"""Gives large tables deletion vectors, so that a commit writes the rows it changes, not the files that hold them.

Without them Delta writes each touched file anew: with random keys, a thousand changes touch every file of a table. With
them a commit marks the rows as deleted. That takes Delta more steps, which small tables need not pay for.

The property is set in a commit of its own, before the batch's commit and without its stamp: neither does Delta take the
ALTER TABLE for the batch, nor does an undo revert it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge import faults
from bridge.apply.delta.delta_table import forget_size, table_size
from bridge.apply.target.location import sql_name
from bridge.session import companion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.apply.delta.delta_table import TableSize

LARGE_BYTES: Final = 128 << 20
"""Below this size they save little: with a million rows in 48 MB a commit takes about as long either way."""


def enable_for_large(spark: SparkSession, path: str, size: TableSize) -> None:
    """Give a table deletion vectors, if it is large, pgbridge created it, and nobody has decided otherwise.

    Args:
        spark: The subscription's session.
        path: The Delta table.
        size: Its size.
    """
    if not (size.vectors_undecided and size.size_bytes >= LARGE_BYTES):
        return
    forget_size(path)  # somebody may have decided since
    if table_size(spark, path).vectors_undecided:
        unstamped = companion(spark, "unstamped", {})
        unstamped.sql(
            f"ALTER TABLE {sql_name(path)} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        ).collect()
        forget_size(path)
        faults.reach("vectors_enabled")

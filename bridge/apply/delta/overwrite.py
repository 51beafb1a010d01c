"""Commits that replace all rows of a Delta table: for an initial copy, and for TRUNCATE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.apply.delta.delta_table import existing_schema
from bridge.apply.delta.layout import layout_of, overwrite_keeping, overwrite_with_columns
from bridge.apply.delta.stamp import stamp_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.apply.delta.stamp import CommitStamp
    from bridge.table_layout import Layout


def overwrite_rows(
    rows: DataFrame,
    path: str,
    stamp: CommitStamp | None = None,
    *,
    columns_too: bool = False,
    rows_per_file: int | None = None,
    layout: Layout | None = None,
) -> None:
    """Replace all rows of an existing table, in one commit; its layout stays.

    Args:
        rows: The new rows, under the target's column names.
        path: The Delta table.
        stamp: The commit's stamp, outside of `stamped`.
        columns_too: Replace the table's columns by those of the rows; else they stay. Of the layout what the new
            columns allow stays.
        rows_per_file: The most rows of a file; None for one file for each partition of `rows`.
        layout: The table's layout; None to ask Delta for it.
    """
    options = stamp_options(stamp) if stamp is not None else {}
    if rows_per_file is not None:
        options["maxRecordsPerFile"] = str(rows_per_file)
    found = layout_of(rows.sparkSession, path) if layout is None else layout
    overwrite = overwrite_with_columns if columns_too else overwrite_keeping
    overwrite(rows, path, options, found)


def truncate_table(spark: SparkSession, path: str) -> None:
    """Remove all rows of the table, in one commit; its columns stay.

    Raises:
        TargetError: The table does not exist any more.
    """
    overwrite_rows(spark.createDataFrame([], existing_schema(spark, path)), path)

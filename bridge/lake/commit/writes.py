"""Single commits to a Delta table: rows are appended, all rows are overwritten, or a MERGE is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.lake import forms, location, table
from bridge.lake.log.stamp import CommitStamp, stamp_options
from bridge.targets.location import sql_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bridge.runtime.warehouse import Layout

ONE_FILE_ROWS: Final = 50_000
"""Up to this many rows are appended as one file, not as one for each core."""

_RECENT: Final = 100
"""So many commits are searched for the last MERGE: other writers may have committed since."""


def append_rows(rows: DataFrame, path: str) -> None:
    """Add rows, under the target's column names, to an existing table; one that has vanished is not created again."""
    location.append_table(rows, path)


def commit_nothing(spark: SparkSession, path: str, schema: StructType, stamp: CommitStamp) -> None:
    """Make an empty commit with this stamp, outside of `stamped`; Delta leaves it out if the table has the stamp."""
    location.append_table(spark.createDataFrame([], schema), path, stamp_options(stamp))


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
        stamp: The commit's stamp, outside of `stamped`.
        columns_too: Replace the table's columns by those of the rows; else they stay. Of the layout what the new
            columns allow stays.
        rows_per_file: The most rows of a file; None for one file for each partition of `rows`.
        layout: The table's layout; None to ask Delta for it.
    """
    options = stamp_options(stamp) if stamp is not None else {}
    if rows_per_file is not None:
        options["maxRecordsPerFile"] = str(rows_per_file)
    kept = forms.layout_of(rows.sparkSession, path) if layout is None else layout
    overwrite = forms.overwrite_with_columns if columns_too else forms.overwrite_keeping
    overwrite(rows, path, options, kept)


def truncate_table(spark: SparkSession, path: str) -> None:
    """Remove all rows of the table, in one commit; its columns stay.

    Raises:
        TargetError: The table does not exist any more.
    """
    schema = table.written_schema(spark, path)
    # where nothing is at the location, `existing_schema` says so
    overwrite_rows(spark.createDataFrame([], table.existing_schema(spark, path) if schema is None else schema), path)


class MergeCounts(NamedTuple):
    """Rows of the target that a MERGE has changed."""

    updated: int
    deleted: int
    inserted: int


def merge_into(source: DataFrame, path: str, statement: Callable[[str], str]) -> MergeCounts | None:
    """Run a MERGE, of which `statement` makes the statement, given the name of a view of `source`.

    Returns:
        The row counts; None if Delta left the MERGE out, because the table has the batch already.
    """
    view = f"pgbridge_effects_{abs(hash(path)):x}"
    source.createOrReplaceTempView(view)
    try:
        rows = source.sparkSession.sql(statement(view)).collect()
    finally:
        source.sparkSession.catalog.dropTempView(view)
    if not rows:
        return None
    return MergeCounts(rows[0].num_updated_rows, rows[0].num_deleted_rows, rows[0].num_inserted_rows)


def version_before_merge(spark: SparkSession, path: str) -> int:
    """The table's version before its last MERGE."""
    history = spark.sql(f"DESCRIBE HISTORY {sql_name(path)} LIMIT {_RECENT}").filter("operation = 'MERGE'")
    last: int = history.selectExpr("max(version)").collect()[0][0]
    return last - 1

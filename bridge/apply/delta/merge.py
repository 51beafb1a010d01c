"""Runs a MERGE, which is one commit, and reads its row counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.apply.delta.location import read_table
from bridge.apply.target.location import sql_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


_RECENT = 100  # commits that are searched for the last MERGE: other writers may have committed since


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """Rows of the target that a MERGE has changed."""

    updated: int
    deleted: int
    inserted: int


def merge_into(source: DataFrame, path: str, statement: Callable[[str], str]) -> MergeCounts | None:
    """Run a MERGE.

    Args:
        source: The rows to merge.
        path: The Delta table.
        statement: Makes the statement, given the name of a view of `source`.

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


def before_merge(spark: SparkSession, path: str) -> DataFrame:
    """The table's rows before its last MERGE."""
    history = spark.sql(f"DESCRIBE HISTORY {sql_name(path)} LIMIT {_RECENT}").filter("operation = 'MERGE'")
    last: int = history.selectExpr("max(version)").collect()[0][0]
    return read_table(spark, path, version=last - 1)

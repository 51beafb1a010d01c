"""A MERGE as one commit, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.apply.target.target import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


_RECENT = 100  # commits among which the last MERGE is looked for; others may have written since


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """Rows of the target that a MERGE changed."""

    updated: int
    deleted: int
    inserted: int


def merge_into(source: DataFrame, path: str, statement: Callable[[str], str]) -> MergeCounts | None:
    """Run a MERGE.

    Args:
        source: What is merged.
        path: The Delta table.
        statement: The statement, from the name of a view of the source.

    Returns:
        What it did; None when Delta left it out, because the table has the batch already.
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
    """The table as it was before its last MERGE."""
    history = spark.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT {_RECENT}").filter("operation = 'MERGE'")
    last: int = history.selectExpr("max(version)").collect()[0][0]
    return spark.read.format("delta").option("versionAsOf", last - 1).load(path)

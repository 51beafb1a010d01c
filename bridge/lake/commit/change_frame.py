"""A table's changes in the change schema (`bridge.batch.change_schema`): a DataFrame, and appended to its changelog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import VariantType

from pgbridge.bridge.batch.change_schema import NEW, OLD, OPERATION, POSITION_NAMES, UNCHANGED
from pgbridge.bridge.effects.events import COMMANDS, INSERT, NO_OLD, TRUNCATE, UPDATE
from pgbridge.bridge.lake import schema, source
from pgbridge.bridge.lake.writes import ONE_FILE_ROWS, append_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pgbridge.bridge.batch.batch import TableChanges
    from pgbridge.bridge.targets.target import TargetColumn


def change_frame(spark: SparkSession, changes: TableChanges) -> DataFrame:
    """The changes of a target that keeps every change, a row for each, in no particular order."""
    frame, columns = source.as_frame(spark, changes.changes), changes.columns
    operations = F.create_map(*(F.lit(value) for pair in COMMANDS.items() for value in pair))
    has_old = (F.col("old") != NO_OLD) & ~F.col("op").isin(INSERT, TRUNCATE)
    has_new = F.col("op").isin(INSERT, UPDATE)
    return frame.select(
        operations[F.col("op").cast("int")].alias(OPERATION),
        *(F.col(name) for name in POSITION_NAMES),
        F.when(has_old, _image("old", columns, frame)).alias(OLD),
        F.when(has_new, _image("new", columns, frame)).alias(NEW),
        _unchanged(columns, frame).alias(UNCHANGED),
    )


def append_changes(spark: SparkSession, changes: TableChanges) -> None:
    """Commit one table's changes to its changelog.

    Raises:
        PySparkException, Py4JError: The commit failed (see `bridge.lake`).
    """
    if changes.empty:
        return  # only its columns have changed
    rows = change_frame(spark, changes)
    few = len(changes.changes) <= ONE_FILE_ROWS
    append_rows(rows.coalesce(1) if few else rows, changes.target.path)


def _image(kind: str, columns: Sequence[TargetColumn], frame: DataFrame) -> Column:
    there = frozenset(frame.columns)

    def value(name: str, column: TargetColumn) -> Column:
        if name in there:
            return schema.stored_column(name, column)
        type_ = VariantType() if schema.is_variant(column) else schema.spark_type(column.type.arrow)
        return F.lit(None).cast(type_).alias(column.name)

    return F.struct(*(value(f"{kind}_{i}", column) for i, column in enumerate(columns)))


def _unchanged(columns: Sequence[TargetColumn], frame: DataFrame) -> Column:
    """The names of the columns whose value was not sent; NULL if there are none."""
    marked = [(i, column.name) for i, column in enumerate(columns) if f"unchanged_{i}" in frame.columns]
    if not marked:
        return F.lit(None).cast("array<string>")
    names = F.array_compact(F.array(*(F.when(F.col(f"unchanged_{i}"), F.lit(name)) for i, name in marked)))
    return F.when((F.col("op") == UPDATE) & (F.size(names) > 0), names)

"""Applies row filters to the changes of a batch, as PostgreSQL's `pgoutput_row_filter` does.

An INSERT passes if the filter is true for its new row, a DELETE if it is true for its old row. An UPDATE has both rows:

    old row matches   new row matches   becomes
    no                no                nothing
    no                yes               INSERT
    yes               no                DELETE
    yes               yes               UPDATE

NULL is no match. An UPDATE without an old tuple has not changed its replica identity, and a filter of updates may use
no other columns, so its new row stands for both. The published actions are not checked again for what a change becomes.
An unchanged TOAST value, which the stream does not carry, is taken from the old tuple; if that does not have it, it is
NULL in an UPDATE that becomes an INSERT.

Of the changes that pass, `published_changes` leaves the published columns.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.batch.batch import Staged
from bridge.batch.change_schema import POSITION_NAMES
from bridge.batch.row_filters import PASSED
from bridge.effects.events import DELETE, INSERT, NO_OLD, TRUNCATE, UPDATE
from bridge.lake.changes.unrepresentable import MARKS, exact, held
from bridge.lake.schema import spark_type
from bridge.lake.source import as_frame
from bridge.targets.widening import published_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from bridge.batch.batch import TableChanges
    from bridge.batch.row_filters import RowFilter, RowFilters
    from bridge.targets.target import TargetColumn


def filter_changes(
    changes: DataFrame,
    filters: RowFilters,
    positions: Mapping[str, int],
    types: Mapping[str, DataType] = MappingProxyType({}),
) -> DataFrame:
    """Return the changes that pass, each with the operation it becomes.

    Args:
        changes: In the columns of `TableChanges.changes`; if there is an old tuple, with `old_<i>` for every column
            that the filters use.
        types: The published types, which filters compute with, of columns that the target has wider, by name.

    Returns:
        A DataFrame in the same columns, and `lost` (boolean): an UPDATE became an INSERT, and a value of it is NULL
        because the stream does not carry it.
    """
    has_olds = any(name.startswith("old_") for name in changes.columns)
    changes = _with_unheld_columns(changes)

    def value(kind: str, name: str) -> Column:
        i = positions[name]
        column, text = F.col(f"{kind}_{i}"), f"{MARKS[kind]}_{i}"
        if name in types:
            column = column.cast(types[name])
        if text not in changes.columns:
            return column
        return exact(name, column, F.col(text), types.get(name) or changes.schema[f"{kind}_{i}"].dataType)

    def new(name: str) -> Column:
        i = positions[name]
        if has_olds and f"unchanged_{i}" in changes.columns and f"old_{i}" in changes.columns:
            carried = ~F.col(f"unchanged_{i}") | (F.col("old") == NO_OLD)
            return F.when(carried, value("new", name)).otherwise(old(name))
        return value("new", name)

    def old(name: str) -> Column:
        return value("old", name)

    def true(row_filter: RowFilter | None, row: Callable[[str], Column]) -> Column:
        if row_filter is None:
            return F.lit(True)
        return F.coalesce(row_filter.to_spark(row), F.lit(False))

    new_matches = true(filters.update, new)
    becomes = (
        F.when(F.col("op") == INSERT, F.when(true(filters.insert, new), INSERT))
        .when(F.col("op") == DELETE, F.when(true(filters.delete, old), DELETE) if has_olds else F.lit(DELETE))
        .when(F.col("op") == TRUNCATE, TRUNCATE)
        .when(F.col("old") == NO_OLD, F.when(new_matches, UPDATE))
    )
    if has_olds:
        old_matches = true(filters.update, old)
        becomes = becomes.otherwise(
            F.when(new_matches, F.when(old_matches, UPDATE).otherwise(INSERT)).when(old_matches, DELETE)
        )
    becomes = F.when(_passed(changes), F.col("op")).otherwise(becomes)
    marked = changes.withColumn("becomes", becomes.cast("smallint")).filter(F.col("becomes").isNotNull())
    return _with_new_operations(marked, has_olds=has_olds)


def _passed(changes: DataFrame) -> Column:
    """Whether a server's filters have let a change pass: Spark's do not look at it."""
    return F.coalesce(F.col(PASSED), F.lit(False)) if PASSED in changes.columns else F.lit(False)


def _with_unheld_columns(changes: DataFrame) -> DataFrame:
    """Add `unheld_<i>` where an UPDATE that becomes an INSERT may take such a text from the old tuple."""
    for name in changes.columns:
        kind, _, i = name.partition("_")
        if kind == "oldunheld" and f"unchanged_{i}" in changes.columns and f"unheld_{i}" not in changes.columns:
            changes = changes.withColumn(f"unheld_{i}", F.lit(None).cast("string"))
    return changes


def _with_new_operations(marked: DataFrame, *, has_olds: bool) -> DataFrame:
    """Give changes their new operations; an INSERT that was an UPDATE takes unchanged values from the old tuple."""
    born = (F.col("op") == UPDATE) & (F.col("becomes") == INSERT)
    columns: list[Column] = []
    lost = F.lit(False)
    for name in marked.columns:
        kind, _, i = name.partition("_")
        if name in {"becomes", PASSED}:
            continue
        if name == "op":
            columns.append(F.col("becomes").alias("op"))
        elif kind == "new" and has_olds and {f"unchanged_{i}", f"old_{i}"} <= set(marked.columns):
            from_old = born & F.col(f"unchanged_{i}")
            columns.append(F.when(from_old, F.col(f"old_{i}")).otherwise(F.col(name)).alias(name))
            known = F.col(f"old_{i}").isNotNull()
            if f"oldunheld_{i}" in marked.columns:
                known |= F.col(f"oldunheld_{i}").isNotNull()
            lost |= from_old & ~known
        elif kind == "unheld" and {f"unchanged_{i}", f"oldunheld_{i}"} <= set(marked.columns):
            from_old = born & F.col(f"unchanged_{i}")
            columns.append(F.when(from_old, F.col(f"oldunheld_{i}")).otherwise(F.col(name)).alias(name))
        elif kind == "unchanged":
            columns.append((F.col(name) & ~born).alias(name))
            if f"old_{i}" not in marked.columns:
                lost |= born & F.col(name)
        else:
            columns.append(F.col(name))
    return marked.select(*columns, lost.alias("lost"))


def published_changes(
    spark: SparkSession,
    changes: TableChanges,
    unrepresentable: Literal["error", "null"] = "error",
    lost: Callable[[int], None] = lambda _: None,
) -> tuple[DataFrame, tuple[TargetColumn, ...], tuple[int, ...]]:
    """The changes that pass the row filters, each with the operation it becomes.

    Returns:
        The changes, their columns, and the key's positions among these. Evaluating the DataFrame raises an error if a
        value cannot be held and may not be NULL.
    """
    frame, columns, key = _published(passed_changes(spark, changes, lost), changes)
    return held(frame, columns, key, unrepresentable), columns, key


def passed_changes(spark: SparkSession, changes: TableChanges, lost: Callable[[int], None]) -> DataFrame:
    """The changes that pass the row filters, as what they become; also columns that only filters need."""
    frame = _frame(spark, changes)
    if changes.lost:
        lost(changes.lost)
    if not changes.filters:
        return frame
    positions = {column.name: i for i, column in enumerate(changes.columns)}
    types = {c.name: published_type(c.type) for c in changes.columns}
    wider = {c.name: spark_type(types[c.name]) for c in changes.columns if not c.type.arrow.equals(types[c.name])}
    passed = filter_changes(frame, changes.filters, positions, wider)
    if any(name.startswith("unchanged_") for name in frame.columns) and (rows := passed.filter("lost").count()):
        lost(rows)
    return passed.drop("lost")


def _frame(spark: SparkSession, changes: TableChanges) -> DataFrame:
    if isinstance(changes.changes, Staged):
        staged: DataFrame = changes.changes.frame
        return staged
    return as_frame(spark, changes.changes)


def _published(frame: DataFrame, changes: TableChanges) -> tuple[DataFrame, tuple[TargetColumn, ...], tuple[int, ...]]:
    """Drop the columns that only the filters need; returns the changes, the columns, the key's positions."""
    published = [i for i, c in enumerate(changes.columns) if changes.published is None or c.name in changes.published]
    if len(published) == len(changes.columns):
        return frame, changes.columns, changes.key
    place = {str(position): i for i, position in enumerate(published)}
    parts = [name.partition("_") for name in frame.columns]
    kept = [F.col(name) for name in ("seq", "op", "old", *POSITION_NAMES) if name in frame.columns]
    kept += [F.col("".join(part)).alias(f"{part[0]}_{place[part[2]]}") for part in parts if part[2] in place]
    columns = tuple(changes.columns[i] for i in published)
    return frame.select(*kept), columns, tuple(published.index(k) for k in changes.key)

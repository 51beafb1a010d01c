"""A table's changes as a DataFrame, in which only what is published is left: rows that pass, published columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.batch.table_changes import Staged
from bridge.apply.delta.filter_changes import filter_changes
from bridge.apply.delta.schema import spark_type
from bridge.apply.delta.stage import as_frame
from bridge.apply.delta.unrepresentable import held
from bridge.apply.target.widening import published_type
from bridge.changes.schema import POSITION_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from bridge.apply.batch.table_changes import TableChanges
    from bridge.apply.target.target import TargetColumn


def published_changes(
    spark: SparkSession,
    changes: TableChanges,
    unrepresentable: Literal["error", "null"] = "error",
    lost: Callable[[int], None] = lambda _: None,
) -> tuple[DataFrame, tuple[TargetColumn, ...], tuple[int, ...]]:
    """The changes that pass the row filters, each with the operation it becomes.

    Args:
        spark: The session.
        changes: The changes.
        unrepresentable: As in `apply_table`.
        lost: As in `apply_table`.

    Returns:
        The changes, their columns, and the key's positions among these. Evaluating the DataFrame raises an error if a
        value cannot be held and may not be NULL.
    """
    frame, columns, key = _published(passed_changes(spark, changes, lost), changes)
    return held(frame, columns, key, unrepresentable), columns, key


def passed_changes(spark: SparkSession, changes: TableChanges, lost: Callable[[int], None]) -> DataFrame:
    """The changes that pass the row filters, each with the operation it becomes; also columns that only filters need.

    Args:
        spark: The session.
        changes: The changes.
        lost: As in `apply_table`.
    """
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

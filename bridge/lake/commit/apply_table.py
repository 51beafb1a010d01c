"""Commits one table's changes of a batch: chooses append, overwrite or MERGE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bridge.effects.conflicts import Tally
from bridge.lake.commit.bag import Bag
from bridge.lake.commit.conflicts import KeyedTarget
from bridge.lake.commit.execute import apply_effects, overwrite
from bridge.lake.commit.merge_bag import apply_bag
from bridge.lake.commit.one_by_one import apply_one_by_one, raise_one_by_one
from bridge.lake.commit.plan import SMALL_ROWS, fits_broadcast, work_of_append
from bridge.lake.commit.sessions import commit_session
from bridge.lake.commit.writes import ONE_FILE_ROWS, append_rows, overwrite_rows, truncate_table
from bridge.lake.schema import stored_column
from bridge.lake.source import arrow_source, as_frame
from bridge.lake.table import existing_schema
from bridge.lake.table_facts import KnownTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from bridge.batch.batch import TableChanges
    from bridge.effects.conflicts import Conflicts
    from bridge.targets.target import TargetColumn


def apply_table(
    spark: SparkSession,
    changes: TableChanges,
    *,
    known: KnownTables | None = None,
    conflict: Literal["error", "apply_remote"] = "error",
    conflicts: Callable[[Conflicts], None] = lambda _: None,
) -> None:
    """Commit one mirrored table's changes: nothing, an append, an overwrite, or a MERGE.

    Args:
        known: What earlier commits have left known of tables; None for nothing.
        conflict: If an INSERT or a key change meets an existing row: "error" makes the commit fail, with an error that
            `raise_error.conflict_of` reads; "apply_remote" overwrites the row.
        conflicts: Called with the conflicts that did not make the commit fail, if there are any.

    Raises:
        SPARK_ERRORS: The commit failed (see `bridge.lake`).
        TargetError: The target to truncate does not exist any more.
    """
    path = changes.target.path
    if changes.empty:
        if changes.truncated:
            truncate_table(spark, path)
        return
    if changes.truncated:
        existing_schema(spark, path)
    if changes.key:
        _keyed_tally(spark, changes, _keyed(changes, conflict), known or KnownTables()).report(
            changes.target.qualified_name, [changes.columns[k].name for k in changes.key], conflicts
        )
    elif changes.inserts_only:
        _append_keyless(spark, changes)
    else:
        generated = frozenset(field.name for field in changes.target.schema if field.filled == "generated")
        bag = Bag(path, changes.columns, fits_broadcast(changes.changes, SMALL_ROWS), changes.fills, generated)
        tally = apply_bag(spark, as_frame(spark, changes.changes), bag, truncated=changes.truncated)
        tally.report(changes.target.qualified_name, bag.names, conflicts, full=True)


def _keyed(changes: TableChanges, conflict: Literal["error", "apply_remote"]) -> KeyedTarget:
    return KeyedTarget(
        changes.target.qualified_name,
        changes.target.path,
        changes.columns,
        changes.key,
        overwrite=conflict == "apply_remote",
        keeps_beside=changes.target.keeps_beside(changes.columns),
    )


def _keyed_tally(spark: SparkSession, changes: TableChanges, keyed: KeyedTarget, known: KnownTables) -> Tally:
    """Commit the changes' net effect, or the changes one by one, if it does not say it all."""
    effect = changes.net_effect()
    if effect.clear and changes.truncated:
        return overwrite(commit_session(spark, "large"), effect, keyed)
    tally = apply_effects(spark, effect, keyed, known) if effect.clear else None
    if tally is not None:
        return tally
    if changes.effect is None:
        return apply_one_by_one(spark, changes.changes, keyed, truncated=changes.truncated)
    raise_one_by_one(spark, keyed)  # returns if Delta leaves the commit out
    return Tally()


def _append_keyless(spark: SparkSession, changes: TableChanges) -> None:
    """Commit INSERTs into a target without a key."""
    values = changes.changes.select([f"new_{i}" for i in range(len(changes.columns))])
    with arrow_source(commit_session(spark, work_of_append(len(values))), values) as source:
        rows = _rows(source, changes.columns)
        if len(values) <= ONE_FILE_ROWS:
            rows = rows.coalesce(1)
        if changes.truncated:
            overwrite_rows(rows, changes.target.path)
        else:
            append_rows(rows, changes.target.path)


def _rows(frame: DataFrame, columns: Sequence[TargetColumn]) -> DataFrame:
    """The new rows as the target's columns store them."""
    return frame.select(*(stored_column(f"new_{i}", column) for i, column in enumerate(columns)))

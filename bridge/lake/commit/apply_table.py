"""Commits one table's changes of a batch: chooses append, overwrite or MERGE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from bridge.batch.batch import Staged
from bridge.effects.conflicts import Tally
from bridge.effects.net_effect import net_effect
from bridge.lake.commit.bag import Bag
from bridge.lake.commit.conflicts import KeyedTarget
from bridge.lake.commit.merge_bag import apply_bag
from bridge.lake.commit.merge_by_key import apply_keyed, raise_one_by_one
from bridge.lake.commit.merge_effects import apply_effects
from bridge.lake.commit.sessions import commit_session, work_of_append
from bridge.lake.commit.writes import ONE_FILE_ROWS, append_new, append_rows, new_keys, overwrite_rows, truncate_table
from bridge.lake.schema import stored_column
from bridge.lake.source import arrow_source, changes_frame
from bridge.lake.table import existing_schema

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
    conflict: Literal["error", "apply_remote"] = "error",
    conflicts: Callable[[Conflicts], None] = lambda _: None,
) -> None:
    """Commit one mirrored table's changes: nothing, an append, an overwrite, or a MERGE.

    Args:
        conflict: If an INSERT or a key change meets an existing row: "error" makes the commit fail, with an error that
            `raise_error.conflict_of` reads; "apply_remote" overwrites the row.
        conflicts: Called with the conflicts that did not make the commit fail, if there are any.

    Raises:
        SPARK_ERRORS: The commit failed (see `bridge.lake`).
        TargetError: The target to truncate does not exist any more.
    """
    relation = changes.target.qualified_name
    path = changes.target.path
    if changes.empty:
        if changes.truncated:
            truncate_table(spark, path)
        return
    if changes.truncated:
        existing_schema(spark, path)
    if _apply_effect(spark, changes, conflict, conflicts) or _append_keyless(spark, changes):
        return
    frame, columns, key = changes_frame(spark, changes), changes.columns, changes.key
    names = [column.name for column in columns]
    toast = [i for i in range(len(names)) if f"unchanged_{i}" in frame.columns]
    overwrite, beside = conflict == "apply_remote", changes.target.keeps_beside(columns)
    keyed = KeyedTarget(relation, path, columns, key, overwrite=overwrite, keeps_beside=beside) if key else None
    if changes.inserts_only and not (changes.truncated and key):
        if changes.truncated:
            overwrite_rows(_rows(frame, columns), path)
            return
        if keyed is None:
            append_rows(_rows(frame, columns), path)
            return
        if not keyed.overwrite and (keys := new_keys(changes)).unique:
            append_new(spark, frame, keyed, keys)
            return
    if keyed is None:
        rows = None if isinstance(changes.changes, Staged) else len(changes.changes)
        generated = frozenset(field.name for field in changes.target.schema if field.filled == "generated")
        bag = Bag(path, columns, rows, changes.fills, generated)
        tally = apply_bag(spark, frame, bag, truncated=changes.truncated)
        tally.report(relation, names, conflicts, full=True)
    else:
        # the effects that Spark computes end a row, and begin another one, where the key changes
        needs_fold = changes.needs_fold or (beside and changes.key_changes)
        tally = apply_keyed(spark, frame, keyed, toast, truncated=changes.truncated, needs_fold=needs_fold)
        tally.report(relation, keyed.key_names, conflicts)


def _apply_effect(
    spark: SparkSession,
    changes: TableChanges,
    conflict: Literal["error", "apply_remote"],
    conflicts: Callable[[Conflicts], None],
) -> bool:
    """Commit the changes' net effect, if it can be had here and says it all; returns whether it was committed."""
    effect = changes.effect
    if effect is None and changes.foldable:
        effect = net_effect(changes.changes, changes.key)
    if effect is None:
        return False
    target = changes.target
    overwrite = conflict == "apply_remote"
    keyed = KeyedTarget(
        target.qualified_name,
        target.path,
        changes.columns,
        changes.key,
        overwrite=overwrite,
        keeps_beside=target.keeps_beside(changes.columns),
    )
    tally = apply_effects(spark, effect, keyed, truncated=changes.truncated)
    if tally is None:
        if changes.effect is None:
            return False
        raise_one_by_one(spark, keyed)  # returns if Delta leaves the commit out
        tally = Tally()
    tally.report(target.qualified_name, keyed.key_names, conflicts)
    return True


def _append_keyless(spark: SparkSession, changes: TableChanges) -> bool:
    """Commit INSERTs into a target without a key; returns whether that is all."""
    inserts = changes.changes
    if isinstance(inserts, Staged) or changes.key or not changes.inserts_only:
        return False
    values = inserts.select([f"new_{i}" for i in range(len(changes.columns))])
    with arrow_source(commit_session(spark, work_of_append(len(values))), values) as source:
        rows = _rows(source, changes.columns)
        if len(values) <= ONE_FILE_ROWS:
            rows = rows.coalesce(1)
        if changes.truncated:
            overwrite_rows(rows, changes.target.path)
        else:
            append_rows(rows, changes.target.path)
    return True


def _rows(frame: DataFrame, columns: Sequence[TargetColumn]) -> DataFrame:
    """The new rows as the target's columns store them."""
    return frame.select(*(stored_column(f"new_{i}", column) for i, column in enumerate(columns)))

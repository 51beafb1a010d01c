"""Commits one table's changes of a batch: their net effect; or one by one, where it does not say what they come to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F

from pgbridge.bridge.effects import fold
from pgbridge.bridge.effects.conflicts import Conflicts, Tally
from pgbridge.bridge.effects.events import events
from pgbridge.bridge.effects.net_effect import NetEffect, shape_of
from pgbridge.bridge.lake import commit_errors, location, retry, schema, table, table_facts
from pgbridge.bridge.lake.commit.bag import Bag
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.lake.commit.execute import apply_effects, merge, overwrite
from pgbridge.bridge.lake.commit.merge import Clauses
from pgbridge.bridge.lake.commit.merge_bag import apply_bag
from pgbridge.bridge.lake.commit.plan import SMALL_ROWS, Merge, fits_broadcast, work_of_append
from pgbridge.bridge.lake.commit.sessions import commit_session
from pgbridge.bridge.lake.source import arrow_source, as_frame
from pgbridge.bridge.lake.writes import ONE_FILE_ROWS, append_rows, merge_into, overwrite_rows, truncate_table
from pgbridge.bridge.targets.location import quoted, sql_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgbridge.bridge.batch.batch import TableChanges
    from pgbridge.bridge.targets.target import TargetColumn


def apply_table(
    spark: SparkSession,
    changes: TableChanges,
    *,
    known: table_facts.KnownTables | None = None,
    conflict: Literal["error", "apply_remote"] = "error",
    conflicts: Callable[[Conflicts], None] = lambda _: None,
) -> None:
    """Commit one mirrored table's changes: nothing, an append, an overwrite, or a MERGE.

    Args:
        known: What earlier commits have left known of tables; None for nothing.
        conflict: If an INSERT or a key change meets an existing row: "error" makes the commit fail, with an error that
            `commit_errors.conflict_of` reads; "apply_remote" overwrites the row.
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
        table.existing_schema(spark, path)
    if changes.key:
        keyed = KeyedTarget.of(changes, overwrite=conflict == "apply_remote")
        tally = _keyed_tally(spark, changes, keyed, known or table_facts.KnownTables())
        tally.report(keyed.relation, keyed.key_names, conflicts)
    elif changes.inserts_only:
        _append_keyless(spark, changes)
    else:
        generated = frozenset(field.name for field in changes.target.schema if field.filled == "generated")
        bag = Bag(path, changes.columns, fits_broadcast(changes.changes, SMALL_ROWS), changes.fills, generated)
        tally = apply_bag(spark, as_frame(spark, changes.changes), bag, truncated=changes.truncated)
        tally.report(changes.target.qualified_name, bag.names, conflicts, full=True)


def _keyed_tally(
    spark: SparkSession, changes: TableChanges, keyed: KeyedTarget, known: table_facts.KnownTables
) -> Tally:
    """Commit the changes' net effect, or the changes one by one, if it does not say it all."""
    effect = changes.net_effect()
    if not keyed.keeps_beside and (not effect.clear or effect.shape.reborn):
        # somebody may have added a column since the stream began: a row that ended does not leave its value to another
        keyed = replace(keyed, keeps_beside=not keyed.holds(location.read_table(spark, keyed.path).columns))
    if effect.clear and changes.truncated:
        return overwrite(commit_session(spark, "large"), effect, keyed)
    tally = apply_effects(spark, effect, keyed, known) if effect.clear else None
    if tally is not None:
        return tally
    if changes.effect is None:
        return _one_by_one(spark, changes.changes, keyed, truncated=changes.truncated)
    _raise_one_by_one(spark, keyed)  # returns if Delta leaves the commit out
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
    return frame.select(*(schema.stored_column(f"new_{i}", column) for i, column in enumerate(columns)))


# --- One by one -------------------------------------------------------------------------------------------------------
#
# Events that do not follow from each other, and a missing row that moves to another key, need the rows that the table
# has: their keys are looked up, the changes are folded by them, and the commit depends on what was looked up.


def _one_by_one(spark: SparkSession, changes: pa.Table, keyed: KeyedTarget, *, truncated: bool) -> Tally:
    """Commit changes; returns the conflicts that it bears, none if the table has the batch already.

    Args:
        changes: In the columns of `TableChanges.changes`.
        truncated: The target is emptied first.
    """
    tally = Tally()
    types = [column.type.arrow for column in keyed.columns]
    of_key = {f"{kind}_{k}" for kind in ("new", "old") for k in keyed.key}
    looked_at = changes.select([name for name in changes.column_names if name in {"seq", "op", "old"} | of_key])
    touched = events(looked_at, keyed.key)[0].select([f"match_{k}" for k in keyed.key])
    with arrow_source(spark, touched) as source:
        keys = keyed.keys_of(location.read_table(spark, keyed.path)).join(source, keyed.found("match"), "left_semi")
        looked_up = (keys.limit(0) if truncated else keys).toArrow()
        present = {fold.key_of_values(row.values()) for row in looked_up.to_pylist()}
        try:
            folded = fold.fold(
                changes, keyed.key, types, present, tally, overwrite=keyed.overwrite, apart=keyed.keeps_beside
            )
        except fold.Exists as error:
            _raise(spark, keyed, error.key, keyed.raising(commit_errors.literal(error.name), "match"))
            return Tally()
        effect = NetEffect(folded, shape_of(folded))
        if truncated:
            return overwrite(spark, effect, keyed, tally)
        clauses = Clauses.of(effect, overwrite=keyed.overwrite)
        if not len(folded):
            clauses = replace(clauses, deletes=True)  # a MERGE has a clause, also one that finds nothing
        merged = merge(
            spark,
            Merge(clauses, "large", ranges=False),
            effect,
            keyed,
            lambda effects: retry.unless_changed(effects, as_frame(spark, looked_up), keys),
        )
    return tally if merged is not None else Tally()


def _raise_one_by_one(spark: SparkSession, keyed: KeyedTarget) -> None:
    """Make a commit that fails: the changes have to be made one by one, and are not there any more.

    The error is raised only when effects are applied: Delta may leave the commit out.

    Raises:
        PySparkException: The changes have to be made one by one.
    """
    text = f'the changes of "{keyed.relation}" have to be made one by one: they move a row that is missing'
    _raise(
        spark, keyed, (None,) * len(keyed.key), f"CAST(raise_error({commit_errors.literal(text)}) AS {keyed.key_type})"
    )


def _raise(spark: SparkSession, keyed: KeyedTarget, key: Sequence[Any], expression: str) -> None:
    """Make a commit that fails by an expression of the type of the key's first column, unless Delta leaves it out."""
    types = [keyed.columns[k].type.arrow for k in keyed.key]
    matched = zip(keyed.key, key, types, strict=True)
    frame = as_frame(spark, pa.table({f"match_{k}": pa.array([value], arrow) for k, value, arrow in matched}))
    first = quoted(keyed.key_names[0])
    match = " AND ".join(f"t.{quoted(name)} = s.match_{k}" for name, k in zip(keyed.key_names, keyed.key, strict=True))
    merge_into(
        frame.withColumn("raised", F.expr(expression)),
        keyed.path,
        lambda view: (
            f"MERGE INTO {sql_name(keyed.path)} AS t USING {view} AS s ON {match} "
            f"WHEN MATCHED THEN UPDATE SET t.{first} = s.raised "
            f"WHEN NOT MATCHED THEN INSERT ({first}) VALUES (s.raised)"
        ),
    )

"""Commits changes of all kinds to a table with a key: a MERGE of their net effect.

Conflicts are found by the commit itself, not before it. An existing row with the key of a new one makes the commit
fail, unless Delta leaves it out because it has the batch already; missing rows show in the MERGE's row counts. So does
a missing row that moves to another key, because the result then depends on each change in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.effects import fold
from bridge.effects.conflicts import DELETE_MISSING, EXAMPLES, INSERT_EXISTS, UPDATE_EXISTS, UPDATE_MISSING, Tally
from bridge.effects.net_effect import Shape
from bridge.lake.changes.net_effect import ARRIVED, BEGINS, INSERTED, events, net_effect, reborn_apart
from bridge.lake.commit import merge
from bridge.lake.commit.merge import leaving_clause, left_none
from bridge.lake.commit.writes import overwrite_rows
from bridge.lake.location import read_table
from bridge.lake.looked_up import unless_changed
from bridge.lake.raise_error import conflict_of, literal
from bridge.lake.schema import is_variant, stored_column
from bridge.lake.source import as_frame
from bridge.lake.table import table_version
from bridge.spark.outcome import SPARK_ERRORS
from bridge.targets.location import quoted, sql_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from bridge.lake.commit.conflicts import KeyedTarget


def apply_keyed(
    spark: SparkSession,
    changes: DataFrame,
    keyed: KeyedTarget,
    toast: Sequence[int],
    *,
    truncated: bool,
    needs_fold: bool,
) -> Tally:
    """Commit changes of all kinds; returns the conflicts that it bears, none if the table has the batch already.

    Args:
        changes: In the columns of `TableChanges.changes`.
        toast: Positions of the columns that have an `unchanged_<i>`.
        truncated: The target is empty.
        needs_fold: A key change carries an unchanged TOAST value.
    """
    if needs_fold:
        return _one_by_one(spark, changes, keyed, truncated=truncated)
    effects = net_effect(changes, keyed.key, toast)
    effects = (effects if truncated or not keyed.keeps_beside else reborn_apart(effects, keyed.key)).persist()
    try:
        tally = _commit(spark, effects, _shape(effects), keyed, truncated=truncated)
        return tally if tally is not None else _one_by_one(spark, changes, keyed, truncated=truncated)
    finally:
        effects.unpersist()


def raise_one_by_one(spark: SparkSession, keyed: KeyedTarget) -> None:
    """Make a commit that fails: the changes have to be made one by one, and are not there any more.

    The error is raised only when effects are applied: Delta may leave the commit out.

    Raises:
        PySparkException: The changes have to be made one by one.
    """
    text = f'the changes of "{keyed.relation}" have to be made one by one: they move a row that is missing'
    raising = f"CAST(raise_error({literal(text)}) AS {keyed.key_type})"
    _merge(_raising_effect(spark, keyed, (None,) * len(keyed.key), INSERTED, raising), keyed)


def _commit(
    spark: SparkSession, effects: DataFrame, shape: Shape, keyed: KeyedTarget, *, truncated: bool
) -> Tally | None:
    """Commit effects; returns None, and commits nothing, if they do not determine the result."""
    if shape.unclear or (shape.leaves and truncated):
        return None
    if truncated:
        missing = _none_found(effects, keyed) if shape.puts or shape.deletes else Tally()
        return _overwrite(spark, effects, keyed, missing)
    try:
        merged = _merge(effects, keyed, leaves=bool(shape.leaves))
    except SPARK_ERRORS as error:
        # perhaps no conflict: a row that is missing does not come to the key that is taken
        if shape.leaves and (left_none(error) or conflict_of(error) is not None):
            return None
        raise
    if merged is None or fits(shape, merged, overwrite=keyed.overwrite):
        return Tally()
    return conflicts(effects, keyed.keys_of(merge.before_merge(spark, keyed.path)), keyed)


def _shape(effects: DataFrame) -> Shape:
    new, put = F.col("first").isin(*BEGINS), F.col("action") == "put"
    kinds = {
        "unclear": F.col("unclear"),
        "leaves": F.col("leaves"),
        "moved": F.lit(False),  # here a key change deletes a row and inserts another one
        "puts": ~new & put,
        "deletes": ~new & ~put,
        "reborn": ~new & put & F.col("born"),
        "new": new & put,
        "brief": new & ~put,
    }
    row = effects.agg(*(F.count_if(kind).alias(name) for name, kind in kinds.items())).collect()[0]
    return Shape(**row.asDict())


def fits(shape: Shape, merged: merge.MergeCounts, *, overwrite: bool) -> bool:
    """Whether the MERGE found every row that it had to find, and no other: no conflicts."""
    if (merged.updated, merged.deleted, merged.inserted) != (shape.puts, shape.deletes, shape.new):
        return False
    # a missing row and an existing one, that was not expected, can cancel out in the counts
    return not overwrite or not ((shape.reborn and shape.new) or (shape.deletes and shape.brief))


def _merge(effects: DataFrame, keyed: KeyedTarget, *, leaves: bool = False) -> merge.MergeCounts | None:
    toast = [i for i in range(len(keyed.columns)) if f"unchanged_{i}" in effects.columns]
    name = f"CASE s.first WHEN '{INSERTED}' THEN '{INSERT_EXISTS}' ELSE '{UPDATE_EXISTS}' END"
    raising = None if keyed.overwrite else keyed.raising(name, "s.match")
    variants = [i for i, column in enumerate(keyed.columns) if is_variant(column)]
    leaving = keyed.key_type if leaves else None
    return merge_effects(effects, keyed.path, keyed.names, keyed.key, toast, raising, variants, leaving)


def _overwrite(spark: SparkSession, effects: DataFrame, keyed: KeyedTarget, tally: Tally) -> Tally:
    """Overwrite the truncated target with the rows born in the batch; other effects have no row to act on."""
    born = effects.filter("action = 'put' AND born")
    before = table_version(spark, keyed.path) if tally.counts else 0
    rows = born.select(*(stored_column(f"new_{i}", column) for i, column in enumerate(keyed.columns)))
    overwrite_rows(rows, keyed.path)
    return tally if tally.counts and table_version(spark, keyed.path) > before else Tally()


def any_missing(spark: SparkSession, effects: DataFrame, keyed: KeyedTarget) -> bool:
    """Whether the target lacks a row that effects are on."""
    keys = keyed.keys_of(read_table(spark, keyed.path))
    return not effects.join(keys, keyed.found("match"), "left_anti").isEmpty()


def _none_found(effects: DataFrame, keyed: KeyedTarget) -> Tally:
    """Count the conflicts with an empty target."""
    nothing = effects.limit(0).select(*(F.col(f"match_{k}").alias(f"t_{k}") for k in keyed.key))
    return conflicts(effects, nothing, keyed)


def conflicts(effects: DataFrame, before: DataFrame, keyed: KeyedTarget) -> Tally:
    """Count conflicts: compare effects with the keys that the target had before them."""
    here = F.col(f"t_{keyed.key[0]}").isNotNull()
    old = ~F.col("first").isin(*BEGINS)
    number = {
        INSERT_EXISTS: F.when(here & (F.col("first") == INSERTED), 1),
        UPDATE_EXISTS: F.when(here & (F.col("first") == ARRIVED), 1),
        UPDATE_MISSING: F.when(~here & old, F.col("updates")),
        DELETE_MISSING: F.when(~here & old, F.col("deletes")),
    }
    rows = effects.join(before.distinct(), keyed.found("match"), "left").select(
        *(f"match_{k}" for k in keyed.key),
        *(F.coalesce(count, F.lit(0)).alias(name) for name, count in number.items()),
    )
    tally = Tally(rows.agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in number)).collect()[0].asDict())
    for name, count in tally.counts.items():
        if count:
            examples = rows.filter(F.col(name) > 0).limit(EXAMPLES).select(*(f"match_{k}" for k in keyed.key))
            tally.keys[name] = [tuple(row.values()) for row in examples.toArrow().to_pylist()]
    return tally


def _one_by_one(spark: SparkSession, changes: DataFrame, keyed: KeyedTarget, *, truncated: bool) -> Tally:
    """Fold the changes in Python (see `bridge.effects.fold`), and commit the effects."""
    tally = Tally()
    types = [column.type.arrow for column in keyed.columns]
    touched = events(changes, keyed.key).select(*(f"match_{k}" for k in keyed.key)).distinct()
    keys = keyed.keys_of(read_table(spark, keyed.path)).join(touched, keyed.found("match"), "left_semi")
    looked_up = (keys.limit(0) if truncated else keys).toArrow()
    present = {fold.key_of_values(row.values()) for row in looked_up.to_pylist()}
    rows = changes.orderBy("seq").toArrow()
    try:
        folded = fold.fold(rows, keyed.key, types, present, tally, overwrite=keyed.overwrite, apart=keyed.keeps_beside)
        effects = as_frame(spark, folded)
    except fold.Exists as error:
        effects = _failing(spark, keyed, error)
    if truncated:
        return _overwrite(spark, effects, keyed, tally)
    effects = unless_changed(effects, as_frame(spark, looked_up), keys)
    return tally if _merge(effects, keyed) is not None else Tally()


def _failing(spark: SparkSession, keyed: KeyedTarget, error: fold.Exists) -> DataFrame:
    """Effects that raise a conflict only when they are applied: Delta may leave the commit out."""
    first = INSERTED if error.name == INSERT_EXISTS else ARRIVED
    return _raising_effect(spark, keyed, error.key, first, keyed.raising(literal(error.name), "match"))


def _raising_effect(
    spark: SparkSession, keyed: KeyedTarget, key: Sequence[Any], first: str, expression: str
) -> DataFrame:
    """An effect that raises when it is applied, by an expression of the type of the key's first column."""
    types = [column.type.arrow for column in keyed.columns]
    matched = {f"match_{k}": pa.array([value], types[k]) for k, value in zip(keyed.key, key, strict=True)}
    values = {f"new_{i}": pa.nulls(1, arrow) for i, arrow in enumerate(types)}
    effects = as_frame(spark, pa.table({**matched, "action": ["put"], "born": [True], **values, "first": [first]}))
    return effects.withColumn(f"new_{keyed.key[0]}", F.expr(expression))


def merge_effects(
    effects: DataFrame,
    path: str,
    columns: Sequence[str],
    key: Sequence[int],
    toast: Sequence[int],
    raising: str | None = None,
    variants: Sequence[int] = (),
    leaving: str | None = None,
) -> merge.MergeCounts | None:
    """Apply effects (see `bridge.lake.changes.net_effect`), at most one for each row of the target, in one commit.

    Args:
        toast: Positions of the columns that have an `unchanged_<i>`.
        raising: An expression over `s`, of the type of the key's first column, that raises; evaluated if an effect
            that begins with a new row finds an existing one. None to overwrite the existing one.
        variants: Positions of the columns of VARIANT.
        leaving: The type of the key's first column, if the commit is to fail where a row is missing that effects move
            to another key; `left_none` knows the error.

    Returns:
        The row counts; None if the table has the batch already.
    """
    return merge.merge_into(
        effects, path, lambda view: merge_statement(view, path, columns, key, toast, raising, variants, leaving)
    )


def merge_statement(
    view: str,
    path: str,
    columns: Sequence[str],
    key: Sequence[int],
    toast: Sequence[int],
    raising: str | None = None,
    variants: Sequence[int] = (),
    leaving: str | None = None,
) -> str:
    """The statement of `merge_effects`. Rows have no NULL in the key, so `=` finds them, and a NULL matches none."""
    condition = " AND ".join(f"t.{quoted(columns[k])} = s.match_{k}" for k in key)

    def value(i: int) -> str:
        return f"parse_json(s.new_{i})" if i in variants else f"s.new_{i}"

    def new(i: int) -> str:
        if i in toast:
            return f"CASE WHEN s.unchanged_{i} THEN t.{quoted(columns[i])} ELSE {value(i)} END"
        return value(i)

    update = ", ".join(f"t.{quoted(name)} = {new(i)}" for i, name in enumerate(columns))
    names = ", ".join(quoted(name) for name in columns)
    values = ", ".join(map(value, range(len(columns))))
    first = quoted(columns[key[0]])
    begins = "s.first IN ('insert', 'arrive')"
    exists = f"WHEN MATCHED AND {begins} THEN UPDATE SET t.{first} = {raising} " if raising else ""
    return (
        f"MERGE INTO {sql_name(path)} AS t USING {view} AS s ON {condition} {exists}"
        "WHEN MATCHED AND s.action = 'delete' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {update} "
        f"{leaving_clause(first, leaving) if leaving else ''}"
        f"WHEN NOT MATCHED AND s.action = 'put' AND s.born THEN INSERT ({names}) VALUES ({values})"
    )

"""Tables whose rows have a key: an append where all rows are new, else a MERGE of the net effect.

Conflicts are found on the way, not before it: a row that is in the way makes the commit itself fail, which Delta leaves
out unseen when it has the batch already; what is missing shows in the numbers that MERGE returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.batch.table_changes import Staged
from bridge.apply.delta import commit
from bridge.apply.delta.net_effect import ARRIVED, BEGINS, INSERTED, events, net_effect
from bridge.apply.delta.raise_error import literal, raised
from bridge.apply.delta.schema import spark_type
from bridge.apply.delta.stage import as_frame
from bridge.apply.effects import fold
from bridge.apply.effects.conflicts import (
    DELETE_MISSING,
    EXAMPLES,
    INSERT_EXISTS,
    UPDATE_EXISTS,
    UPDATE_MISSING,
    Tally,
)
from bridge.apply.target.target import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from bridge.apply.batch.table_changes import TableChanges
    from bridge.apply.target.target import TargetColumn

_BROADCAST_ROWS = 500_000
"""Up to so many inserted keys, the target's are looked up among them; beyond, both are sorted."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """A target whose rows have a key.

    Attributes:
        relation: `namespace.name`.
        path: The Delta table.
        columns: The replicated columns.
        key: Positions of the key's columns.
        overwrite: A row that is in the way is overwritten (`conflict = "apply_remote"`).
    """

    relation: str
    path: str
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    overwrite: bool = False

    @property
    def names(self) -> list[str]:
        """The replicated columns' names."""
        return [column.name for column in self.columns]

    @property
    def key_names(self) -> list[str]:
        """The key's columns."""
        return [self.columns[k].name for k in self.key]

    def keys_of(self, rows: DataFrame) -> DataFrame:
        """The keys of rows of the target, as `t_<k>`."""
        return rows.select(*(F.col(quoted(self.columns[k].name)).alias(f"t_{k}") for k in self.key))

    def found(self, prefix: str) -> Column:
        """Whether `t_<k>` is the key in the columns of a prefix."""
        return reduce(and_, (F.col(f"t_{k}") == F.col(f"{prefix}_{k}") for k in self.key))

    def raising(self, name: str, prefix: str) -> str:
        """An expression, in the type of the key's first column, that fails with a conflict of the key."""
        columns = [(self.columns[k].name, f"{prefix}_{k}", self.columns[k].type.arrow) for k in self.key]
        type_ = spark_type(self.columns[self.key[0]].type.arrow).simpleString()
        return f"CAST({raised(name, self.relation, columns)} AS {type_})"


# --- new rows only ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewKeys:
    """The keys of rows that are inserted.

    Attributes:
        rows: How many.
        unique: None is there twice.
        bounds: The least and the greatest value of each column of the key; None where they are not known.
    """

    rows: int
    unique: bool
    bounds: tuple[tuple[Any, Any] | None, ...]


def new_keys(changes: TableChanges) -> NewKeys:
    """Look at the keys of changes that are inserts."""
    names = [f"new_{k}" for k in changes.key]
    ranged = [_has_bounds(changes.columns[k].type.arrow) for k in changes.key]
    if not isinstance(changes.changes, Staged):
        table = changes.changes.select(names)
        lists = any(pa.types.is_list(field.type) for field in table.schema)
        unique = not lists and table.group_by(names).aggregate([]).num_rows == len(table)
        found = [pc.min_max(table[name]).as_py() if has else None for name, has in zip(names, ranged, strict=True)]
        return NewKeys(len(table), unique, tuple(one and (one["min"], one["max"]) for one in found))
    keys = changes.changes.frame.select(*names)
    row = keys.agg(
        F.count("*").alias("rows"),
        F.count_distinct(F.struct(*names)).alias("different"),
        *(F.struct(F.min(name), F.max(name)).alias(name) for name in names),
    ).collect()[0]
    bounds = tuple(tuple(row[name]) if has else None for name, has in zip(names, ranged, strict=True))
    return NewKeys(row["rows"], row["rows"] == row["different"], bounds)


def _has_bounds(arrow: pa.DataType) -> bool:
    """Whether values are ordered in Arrow, Python and Delta's statistics alike."""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_date)
    return any(test(arrow) for test in tests)


def append_new(spark: SparkSession, inserts: DataFrame, keyed: Keyed, keys: NewKeys) -> None:
    """Append rows; the commit fails where the target has one of the keys.

    Args:
        spark: The session.
        inserts: The rows, in `new_<i>`.
        keyed: The target.
        keys: What is known of their keys; no key is there twice.
    """
    target = keyed.keys_of(spark.read.format("delta").load(keyed.path))
    for k, bounds in zip(keyed.key, keys.bounds, strict=True):
        if bounds is not None and None not in bounds:
            target = target.filter(F.col(f"t_{k}").between(F.lit(bounds[0]), F.lit(bounds[1])))
    wanted = inserts.select(*(F.col(f"new_{k}").alias(f"s_{k}") for k in keyed.key))
    if keys.rows <= _BROADCAST_ROWS:
        wanted = F.broadcast(wanted)
    exists = target.join(wanted, keyed.found("s"), "left_semi")
    values = [F.col(f"new_{i}").alias(name) for i, name in enumerate(keyed.names)]
    # No row of this comes to be: the first fails.
    in_the_way = exists.select(
        *(
            (F.expr(keyed.raising(literal(INSERT_EXISTS), "t")) if i == keyed.key[0] else F.lit(None))
            .cast(inserts.schema[f"new_{i}"].dataType)
            .alias(name)
            for i, name in enumerate(keyed.names)
        )
    )
    commit.append(inserts.select(*values).unionByName(in_the_way), keyed.path)


# --- any changes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """How many effects there are of which kind.

    Attributes:
        unclear: Of events that do not follow from each other.
        leaves: On rows of the target that left their key.
        puts, deletes: On rows of the target.
        reborn: Of `puts`: the row ended, and another one came.
        new: Rows that begin in the batch.
        brief: Rows that begin and end in it.
    """

    unclear: int
    leaves: int
    puts: int
    deletes: int
    reborn: int
    new: int
    brief: int

    def fits(self, merged: commit.Merged, *, overwrite: bool) -> bool:
        """Whether the MERGE found every row that it had to find, and no other."""
        if (merged.updated, merged.deleted, merged.inserted) != (self.puts, self.deletes, self.new):
            return False
        # a row that is missing and one that is in the way can hide each other
        return not overwrite or not ((self.reborn and self.new) or (self.deletes and self.brief))


def apply_keyed(
    spark: SparkSession,
    changes: DataFrame,
    keyed: Keyed,
    toast: Sequence[int],
    *,
    truncated: bool,
    needs_fold: bool,
) -> Tally:
    """Commit changes of all kinds.

    Args:
        spark: The session.
        changes: In the columns of `TableChanges.changes`.
        keyed: The target.
        toast: Positions of the columns that have an `unchanged_<i>`.
        truncated: The target is empty.
        needs_fold: A key change carries an unchanged TOAST value.

    Returns:
        The conflicts that were no errors; none if the commit was there already.
    """
    if needs_fold:
        return _one_by_one(spark, changes, keyed, truncated=truncated)
    effects = net_effect(changes, keyed.key, toast).persist()
    try:
        shape = _shape(effects)
        if shape.unclear or (shape.leaves and (truncated or _any_missing(spark, effects.filter("leaves"), keyed))):
            return _one_by_one(spark, changes, keyed, truncated=truncated)
        if truncated:
            missing = _none_found(effects, keyed) if shape.puts or shape.deletes else Tally()
            return _overwrite(spark, effects, keyed, missing)
        merged = _merge(effects, keyed)
        if merged is None or shape.fits(merged, overwrite=keyed.overwrite):
            return Tally()
        return _conflicts(effects, keyed.keys_of(commit.before_merge(spark, keyed.path)), keyed)
    finally:
        effects.unpersist()


def _shape(effects: DataFrame) -> _Shape:
    new, put = F.col("first").isin(*BEGINS), F.col("action") == "put"
    kinds = {
        "unclear": F.col("unclear"),
        "leaves": F.col("leaves"),
        "puts": ~new & put,
        "deletes": ~new & ~put,
        "reborn": ~new & put & F.col("born"),
        "new": new & put,
        "brief": new & ~put,
    }
    row = effects.agg(*(F.count_if(kind).alias(name) for name, kind in kinds.items())).collect()[0]
    return _Shape(**row.asDict())


def _merge(effects: DataFrame, keyed: Keyed) -> commit.Merged | None:
    toast = [i for i in range(len(keyed.columns)) if f"unchanged_{i}" in effects.columns]
    name = f"CASE s.first WHEN '{INSERTED}' THEN '{INSERT_EXISTS}' ELSE '{UPDATE_EXISTS}' END"
    raising = None if keyed.overwrite else keyed.raising(name, "s.match")
    return commit.merge(effects, keyed.path, keyed.names, keyed.key, toast, raising)


def _overwrite(spark: SparkSession, effects: DataFrame, keyed: Keyed, tally: Tally) -> Tally:
    """The target is empty, so what is not born in the batch has nothing to act on."""
    born = effects.filter("action = 'put' AND born")
    before = commit.version(spark, keyed.path) if tally.counts else 0
    commit.overwrite(born.select(*(F.col(f"new_{i}").alias(name) for i, name in enumerate(keyed.names))), keyed.path)
    return tally if tally.counts and commit.version(spark, keyed.path) > before else Tally()


def _any_missing(spark: SparkSession, effects: DataFrame, keyed: Keyed) -> bool:
    keys = keyed.keys_of(spark.read.format("delta").load(keyed.path))
    return not effects.join(keys, keyed.found("match"), "left_anti").isEmpty()


def _none_found(effects: DataFrame, keyed: Keyed) -> Tally:
    """The conflicts with an empty target."""
    nothing = effects.limit(0).select(*(F.col(f"match_{k}").alias(f"t_{k}") for k in keyed.key))
    return _conflicts(effects, nothing, keyed)


def _conflicts(effects: DataFrame, before: DataFrame, keyed: Keyed) -> Tally:
    """Hold effects against the keys that the target had before them."""
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


def _one_by_one(spark: SparkSession, changes: DataFrame, keyed: Keyed, *, truncated: bool) -> Tally:
    """Fold the changes in Python (see `moved`)."""
    tally = Tally()
    types = [column.type.arrow for column in keyed.columns]
    present: set[fold.Key] = set()
    if not truncated:
        touched = events(changes, keyed.key).select(*(f"match_{k}" for k in keyed.key)).distinct()
        target = keyed.keys_of(spark.read.format("delta").load(keyed.path))
        found = target.join(touched, keyed.found("match"), "left_semi").toArrow()
        present = {fold.key_of_values(row.values()) for row in found.to_pylist()}
    rows = changes.orderBy("seq").toArrow()
    try:
        effects = as_frame(spark, fold.fold(rows, keyed.key, types, present, tally, overwrite=keyed.overwrite))
    except fold.Exists as error:
        effects = _failing(spark, keyed, error)
    if truncated:
        return _overwrite(spark, effects, keyed, tally)
    return tally if _merge(effects, keyed) is not None else Tally()


def _failing(spark: SparkSession, keyed: Keyed, error: fold.Exists) -> DataFrame:
    """Effects that fail with a conflict when, and only when, they are applied."""
    types = [column.type.arrow for column in keyed.columns]
    key = {f"match_{k}": pa.array([value], types[k]) for k, value in zip(keyed.key, error.key, strict=True)}
    values = {f"new_{i}": pa.nulls(1, arrow) for i, arrow in enumerate(types)}
    first = INSERTED if error.name == INSERT_EXISTS else ARRIVED
    effects = as_frame(spark, pa.table({**key, "action": ["put"], "born": [True], **values, "first": [first]}))
    raising = F.expr(keyed.raising(literal(error.name), "match"))
    return effects.withColumn(f"new_{keyed.key[0]}", raising)

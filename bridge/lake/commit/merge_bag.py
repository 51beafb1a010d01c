"""Commits changes to a table under REPLICA IDENTITY FULL without a key: a bag, which may have equal rows.

As in PostgreSQL's subscriber, a DELETE removes one of equal rows, an UPDATE changes one of them, and NULLs are equal
(`tuples_equal` in execReplication.c). Here, rows are equal if all their values are the same, including the sign of a
zero; NaN equals NaN. PostgreSQL uses the type's `=`, by which 0 is -0 and, in a numeric without scale, 1.0 is 1.00, and
takes the first row that it finds: of such rows it may take another one than the publisher did.

Copies of each distinct row are counted. A change of a row that the target does not have does nothing, and the row that
it would have made does not exist for later changes. If no row's count ever falls below zero, there is no such change,
and the sums suffice: the MERGE's own query counts the copies. Otherwise the copies are counted beforehand, and the
changes are made one by one. So are changes that both remove and add rows, if the target has columns of its own (say,
one that was dropped on the server): a row that an UPDATE changes keeps its values in them, and a new row that equals
a deleted one does not have that one's.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F

from pgbridge.bridge.effects.bag_moves import bag_moves
from pgbridge.bridge.effects.conflicts import DELETE_MISSING, KEPT_KEYS, UPDATE_MISSING, Tally
from pgbridge.bridge.effects.events import DELETE, INSERT, NO_OLD, UPDATE
from pgbridge.bridge.lake import commit_errors, retry, table
from pgbridge.bridge.lake.commit.bag import Bag, BagTable
from pgbridge.bridge.lake.source import as_frame, checkpointed
from pgbridge.bridge.lake.writes import overwrite_rows
from pgbridge.bridge.spark.outcome import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MISSING: Final = "pgbridge_missing"
"""Marks the error that a change does not find its row."""


def apply_bag(spark: SparkSession, changes: DataFrame, bag: Bag, *, truncated: bool) -> Tally:
    """Commit changes to a bag; returns the conflicts, none if the table has the batch already.

    Args:
        changes: In the columns of `TableChanges.changes`, with the old values of all columns.
        truncated: The target was truncated before the changes.
    """
    halves = halves_of(changes, bag)
    target = BagTable.read(spark, bag)
    if truncated:
        return _overwrite(spark, halves, target)
    moves_own = bool(target.own) and len(halves.select("delta").distinct().head(2)) > 1
    if not moves_own and _merge_sums(halves, target):
        return Tally()
    tally = Tally()
    counted = checkpointed(counted_of(halves, target))
    if moves_own:
        source = _traced(spark, halves, counted, target, tally)
    else:
        source = _settled(_one_by_one(spark, halves, counted, bag, tally), target)
    keys = [f"k_{i}" for i in bag.places]
    looked_up = counted.filter("copies > 0").select(*keys, "copies")
    merged = target.merge(retry.unless_changed(source, looked_up, _copies(counted.select(*keys), target)))
    return tally if merged else Tally()


def _merge_sums(halves: DataFrame, target: BagTable) -> bool:
    """Commit changes by their sums; returns False, with nothing committed, if a change does not find its row."""
    none_missing = F.col("low") + F.col("copies") >= 0
    missing = F.raise_error(F.lit(json.dumps({_MISSING: True}))).cast("boolean")
    try:
        target.merge(_settled(_sums(halves, target.bag), target, F.when(none_missing, none_missing).otherwise(missing)))
    except SPARK_ERRORS as error:
        if commit_errors.error_object(error, _MISSING) is None:
            raise
        return False
    return True


def _overwrite(spark: SparkSession, halves: DataFrame, target: BagTable) -> Tally:
    """Commit changes to a table that was truncated before them: it has no copies of any row."""
    bag, tally = target.bag, Tally()
    counted = _sums(halves, bag).withColumn("copies", F.lit(0).cast("bigint")).persist()
    try:
        settled = counted
        if not counted.filter("low < 0").isEmpty():
            settled = _one_by_one(spark, halves, counted, bag, tally)
        before = table.table_version(spark, bag.path) if tally.counts else 0
        overwrite_rows(target.named(_born(settled)), bag.path)
    finally:
        counted.unpersist()
    return tally if tally.counts and table.table_version(spark, bag.path) > before else Tally()


def halves_of(changes: DataFrame, bag: Bag) -> DataFrame:
    """Divide changes into halves: the row that each removes, and the row that it adds.

    Returns:
        `v_<i>` (the row), `k_<i>` (see `Bag.identities`), `op`, `ord` (bigint: an UPDATE removes before it adds),
        `delta` (-1 or 1). An UPDATE without an old tuple removes its new row, as in `apply_handle_update_internal`.
    """

    def old(i: int) -> Column:
        if f"old_{i}" not in changes.columns:
            return F.lit(None)
        return F.when(F.col("old") == NO_OLD, F.col(f"new_{i}")).otherwise(F.col(f"old_{i}"))

    def new(i: int) -> Column:
        if f"unchanged_{i}" not in changes.columns:
            return F.col(f"new_{i}")
        return F.when(F.col(f"unchanged_{i}"), old(i)).otherwise(F.col(f"new_{i}"))

    def half(op: int, delta_: int, values: list[Column]) -> DataFrame:
        types = [changes.schema[f"new_{i}"].dataType for i in bag.places]
        return changes.filter(F.col("op") != op).select(
            *(value.cast(type_).alias(f"v_{i}") for i, (value, type_) in enumerate(zip(values, types, strict=True))),
            "op",
            (F.col("seq") * 2 + (0 if delta_ < 0 else 1)).alias("ord"),
            F.lit(delta_).alias("delta"),
        )

    taken = half(INSERT, -1, [old(i) for i in bag.places])
    added = half(DELETE, 1, [new(i) for i in bag.places])
    return taken.unionByName(added).select("*", *bag.identities([f"v_{i}" for i in bag.places]))


def _sums(halves: DataFrame, bag: Bag) -> DataFrame:
    """Add up the changes of each distinct row.

    Returns:
        `v_<i>`, `k_<i>`, `net` (copies added by the batch, or removed if negative), `low` (the least running sum of its
        changes).
    """
    keys = [f"k_{i}" for i in bag.places]
    level = F.sum("delta").over(Window.partitionBy(*keys).orderBy("ord"))
    return (
        halves.withColumn("level", level)
        .groupBy(*keys)
        .agg(
            *(F.first(f"v_{i}").alias(f"v_{i}") for i in bag.places),
            F.sum("delta").alias("net"),
            F.min("level").alias("low"),
        )
    )


def counted_of(halves: DataFrame, target: BagTable) -> DataFrame:
    """The sums of the changes of each distinct row, and its `copies` in the target."""
    bag = target.bag
    copies = _copies(halves.select(*(f"k_{i}" for i in bag.places)).distinct(), target)
    return (
        _sums(halves, bag)
        .alias("s")
        .join(copies.alias("t"), bag.same("s", "t"), "left")
        .select("s.*", F.coalesce("t.copies", F.lit(0)).alias("copies"))
    )


def _copies(wanted: DataFrame, target: BagTable) -> DataFrame:
    """Those of these distinct rows, `k_<i>`, that the target has, and their `copies`."""
    return target.among(wanted).groupBy(*wanted.columns).agg(F.count("*").alias("copies"))


def _one_by_one(spark: SparkSession, halves: DataFrame, counted: DataFrame, bag: Bag, tally: Tally) -> DataFrame:
    """Give `counted` the `net` of making the changes one by one, of which some find no row.

    Python loops over the changes, and holds three numbers for each.
    """
    numbered, before, turns = _turns(halves, counted, bag)
    after, missing = settle(before, turns)
    _count(missing, numbered, bag, tally)
    net = pa.table({"id": list(after), "settled": [after[at] - before[at] for at in after]})
    settled = numbered.drop("net").join(as_frame(spark, net), "id")
    return settled.withColumnRenamed("settled", "net").drop("id")


def _turns(halves: DataFrame, counted: DataFrame, bag: Bag) -> tuple[DataFrame, dict[int, int], pa.Table]:
    """Number `counted`'s rows (`id`); returns them, their copies by number, and the halves' `ord`, `op` and `id`."""
    order = Window.orderBy(*(f"k_{i}" for i in bag.places))
    numbered = counted.withColumn("id", F.row_number().over(order).cast("bigint"))
    turns = (
        halves.alias("h")
        .join(numbered.alias("n"), bag.same("h", "n"))
        .select(F.col("h.ord").alias("ord"), F.col("h.op").alias("op"), F.col("n.id").alias("id"))
        .orderBy("ord")
        .toArrow()
    )
    copies = numbered.select("id", "copies").toArrow()
    return numbered, dict(zip(copies["id"].to_pylist(), copies["copies"].to_pylist(), strict=True)), turns


def _count(missing: Mapping[str, Counter[int]], numbered: DataFrame, bag: Bag, tally: Tally) -> None:
    for name, counts in missing.items():
        tally.counts[name] = counts.total()
        rows = numbered.filter(F.col("id").isin(list(counts)[:KEPT_KEYS])).select(*(f"v_{i}" for i in bag.places))
        tally.keys[name] = [tuple(row.values()) for row in rows.toArrow().to_pylist()]


def settle(before: Mapping[int, int], turns: pa.Table) -> tuple[dict[int, int], dict[str, Counter[int]]]:
    """Make changes one by one.

    Args:
        before: Copies of each row, by the row's number.
        turns: `ord`, `op` and `id` (the row's number) of `halves_of`, in order of `ord`.

    Returns:
        Copies afterwards; and, by the conflict's name, the number of changes of each row that found none.
    """
    after = dict(before)
    missing: dict[str, Counter[int]] = {}
    void = -1
    for turn, op, row in zip(*(turns[name].to_pylist() for name in ("ord", "op", "id")), strict=True):
        if turn % 2:
            after[row] += turn != void
        elif after[row]:
            after[row] -= 1
        else:
            missing.setdefault(UPDATE_MISSING if op == UPDATE else DELETE_MISSING, Counter())[row] += 1
            void = turn + 1
    return after, missing


def _born(settled: DataFrame) -> DataFrame:
    """The rows with more copies than before, once for each added copy."""
    return settled.filter("net > 0").withColumn("copy", F.explode(F.expr("sequence(1, net)")))


def _settled(nets: DataFrame, target: BagTable, condition: Column | None = None) -> DataFrame:
    """Make the source of the MERGE: delete all copies of rows that lose some, put the rest back, add new copies.

    The rest is read from the target, so that it keeps its columns that are not replicated; and so are the numbers of
    copies, by the query that is part of the commit.

    Args:
        condition: Over the columns of `nets` and `copies`, the copies in the target: raises if they are too few.
    """
    bag = target.bag
    keys = [f"k_{i}" for i in bag.places]
    there = target.among(nets.select(*keys)).withColumn("there", F.lit(True))
    both = nets.drop("copies").withColumn("there", F.lit(False)).unionByName(there, allowMissingColumns=True)
    equal = Window.partitionBy(*keys)
    numbers: dict[str, Column] = {name: F.max(name).over(equal) for name in ("net", "low") if name in nets.columns}
    numbers["copies"] = F.count_if("there").over(equal)
    numbers["copy"] = F.row_number().over(equal.orderBy("there")) - 1  # 0 is the one of the changes
    numbered = both.withColumns(numbers)
    if condition is not None:
        numbered = numbered.filter(condition)
    loses, rest = F.col("net") < 0, F.col("copies") + F.col("net")
    taken = numbered.filter(
        F.when(F.col("there"), loses & (F.col("copy") <= rest)).otherwise(
            (F.col("net") > 0) | (loses & (F.col("copies") > 0))
        )
    )
    deletes = ~F.col("there") & loses
    times = F.when(~F.col("there") & ~loses, F.col("net")).otherwise(1)
    return taken.withColumn("time", F.explode(F.sequence(F.lit(1), times))).select(
        F.when(deletes, "delete").when(F.col("there"), "keep").otherwise("put").alias("action"),
        *target.either("there", deletes),
    )


def _traced(spark: SparkSession, halves: DataFrame, counted: DataFrame, target: BagTable, tally: Tally) -> DataFrame:
    """As `_settled`, but a row that an UPDATE changes keeps its values in the target's own columns."""
    bag = target.bag
    numbered, before, turns = _turns(halves, counted, bag)
    moves = bag_moves(before, turns)
    _count(moves.missing, numbered, bag, tally)
    moved_to = moves.moved
    touched = sorted({row for (row, _), now in moved_to.items() if now != row})
    keys = [f"k_{i}" for i in bag.places]
    values = [f"v_{i}" for i in bag.places]
    stay = _numbers(spark, id=touched, stay=[moves.staying[row] for row in touched])
    rows, nth = [row for row, _ in moved_to], [copy for _, copy in moved_to]
    moved = _numbers(spark, id=rows, copy=nth, now=list(moved_to.values()))
    born = _numbers(spark, id=list(moves.inserted), net=list(moves.inserted.values()))
    gone = numbered.join(F.broadcast(stay), "id")
    copies = target.copies(gone.select(*keys, "id", "stay")).join(moved, ["id", "copy"], "left")
    kept = copies.withColumn("row", F.when(F.col("copy") <= F.col("stay"), F.col("id")).otherwise(F.col("now")))
    became = kept.select("row", *target.own_columns()).join(numbered.select(F.col("id").alias("row"), *values), "row")
    puts = target.puts(_born(numbered.drop("net").join(born, "id")))
    stayed = became.select(F.lit("keep").alias("action"), *bag.stored_values(), *target.own_columns())
    return target.deletes(gone).unionByName(puts).unionByName(stayed)


def _numbers(spark: SparkSession, **columns: Sequence[int | None]) -> DataFrame:
    return as_frame(spark, pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}))

"""Tables under REPLICA IDENTITY FULL without a key: bags, in which a row may be there several times.

As in PostgreSQL's subscriber, a DELETE takes one of equal rows away, an UPDATE makes another row of one of them, and
NULLs are equal (`tuples_equal` in execReplication.c). Rows are equal here if all their values are the same, down to
the sign of a zero; NaN is NaN. PostgreSQL asks the type's `=`, by which 0 is -0 and, in a numeric without scale, 1.0 is
1.00, and takes the first row that it finds: of such rows it may take another one than the publisher did.

Counted are copies. A change of a row that the target has not does nothing, and what it would have made of that row is
not there for the changes after it. Where no value's copies ever go below zero there is no such change, and sums are all
that is needed; otherwise the changes are gone through one by one. So are UPDATEs where
the target has columns of its own (one that was dropped on the server): their values stay, those of any row that is
equal in the other columns.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta.bag import Bag, BagTable
from bridge.apply.delta.delta_table import table_version
from bridge.apply.delta.overwrite import overwrite_rows
from bridge.apply.delta.stage import as_frame
from bridge.apply.effects.conflicts import DELETE_MISSING, EXAMPLES, UPDATE_MISSING, Tally
from bridge.apply.effects.operations import DELETE, INSERT, NO_OLD, UPDATE
from bridge.apply.effects.traced import trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession


def apply_bag(spark: SparkSession, changes: DataFrame, bag: Bag, *, truncated: bool) -> Tally:
    """Commit changes to a bag.

    Args:
        spark: The session.
        changes: In the columns of `TableChanges.changes`, with the old values of all columns.
        bag: The target.
        truncated: The target is empty.

    Returns:
        The conflicts; none if the commit was there already.
    """
    tally = Tally()
    halves = halves_of(changes, bag)
    counted = counted_of(spark, halves, bag, truncated=truncated).persist()
    try:
        settled = counted
        target = BagTable.read(spark, bag)
        if not truncated and target.own and not halves.filter(f"op = {UPDATE}").isEmpty():
            parts = _traced(spark, halves, counted, target, tally)
            return tally if target.merge_parts(parts) is not None else Tally()
        if not counted.filter("low + copies < 0").isEmpty():
            settled = _one_by_one(spark, halves, counted, bag, tally)
        settled = settled.filter("net != 0")
        if truncated:
            before = table_version(spark, bag.path) if tally.counts else 0
            overwrite_rows(target.named(_born(settled)), bag.path)
            done = not tally.counts or table_version(spark, bag.path) > before
        else:
            done = target.merge_parts(_settled(settled, target)) is not None
    finally:
        counted.unpersist()
    return tally if done else Tally()


def halves_of(changes: DataFrame, bag: Bag) -> DataFrame:
    """What each change takes away and what it adds.

    Returns:
        `v_<i>` (the row), `k_<i>` (see `Bag.identities`), `op`, `ord` (bigint: an UPDATE takes before it adds), `delta`
        (-1 or 1). An UPDATE without an old tuple is of the row as it is after it, as in `apply_handle_update_internal`.
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


def counted_of(spark: SparkSession, halves: DataFrame, bag: Bag, *, truncated: bool) -> DataFrame:
    """One row for each distinct row of the changes.

    Returns:
        `v_<i>`, `k_<i>`, `net` (copies more or less after the batch), `low` (the least that the sum of its changes
        comes to on the way), `copies` (in the target now).
    """
    keys = [f"k_{i}" for i in bag.places]
    level = F.sum("delta").over(Window.partitionBy(*keys).orderBy("ord"))
    folded = (
        halves.withColumn("level", level)
        .groupBy(*keys)
        .agg(
            *(F.first(f"v_{i}").alias(f"v_{i}") for i in bag.places),
            F.sum("delta").alias("net"),
            F.min("level").alias("low"),
        )
    )
    if truncated:
        return folded.withColumn("copies", F.lit(0).cast("bigint"))
    wanted = bag.small(halves.select(*keys).distinct())
    found = BagTable.read(spark, bag).rows.alias("t").join(wanted.alias("s"), bag.same("t", "s"), "left_semi")
    copies = found.groupBy(*keys).agg(F.count("*").alias("found"))
    return (
        folded.alias("s")
        .join(copies.alias("t"), bag.same("s", "t"), "left")
        .select("s.*", F.coalesce("t.found", F.lit(0)).alias("copies"))
    )


def _one_by_one(spark: SparkSession, halves: DataFrame, counted: DataFrame, bag: Bag, tally: Tally) -> DataFrame:
    """`counted` with the `net` that the changes have if each is made, or found to have no row, in its turn.

    In memory are three numbers for each change, and the turns are Python's.
    """
    numbered, before, turns = _turns(halves, counted, bag)
    after, missing = settle(before, turns)
    _count(missing, numbered, bag, tally)
    net = pa.table({"id": list(after), "settled": [after[at] - before[at] for at in after]})
    settled = numbered.drop("net").join(as_frame(spark, net), "id")
    return settled.withColumnRenamed("settled", "net").drop("id")


def _turns(halves: DataFrame, counted: DataFrame, bag: Bag) -> tuple[DataFrame, dict[int, int], pa.Table]:
    """`counted` with a number `id` for each row; the target's copies by number; `ord`, `op` and `id` of the halves."""
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
    for name, found in missing.items():
        tally.counts[name] = found.total()
        rows = numbered.filter(F.col("id").isin(list(found)[:EXAMPLES])).select(*(f"v_{i}" for i in bag.places))
        tally.keys[name] = [tuple(row.values()) for row in rows.toArrow().to_pylist()]


def settle(before: Mapping[int, int], turns: pa.Table) -> tuple[dict[int, int], dict[str, Counter[int]]]:
    """Make changes in their turn.

    Args:
        before: Copies of each row, by the row's number.
        turns: `ord`, `op` and `id` (the row's number) of `halves_of`, by `ord`.

    Returns:
        Copies afterwards, and of the changes that found no row, by the conflict's name, how many of each row.
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
    """The rows that are more than before, each as often."""
    return settled.filter("net > 0").withColumn("copy", F.explode(F.expr("sequence(1, net)")))


def _settled(settled: DataFrame, target: BagTable) -> list[DataFrame]:
    """Take all copies of the rows that become fewer away, put back what remains of them, and add the others.

    What remains comes from the target, so that its columns that are not replicated stay too.
    """
    gone = settled.filter("net < 0 AND copies > 0")
    parts = [target.deletes(gone), target.puts(_born(settled))]
    fewer = gone.filter("copies + net > 0")
    if not fewer.isEmpty():
        keys = [f"k_{i}" for i in target.bag.places]
        kept = target.copies(fewer.select(*keys, (F.col("copies") + F.col("net")).alias("keep"))).filter("copy <= keep")
        parts.append(kept.select(F.lit("put").alias("action"), *target.replicated(), *target.own_columns()))
    return parts


def _traced(
    spark: SparkSession, halves: DataFrame, counted: DataFrame, target: BagTable, tally: Tally
) -> list[DataFrame]:
    """The same where rows that become others take along what the target alone has of them."""
    bag = target.bag
    numbered, before, turns = _turns(halves, counted, bag)
    traced = trace(before, turns)
    _count(traced.missing, numbered, bag, tally)
    left = traced.left
    touched = sorted({row for (row, _), now in left.items() if now != row})
    keys = [f"k_{i}" for i in bag.places]
    values = [f"v_{i}" for i in bag.places]
    stay = _numbers(spark, id=touched, stay=[traced.stay[row] for row in touched])
    rows, nth = [row for row, _ in left], [copy for _, copy in left]
    moved = _numbers(spark, id=rows, copy=nth, now=list(left.values()))
    born = _numbers(spark, id=list(traced.born), net=list(traced.born.values()))
    gone = numbered.join(F.broadcast(stay), "id")
    copies = target.copies(gone.select(*keys, "id", "stay")).join(moved, ["id", "copy"], "left")
    kept = copies.withColumn("row", F.when(F.col("copy") <= F.col("stay"), F.col("id")).otherwise(F.col("now")))
    became = kept.select("row", *target.own_columns()).join(numbered.select(F.col("id").alias("row"), *values), "row")
    return [
        target.deletes(gone),
        target.puts(_born(numbered.drop("net").join(born, "id"))),
        became.select(F.lit("put").alias("action"), *values, *target.own_columns()),
    ]


def _numbers(spark: SparkSession, **columns: Sequence[int | None]) -> DataFrame:
    return as_frame(spark, pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}))

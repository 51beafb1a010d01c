"""Tables under REPLICA IDENTITY FULL without a key: bags, in which a row may be there several times.

As in PostgreSQL's subscriber, a DELETE takes one of equal rows away, an UPDATE makes another row of one of them, and
NULLs are equal (`tuples_equal` in execReplication.c). Rows are equal here if all their values are the same, down to
the sign of a zero; NaN is NaN. PostgreSQL asks the type's `=`, by which 0 is -0 and, in a numeric without scale, 1.0 is
1.00, and takes the first row that it finds: of such rows it may take another one than the publisher did.

Counted are copies. A change of a row that the target has not does nothing, and what it would have made of that row is
not there for the changes after it. Where no value's copies ever go below zero there is no such change, and sums are all
that is needed; otherwise the changes are gone through one by one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply import delta
from bridge.apply.changes import DELETE, INSERT, NO_OLD, UPDATE
from bridge.apply.conflicts import DELETE_MISSING, EXAMPLES, UPDATE_MISSING, Tally
from bridge.apply.stage import as_frame
from bridge.apply.target import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from bridge.apply.target import TargetColumn

_BROADCAST_ROWS = 50_000
"""Up to so many changes, the target's rows are looked up where they lie instead of being sorted by all columns."""


@dataclass(frozen=True, slots=True)
class Bag:
    """A target whose rows have no key.

    Attributes:
        path: The Delta table.
        columns: The replicated columns.
        rows: How many changes there are, where that is known.
    """

    path: str
    columns: tuple[TargetColumn, ...]
    rows: int | None = None

    @property
    def names(self) -> list[str]:
        """The replicated columns' names."""
        return [column.name for column in self.columns]

    @property
    def places(self) -> range:
        """The replicated columns' positions."""
        return range(len(self.columns))

    def identities(self, values: Sequence[str]) -> list[Column]:
        """`k_<i>`: what is equal exactly for values that are the same, of expressions by position."""
        return [F.expr(identity(values[i], c.type.arrow)).alias(f"k_{i}") for i, c in enumerate(self.columns)]

    def same(self, one: str, other: str) -> Column:
        """Whether the rows of two aliases are equal."""
        return reduce(and_, (F.col(f"{one}.k_{i}").eqNullSafe(F.col(f"{other}.k_{i}")) for i in self.places))

    def small(self, frame: DataFrame) -> DataFrame:
        """The side of a join that comes from the changes."""
        return F.broadcast(frame) if self.rows is not None and self.rows <= _BROADCAST_ROWS else frame


def identity(value: str, arrow: pa.DataType) -> str:
    """An expression of what is equal exactly for values that are the same; Spark's own `=` has 0.0 = -0.0."""
    if pa.types.is_floating(arrow):
        return f"CAST({value} AS STRING)"
    if pa.types.is_list(arrow) and pa.types.is_floating(arrow.value_type):
        return f"transform({value}, x -> CAST(x AS STRING))"
    return value


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
        if not counted.filter("low + copies < 0").isEmpty():
            settled = _one_by_one(spark, halves, counted, bag, tally)
        settled = settled.filter("net != 0")
        if truncated:
            before = delta.version(spark, bag.path) if tally.counts else 0
            delta.overwrite(_named(_born(settled), bag), bag.path)
            done = not tally.counts or delta.version(spark, bag.path) > before
        else:
            done = _merge(spark, settled, bag) is not None
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
    found = _target(spark, bag).alias("t").join(wanted.alias("s"), bag.same("t", "s"), "left_semi")
    copies = found.groupBy(*keys).agg(F.count("*").alias("found"))
    return (
        folded.alias("s")
        .join(copies.alias("t"), bag.same("s", "t"), "left")
        .select("s.*", F.coalesce("t.found", F.lit(0)).alias("copies"))
    )


def _target(spark: SparkSession, bag: Bag) -> DataFrame:
    """The target's rows: `c_<j>` by position in the target, and `k_<i>`."""
    rows = spark.read.format("delta").load(bag.path)
    columns = [F.col(quoted(name)).alias(f"c_{j}") for j, name in enumerate(rows.columns)]
    return rows.select(*columns, *bag.identities([quoted(name) for name in bag.names]))


def _one_by_one(spark: SparkSession, halves: DataFrame, counted: DataFrame, bag: Bag, tally: Tally) -> DataFrame:
    """`counted` with the `net` that the changes have if each is made, or found to have no row, in its turn.

    In memory are three numbers for each change, and the turns are Python's.
    """
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
    before = dict(zip(copies["id"].to_pylist(), copies["copies"].to_pylist(), strict=True))
    after, missing = settle(before, turns)
    for name, found in missing.items():
        tally.counts[name] = found.total()
        rows = numbered.filter(F.col("id").isin(list(found)[:EXAMPLES])).select(*(f"v_{i}" for i in bag.places))
        tally.keys[name] = [tuple(row.values()) for row in rows.toArrow().to_pylist()]
    net = pa.table({"id": list(after), "settled": [after[at] - before[at] for at in after]})
    settled = numbered.drop("net").join(as_frame(spark, net), "id")
    return settled.withColumnRenamed("settled", "net").drop("id")


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


def _named(rows: DataFrame, bag: Bag) -> DataFrame:
    return rows.select(*(F.col(f"v_{i}").alias(name) for i, name in enumerate(bag.names)))


def _merge(spark: SparkSession, settled: DataFrame, bag: Bag) -> delta.Merged | None:
    """Take all copies of the rows that become fewer away, put back what remains of them, and add the others.

    What remains comes from the target, so that its columns that are not replicated stay too.
    """
    target = _target(spark, bag)
    names = spark.read.format("delta").load(bag.path).columns
    values = [f"v_{i}" for i in bag.places]
    own = [j for j, name in enumerate(names) if name not in bag.names]
    no_own = [F.lit(None).cast(target.schema[f"c_{j}"].dataType).alias(f"c_{j}") for j in own]
    gone = settled.filter("net < 0 AND copies > 0")
    parts = [
        gone.select(F.lit("delete").alias("action"), *values, *no_own),
        _born(settled).select(F.lit("put").alias("action"), *values, *no_own),
    ]
    fewer = gone.filter("copies + net > 0")
    if not fewer.isEmpty():
        keys = [f"k_{i}" for i in bag.places]
        kept = (
            target.alias("t")
            .join(
                bag.small(fewer.select(*keys, (F.col("copies") + F.col("net")).alias("keep"))).alias("s"),
                bag.same("t", "s"),
            )
            .select("t.*", "s.keep")
            .withColumn("copy", F.row_number().over(Window.partitionBy(*keys).orderBy("keep")))
            .filter("copy <= keep")
        )
        place = {name: j for j, name in enumerate(names)}
        replicated = [F.col(f"c_{place[name]}").alias(f"v_{i}") for i, name in enumerate(bag.names)]
        parts.append(kept.select(F.lit("put").alias("action"), *replicated, *(f"c_{j}" for j in own)))
    source = reduce(lambda one, other: one.unionByName(other), parts)
    return delta.merge_into(source, bag.path, lambda view: merge_statement(view, bag, {j: names[j] for j in own}))


def merge_statement(view: str, bag: Bag, own: Mapping[int, str]) -> str:
    """The MERGE: every row of the source is `delete`, of all equal rows, or `put`, of one."""
    same = " AND ".join(
        f"{identity('t.' + quoted(column.name), column.type.arrow)} <=> {identity(f's.v_{i}', column.type.arrow)}"
        for i, column in enumerate(bag.columns)
    )
    names = ", ".join(quoted(name) for name in (*bag.names, *own.values()))
    values = ", ".join([*(f"s.v_{i}" for i in bag.places), *(f"s.c_{j}" for j in own)])
    return (
        f"MERGE INTO delta.{quoted(bag.path)} AS t USING {view} AS s ON s.action = 'delete' AND {same} "
        f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.action = 'put' THEN INSERT ({names}) VALUES ({values})"
    )

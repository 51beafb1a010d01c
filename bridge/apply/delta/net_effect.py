"""The net effect of a batch on each key: what one MERGE has to do, whatever happened in between.

Input is a DataFrame of changes in the columns of `TableChanges.changes`; output one of effects:

    match_<k>      for each position k of the key: the row of the target the effect is on; NULL in all of them
                   for a row that did not exist before the batch under any key
    action         "delete" or "put"
    born           the row came into being within the batch, so it is inserted where nothing matches; an effect
                   that is neither born nor matched is on a row the target has not
    new_<i>        the values to put
    unchanged_<i>  keep the target's value: only for columns that had an unchanged TOAST value in the batch
    first          the first event of the key: where it is of `BEGINS`, and the effect matches a row, that is
                   insert_exists or update_exists; NULL where that is known to be no conflict
    updates        how many UPDATEs, and
    deletes        how many DELETEs are of a row that was there before the batch: missing ones, if nothing matches
    leaves         that row left the key by a key change, so that the row at the new key is only there if it was
    unclear        the events do not follow from each other: what they come to depends on each one's turn

A key change is the old key's end and the new key's beginning. An unchanged TOAST value is the last value the
batch has for the same row, else the target's. A key change that carries one moves the target's row; this, and what
is unclear, is resolved in `moved`.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.effects.operations import DELETE, INSERT, NO_OLD, UPDATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

INSERTED, ARRIVED, UPDATED, LEFT, DELETED = "insert", "arrive", "update", "leave", "delete"
"""What an event is to a key; a key change is LEFT for the old one and ARRIVED for the new one."""

BEGINS, ENDS = (INSERTED, ARRIVED), (LEFT, DELETED)


def events(changes: DataFrame, key: Sequence[int]) -> DataFrame:
    """Spread changes to one event a key.

    Returns:
        A DataFrame with `match_<k>` (the event's key), `ord` (bigint: order within the key), `event`, and the
        `new_<i>` and `unchanged_<i>` of the change; the latter mean nothing where the event is of `ENDS`.
    """
    values = [F.col(name) for name in changes.columns if name.startswith(("new_", "unchanged_"))]
    has_old = F.lit(False)
    moved = F.lit(False)
    if any(name.startswith("old_") for name in changes.columns):
        has_old = F.col("old") != NO_OLD
        same = reduce(and_, (F.col(f"old_{k}").eqNullSafe(F.col(f"new_{k}")) for k in key))
        moved = (F.col("op") == UPDATE) & has_old & ~same

    def key_of(which: Column) -> list[Column]:
        """The old key where `which` holds, the new one elsewhere."""
        if f"old_{key[0]}" not in changes.columns:
            return [F.col(f"new_{k}").alias(f"match_{k}") for k in key]
        return [F.when(which, F.col(f"old_{k}")).otherwise(F.col(f"new_{k}")).alias(f"match_{k}") for k in key]

    main = changes.select(
        *key_of(F.col("op") == DELETE),
        (F.col("seq") * 2 + 1).alias("ord"),
        F.when(F.col("op") == DELETE, DELETED)
        .when(F.col("op") == INSERT, INSERTED)
        .when(moved, ARRIVED)
        .otherwise(UPDATED)
        .alias("event"),
        *values,
    )
    if not any(name.startswith("old_") for name in changes.columns):
        return main
    # The old key ends just before the new one begins, so that a row may move to a key left in the same change.
    left = changes.filter(moved).select(
        *key_of(F.lit(True)), (F.col("seq") * 2).alias("ord"), F.lit(LEFT).alias("event"), *values
    )
    return main.unionByName(left)


def net_effect(changes: DataFrame, key: Sequence[int], toast: Sequence[int]) -> DataFrame:
    """One effect a key.

    Args:
        changes: Changes in the columns of `TableChanges.changes`.
        key: Positions of the key's columns.
        toast: Positions of the columns that have an `unchanged_<i>`. No key change may carry an unchanged value
            (see `bridge.apply.effects.fold`).

    Returns:
        Effects (see the module). A row that both began and ended within the batch is one of "delete" that finds no
        row, unless there is a conflict.
    """
    values = [name for name in changes.columns if name.startswith("new_")]
    keys = [f"match_{k}" for k in key]
    order = Window.partitionBy(*keys).orderBy("ord")
    begins, ends = F.col("event").isin(*BEGINS), F.col("event").isin(*ENDS)
    before = F.lag("event").over(order)
    follows = F.when(begins, before.isin(*ENDS)).otherwise(~before.isin(*ENDS))
    begun = F.count(F.when(begins, 1)).over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    spread = events(changes, key).withColumns({"follows": follows, "old_row": begun == 0})
    latest_at = [F.when(~ends & ~F.col(f"unchanged_{i}"), F.col("ord")) for i in toast]
    folded = spread.groupBy(*keys).agg(
        F.max_by(F.struct("event", *values), "ord").alias("last"),
        F.max(F.when(begins, F.col("ord"))).alias("began"),
        F.min_by("event", "ord").alias("first"),
        F.count(F.when(F.col("old_row") & F.col("event").isin(UPDATED, LEFT), 1)).alias("updates"),
        F.count(F.when(F.col("old_row") & (F.col("event") == DELETED), 1)).alias("deletes"),
        F.coalesce(F.bool_or(F.col("old_row") & (F.col("event") == LEFT)), F.lit(False)).alias("leaves"),
        F.coalesce(F.bool_or(~F.col("follows")), F.lit(False)).alias("unclear"),
        *(F.max(at).alias(f"known_at_{i}") for i, at in zip(toast, latest_at, strict=True)),
        *(F.max_by(f"new_{i}", at).alias(f"known_{i}") for i, at in zip(toast, latest_at, strict=True)),
    )
    ended = F.col("last.event").isin(*ENDS)
    since = F.coalesce(F.col("began"), F.lit(0))

    def value(name: str) -> Column:
        index = int(name.removeprefix("new_"))
        if index not in toast:
            return F.col(f"last.{name}").alias(name)
        is_known = F.col(f"known_at_{index}") >= since
        return F.when(is_known, F.col(f"known_{index}")).alias(name)

    return folded.select(
        *keys,
        F.when(ended, "delete").otherwise("put").alias("action"),
        F.col("began").isNotNull().alias("born"),
        *(value(name) for name in values),
        *((F.col(f"known_at_{i}").isNull() | (F.col(f"known_at_{i}") < since)).alias(f"unchanged_{i}") for i in toast),
        "first",
        "updates",
        "deletes",
        "leaves",
        "unclear",
    )

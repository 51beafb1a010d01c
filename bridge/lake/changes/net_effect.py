"""Computes the net effect of a batch on each key: what one MERGE has to do, whatever happened in between.

The input is a DataFrame of changes in the columns of `TableChanges.changes`; the output is one of effects:

    match_<k>      for each position k of the key: the key of the target's row that the effect is on; NULL, from `fold`
                   and `reborn_apart` only, for a new row whose key another row has left
    action         "delete" or "put"
    born           the row came into being within the batch, so it is inserted if nothing matches; an effect that is
                   not born and matches nothing is on a row that the target does not have
    new_<i>        the values to put
    unchanged_<i>  keep the target's value; only for columns with an unchanged TOAST value in the batch
    first          the key's first event; if it is one of `BEGINS` and the effect matches a row, that is insert_exists
                   or update_exists; NULL if it is known to be no conflict
    updates        the number of UPDATEs, and
    deletes        the number of DELETEs, of a row that existed before the batch: they are missing if nothing matches
    leaves         a key change moved that row to another key, where it exists only if it existed here
    unclear        the events do not follow from each other, so the result depends on each one in turn

A key change ends the old key and begins the new one. An unchanged TOAST value is the row's last value in the batch,
else the target's. `bridge.effects.fold` handles unclear events, and key changes that carry an unchanged TOAST
value, because they move the target's row.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.effects.events import DELETE, INSERT, NO_OLD, UPDATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

INSERTED, ARRIVED, UPDATED, LEFT, DELETED = "insert", "arrive", "update", "leave", "delete"
"""An event of a key; a key change is LEFT for the old key and ARRIVED for the new one."""

BEGINS, ENDS = (INSERTED, ARRIVED), (LEFT, DELETED)


def events(changes: DataFrame, key: Sequence[int]) -> DataFrame:
    """Turn changes into events of one key each; a key change becomes two.

    Returns:
        A DataFrame with `match_<k>` (the event's key), `ord` (bigint: order within the key), `event`, and the change's
        `new_<i>` and `unchanged_<i>`, which have no meaning for an event of `ENDS`.
    """
    values = [F.col(name) for name in changes.columns if name.startswith(("new_", "unchanged_"))]
    has_old = F.lit(False)
    moved = F.lit(False)
    if any(name.startswith("old_") for name in changes.columns):
        has_old = F.col("old") != NO_OLD
        same = reduce(and_, (F.col(f"old_{k}").eqNullSafe(F.col(f"new_{k}")) for k in key))
        moved = (F.col("op") == UPDATE) & has_old & ~same

    def key_of(which: Column) -> list[Column]:
        """The old key if `which` holds, else the new one."""
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
    # The old key ends before the new one begins: a row may move to the key that the same change leaves.
    left = changes.filter(moved).select(
        *key_of(F.lit(True)), (F.col("seq") * 2).alias("ord"), F.lit(LEFT).alias("event"), *values
    )
    return main.unionByName(left)


def net_effect(changes: DataFrame, key: Sequence[int], toast: Sequence[int]) -> DataFrame:
    """Compute one effect for each key.

    Args:
        toast: Positions of the columns that have an `unchanged_<i>`. No key change may carry an unchanged value
            (see `bridge.effects.fold`).

    Returns:
        Effects (see the module). A row that began and ended within the batch has the effect "delete", which matches
        nothing unless there is a conflict.
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


def reborn_apart(effects: DataFrame, key: Sequence[int]) -> DataFrame:
    """The same effects, where a row that ends, and one that then begins with its key, are an effect each.

    So a MERGE deletes the one and inserts the other, which gets none of the values of the first.
    """
    reborn = F.col("born") & (F.col("action") == "put") & ~F.col("first").isin(*BEGINS)
    rows, types = effects.filter(reborn), effects.schema
    ended = {"action": F.lit("delete"), "born": F.lit(False)}
    begun = {f"match_{k}": F.lit(None) for k in key}
    begun |= {"first": F.lit(INSERTED), "updates": F.lit(0), "deletes": F.lit(0), "leaves": F.lit(False)}
    begun = {name: value.cast(types[name].dataType) for name, value in begun.items()}
    return effects.filter(~reborn).unionByName(rows.withColumns(ended)).unionByName(rows.withColumns(begun))

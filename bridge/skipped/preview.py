"""Tells what a net effect would do to a Delta table as it is now, without a commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.effects.events import BEGINS
from bridge.lake.location import read_table
from bridge.lake.schema import canonical, is_variant
from bridge.lake.source import arrow_source
from bridge.targets.location import quoted

if TYPE_CHECKING:
    from bridge.effects.net_effect import NetEffect
    from bridge.lake.commit.conflicts import KeyedTarget

INSERTED: Final = "inserted"
OVERWRITTEN: Final = "overwritten"
UPDATED: Final = "updated"
DELETED: Final = "deleted"
MISSING: Final = "missing"
UNCHANGED: Final = "unchanged"

_EXAMPLES: Final = 10

_WANTED: Final = ("match_", "new_", "unchanged_", "born", "ended")


@dataclass(frozen=True, slots=True)
class RowPreview:
    """A row that would change.

    Attributes:
        outcome: `OVERWRITTEN`, `UPDATED` or `DELETED`.
        before: The values that would be lost: of the columns that change, or all of a deleted row.
        after: The values of the same columns afterwards; empty for a deleted row.
    """

    outcome: str
    key: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a net effect would do.

    Attributes:
        counts: Rows by outcome: `INSERTED`; `OVERWRITTEN`, where an INSERT meets a row; `UPDATED`; `DELETED`, also
            where another row comes to the row's key; `MISSING`, where an UPDATE or DELETE finds no row; `UNCHANGED`,
            where the row has the values already.
        examples: Some of the rows that would change or go, in the order of their keys.
    """

    counts: dict[str, int]
    examples: list[RowPreview]


def preview(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget) -> Preview:
    """Compare a net effect, which must be clear, with the table."""
    names = keyed.names
    rows = read_table(spark, keyed.path)
    texts = (
        f"to_json({quoted(column.name)})" if is_variant(column) else quoted(column.name) for column in keyed.columns
    )
    target = rows.select(*(F.expr(text).alias(f"t_{i}") for i, text in enumerate(texts)), F.lit(1).alias("here"))
    wanted = [name for name in effect.table.column_names if name.startswith(_WANTED)]
    effects = effect.table.select(wanted).append_column("first", effect.table["first"].cast(pa.int16()))
    with arrow_source(spark, effects) as given:
        shown_as = {f"new_{i}": canonical(f"new_{i}", c) for i, c in enumerate(keyed.columns) if is_variant(c)}
        source = given.withColumns({name: F.expr(text) for name, text in shown_as.items()})
        compared = [i for i in range(len(names)) if effect.shape.moved or i not in keyed.key]
        joined = source.join(target, keyed.found("match"), "left").withColumn(
            "outcome", _outcome(source.columns, compared)
        )
        counted = joined.groupBy("outcome").count().collect()
        counts = {row.outcome: int(row["count"]) for row in counted if row.outcome is not None}
        shown = joined.filter(F.col("outcome").isin(OVERWRITTEN, UPDATED, DELETED))
        ordered = shown.orderBy(*(f"match_{k}" for k in keyed.key)).limit(_EXAMPLES)
        found = ordered.select(*(c for c in ordered.columns if c != "here")).toArrow().to_pylist()
    return Preview(counts, [_row(one, names, keyed.key, compared) for one in found])


def _outcome(columns: list[str], compared: list[int]) -> Column:
    """The outcome of an effect; NULL for a row that begins and ends within the changes."""
    here = F.col("here").isNotNull()
    differs = reduce(or_, (_differs(i, columns) for i in compared), F.lit(False))
    begins = F.col("first").isin(*BEGINS)
    gone = F.when(here, DELETED).when(~begins, MISSING)
    put = F.when(here & ~differs, UNCHANGED).when(here & begins, OVERWRITTEN).when(here, UPDATED)
    return F.when(F.col("ended"), gone).otherwise(put.when(F.col("born"), INSERTED).otherwise(MISSING))


def _differs(i: int, columns: list[str]) -> Column:
    changed = ~F.col(f"t_{i}").eqNullSafe(F.col(f"new_{i}"))
    return changed & ~F.col(f"unchanged_{i}") if f"unchanged_{i}" in columns else changed


def _row(found: dict[str, Any], names: list[str], key: tuple[int, ...], compared: list[int]) -> RowPreview:
    of_key = {names[k]: found[f"match_{k}"] for k in key}
    if found["outcome"] == DELETED:
        return RowPreview(DELETED, of_key, {names[i]: found[f"t_{i}"] for i in range(len(names)) if i not in key})
    changed = [i for i in compared if not found.get(f"unchanged_{i}") and found[f"t_{i}"] != found[f"new_{i}"]]
    return RowPreview(
        found["outcome"],
        of_key,
        {names[i]: found[f"t_{i}"] for i in changed},
        {names[i]: found[f"new_{i}"] for i in changed},
    )

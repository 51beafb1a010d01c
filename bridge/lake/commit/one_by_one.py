"""Commits changes whose net effect does not say what they come to: they are made one by one, against the table's rows.

Events that do not follow from each other, and a missing row that moves to another key, need the rows that the table
has: their keys are looked up, the changes are folded by them, and the commit depends on what was looked up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.effects import fold
from bridge.effects.conflicts import Tally
from bridge.effects.events import events
from bridge.effects.net_effect import NetEffect, shape_of
from bridge.lake.commit.execute import merge, overwrite
from bridge.lake.commit.merge import Clauses
from bridge.lake.commit.plan import Merge
from bridge.lake.commit.writes import merge_into
from bridge.lake.location import read_table
from bridge.lake.looked_up import unless_changed
from bridge.lake.raise_error import literal
from bridge.lake.source import arrow_source, as_frame
from bridge.targets.location import quoted, sql_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bridge.lake.commit.conflicts import KeyedTarget


def apply_one_by_one(spark: SparkSession, changes: pa.Table, keyed: KeyedTarget, *, truncated: bool) -> Tally:
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
        keys = keyed.keys_of(read_table(spark, keyed.path)).join(source, keyed.found("match"), "left_semi")
        looked_up = (keys.limit(0) if truncated else keys).toArrow()
        present = {fold.key_of_values(row.values()) for row in looked_up.to_pylist()}
        try:
            folded = fold.fold(
                changes, keyed.key, types, present, tally, overwrite=keyed.overwrite, apart=keyed.keeps_beside
            )
        except fold.Exists as error:
            _raise(spark, keyed, error.key, keyed.raising(literal(error.name), "match"))
            return Tally()
        effect = NetEffect(folded, shape_of(folded))
        if truncated:
            return overwrite(spark, effect, keyed, tally)
        clauses = Clauses.of(effect, overwrite=keyed.overwrite)
        if not len(folded):
            clauses = replace(clauses, deletes=True)  # a MERGE has a clause, also one that finds nothing
        outcome = merge(
            spark,
            Merge(clauses, "large", ranges=False),
            effect,
            keyed,
            lambda effects: unless_changed(effects, as_frame(spark, looked_up), keys),
        )
    return tally if outcome.state == "made" else Tally()


def raise_one_by_one(spark: SparkSession, keyed: KeyedTarget) -> None:
    """Make a commit that fails: the changes have to be made one by one, and are not there any more.

    The error is raised only when effects are applied: Delta may leave the commit out.

    Raises:
        PySparkException: The changes have to be made one by one.
    """
    text = f'the changes of "{keyed.relation}" have to be made one by one: they move a row that is missing'
    _raise(spark, keyed, (None,) * len(keyed.key), f"CAST(raise_error({literal(text)}) AS {keyed.key_type})")


def _raise(spark: SparkSession, keyed: KeyedTarget, key: Sequence[Any], expression: str) -> None:
    """Make a commit that fails by an expression of the type of the key's first column, unless Delta leaves it out."""
    types = [keyed.columns[k].type.arrow for k in keyed.key]
    matched = zip(keyed.key, key, types, strict=True)
    one = as_frame(spark, pa.table({f"match_{k}": pa.array([value], arrow) for k, value, arrow in matched}))
    first = quoted(keyed.key_names[0])
    found = " AND ".join(f"t.{quoted(name)} = s.match_{k}" for name, k in zip(keyed.key_names, keyed.key, strict=True))
    merge_into(
        one.withColumn("raised", F.expr(expression)),
        keyed.path,
        lambda view: (
            f"MERGE INTO {sql_name(keyed.path)} AS t USING {view} AS s ON {found} "
            f"WHEN MATCHED THEN UPDATE SET t.{first} = s.raised "
            f"WHEN NOT MATCHED THEN INSERT ({first}) VALUES (s.raised)"
        ),
    )

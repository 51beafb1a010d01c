"""Commits to a large table by deleting the rows with a batch's keys and writing what they became, in one overwrite.

A MERGE finds rows by a join, for which it reads the key's column of every file that may have one of the keys, three
times; with random keys that is all of the table. Here the keys are constants (`bridge.apply.delta.key_condition`).

The query whose rows are written checks that the table has each row that the effects are on, and no other of them. So
the check is part of the commit: it reads the version that Delta deletes from, and if another writer changes these rows
meanwhile, Delta makes the commit fail.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.utils import is_remote

from bridge.apply.delta.arrow_source import arrow_source
from bridge.apply.delta.commit_sessions import commit_session
from bridge.apply.delta.delta_table import still_vectors
from bridge.apply.delta.key_condition import key_condition
from bridge.apply.delta.location import overwrite_where, read_table
from bridge.apply.delta.raise_error import error_object
from bridge.apply.delta.schema import stored_column
from bridge.apply.target.location import quoted
from bridge.spark_outcome import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from bridge.apply.delta.delta_table import TableSize
    from bridge.apply.delta.keyed_target import KeyedTarget
    from bridge.apply.effects.net_effect import NetEffect

MOST_KEYS: Final = 5_000
MOST_KEY_BYTES: Final = 512 << 10
"""More are not looked for so. Delta's log has the condition, too, which is about twice as long as the keys."""

_OTHER_ROWS: Final = "pgbridge_other_rows"
"""Marks the error that the table has other rows than the effects are on."""


def rewrite_keys(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, size: TableSize) -> bool:
    """Commit a net effect to a table with deletion vectors, if it has each row that the effects are on, and no other.

    Args:
        effect: The net effect, of at least one row; clear.

    Returns:
        Whether it is committed, or Delta has left it out, because the table has the batch already. If not, nothing is.
    """
    if is_remote() or not size.vectors or len(keyed.key) != 1 or len(effect.table) > MOST_KEYS:
        return False  # a Connect server would send the condition back with each plan
    key = keyed.key[0]
    keys = effect.table[f"match_{key}"].drop_null()
    condition = key_condition(quoted(keyed.names[key]), keys) if keys.nbytes <= MOST_KEY_BYTES else None
    if condition is None:
        return False
    session = commit_session(spark, "keys")
    table = read_table(session, keyed.path)
    if sorted(table.columns) != sorted(keyed.names) or not still_vectors(session, keyed.path):
        return False  # a MERGE keeps the values of other columns, and a change data feed shows its updates as such
    with arrow_source(session, keyed.source_of(effect)) as effects:
        try:
            overwrite_where(
                _rows(effects, table.filter(condition), keyed, keyed.values_of(effect)), keyed.path, condition
            )
        except SPARK_ERRORS as error:
            if error_object(error, _OTHER_ROWS) is None:
                raise
            return False
    return True


def _rows(effects: DataFrame, before: DataFrame, keyed: KeyedTarget, values: Sequence[str]) -> DataFrame:
    """The new rows as the target's columns store them; values that are unchanged are those of the rows before."""
    marks = {int(name.removeprefix("unchanged_")): name for name in effects.columns if name.startswith("unchanged_")}
    key = keyed.key[0]
    old = before.select(
        F.col(quoted(keyed.names[key])).alias("old_key"),
        *(F.col(quoted(keyed.names[i])).alias(f"old_{i}") for i in marks),
    )
    old = old.withColumn("times", F.count("*").over(Window.partitionBy("old_key")))
    # a sort-merge join: the old values may be large, and a broadcast would hold them in the driver
    met = effects.join(old.hint("merge"), F.col(f"match_{key}") == F.col("old_key"), "left")
    as_expected = F.col("times").eqNullSafe(F.when(~F.col("begins"), F.lit(1)))
    other_rows = F.raise_error(F.lit(json.dumps({_OTHER_ROWS: True}))).cast("boolean")
    left = met.filter(F.when(as_expected, ~F.col("ended")).otherwise(other_rows))
    columns = list(map(stored_column, values, keyed.columns))
    for i, mark in marks.items():
        stays = F.col(mark) & ~F.col("begins")
        columns[i] = F.when(stays, F.col(f"old_{i}")).otherwise(columns[i]).alias(keyed.names[i])
    return left.select(*columns).coalesce(1)

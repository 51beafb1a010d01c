"""Commits that add rows to a Delta table, to one with a key only if it has none of the keys, or replace all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from bridge.effects.conflicts import INSERT_EXISTS, UPDATE_EXISTS
from bridge.effects.events import INSERTED
from bridge.lake.commit.key_condition import least_and_greatest
from bridge.lake.commit_errors import literal
from bridge.lake.forms import layout_of, overwrite_keeping, overwrite_with_columns
from bridge.lake.location import append_table, read_table
from bridge.lake.log.stamp import stamp_options
from bridge.lake.schema import stored_column
from bridge.lake.table import existing_schema, written_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bridge.effects.net_effect import NetEffect
    from bridge.lake.commit.conflicts import KeyedTarget
    from bridge.lake.log.stamp import CommitStamp
    from bridge.runtime.warehouse import Layout

BROADCAST_ROWS = 500_000
"""Up to this many keys of a batch are broadcast to the target's rows; beyond, Spark sorts both sides."""

ONE_FILE_ROWS = 50_000
"""Up to this many rows are appended as one file, not as one for each core."""


def append_rows(rows: DataFrame, path: str) -> None:
    """Add rows, under the target's column names, to an existing table; one that has vanished is not created again."""
    append_table(rows, path)


def commit_nothing(spark: SparkSession, path: str, schema: StructType, stamp: CommitStamp) -> None:
    """Make an empty commit with this stamp, outside of `stamped`; Delta leaves it out if the table has the stamp."""
    append_table(spark.createDataFrame([], schema), path, stamp_options(stamp))


def _bounds(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """The least and the greatest value; None for types that have no such bounds."""
    return least_and_greatest(values) if _has_bounds(values.type) else None


def _has_bounds(arrow: pa.DataType) -> bool:
    """Whether Arrow, Python and Delta's statistics order the type's values alike."""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_date)
    return any(test(arrow) for test in tests)


def append_effects(spark: SparkSession, source: DataFrame, keyed: KeyedTarget, effect: NetEffect) -> None:
    """Append rows that begin in the batch; the commit fails with a conflict if the target has one of the keys.

    Args:
        source: Effects whose rows all begin in the batch: `KeyedTarget.columns_of`, `first`, `ended`. A row that also
            ends is not appended, but must not be there either.
    """
    wanted = source.select(*(F.col(f"match_{k}").alias(f"s_{k}") for k in keyed.key), "first")
    effects = effect.table
    if len(effects) <= BROADCAST_ROWS:
        wanted = F.broadcast(wanted)
    kept = source if not pc.any(effects["ended"]).as_py() else source.filter("NOT ended")
    rows = kept.select(*map(stored_column, keyed.values_of(effect), keyed.columns))
    if len(effects) <= ONE_FILE_ROWS:
        rows = rows.coalesce(1)
    bounds = [_bounds(effects[f"match_{k}"]) for k in keyed.key]
    target = _between(keyed.keys_of(read_table(spark, keyed.path)), keyed, bounds)
    name = f"CASE first WHEN {INSERTED} THEN {literal(INSERT_EXISTS)} ELSE {literal(UPDATE_EXISTS)} END"
    append_rows(rows.unionByName(_in_the_way(target, wanted, keyed, name, rows.schema)), keyed.path)


def _between(target: DataFrame, keyed: KeyedTarget, bounds: Sequence[tuple[Any, Any] | None]) -> DataFrame:
    """The keys within bounds, so that Delta leaves out files without them."""
    for k, bound in zip(keyed.key, bounds, strict=True):
        if bound is not None and None not in bound:
            target = target.filter(F.col(f"t_{k}").between(F.lit(bound[0]), F.lit(bound[1])))
    return target


def _in_the_way(target: DataFrame, wanted: DataFrame, keyed: KeyedTarget, name: str, schema: StructType) -> DataFrame:
    """Rows of a schema, of which there never is one: computing the first one raises the conflict.

    The target's keys are in `t_<k>`, those that it must not have in `s_<k>`.
    """
    exists = target.join(wanted, keyed.found("s"))
    return exists.select(
        *(
            (F.expr(keyed.raising(name, "t")) if i == keyed.key[0] else F.lit(None))
            .cast(schema[column].dataType)
            .alias(column)
            for i, column in enumerate(keyed.names)
        )
    )


def overwrite_rows(
    rows: DataFrame,
    path: str,
    stamp: CommitStamp | None = None,
    *,
    columns_too: bool = False,
    rows_per_file: int | None = None,
    layout: Layout | None = None,
) -> None:
    """Replace all rows of an existing table, in one commit; its layout stays.

    Args:
        rows: The new rows, under the target's column names.
        stamp: The commit's stamp, outside of `stamped`.
        columns_too: Replace the table's columns by those of the rows; else they stay. Of the layout what the new
            columns allow stays.
        rows_per_file: The most rows of a file; None for one file for each partition of `rows`.
        layout: The table's layout; None to ask Delta for it.
    """
    options = stamp_options(stamp) if stamp is not None else {}
    if rows_per_file is not None:
        options["maxRecordsPerFile"] = str(rows_per_file)
    kept = layout_of(rows.sparkSession, path) if layout is None else layout
    overwrite = overwrite_with_columns if columns_too else overwrite_keeping
    overwrite(rows, path, options, kept)


def truncate_table(spark: SparkSession, path: str) -> None:
    """Remove all rows of the table, in one commit; its columns stay.

    Raises:
        TargetError: The table does not exist any more.
    """
    schema = written_schema(spark, path)
    # where nothing is at the location, `existing_schema` says so
    overwrite_rows(spark.createDataFrame([], existing_schema(spark, path) if schema is None else schema), path)

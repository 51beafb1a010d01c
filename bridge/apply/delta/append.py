"""Commits that add rows to a Delta table; to one with a key, only if it has no row with one of the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.batch.table_changes import Staged
from bridge.apply.delta.raise_error import literal
from bridge.apply.delta.stamp import with_stamp
from bridge.apply.effects.conflicts import INSERT_EXISTS
from bridge.apply.target.target import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bridge.apply.batch.table_changes import TableChanges
    from bridge.apply.delta.keyed_target import KeyedTarget
    from bridge.apply.delta.stamp import CommitStamp


_BROADCAST_ROWS = 500_000
"""Up to this many inserted keys are broadcast to be looked up; beyond, Spark sorts both sides."""


def append_rows(rows: DataFrame, path: str) -> None:
    """Add rows, under the target's column names, to an existing table; one that has vanished is not created again."""
    rows.writeTo(f"delta.{quoted(path)}").append()


def commit_nothing(spark: SparkSession, path: str, schema: StructType, stamp: CommitStamp) -> None:
    """Make an empty commit with this stamp, outside of `stamped`; Delta leaves it out if the table has the stamp."""
    with_stamp(spark.createDataFrame([], schema).write.format("delta").mode("append"), stamp).save(path)


@dataclass(frozen=True, slots=True)
class NewKeys:
    """The keys of inserted rows.

    Attributes:
        rows: How many rows there are.
        unique: All keys differ.
        bounds: The least and the greatest value of each column of the key; None if they are not known.
    """

    rows: int
    unique: bool
    bounds: tuple[tuple[Any, Any] | None, ...]


def new_keys(changes: TableChanges) -> NewKeys:
    """Examine the keys of changes that are all INSERTs."""
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
    """Whether Arrow, Python and Delta's statistics order the type's values alike."""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_date)
    return any(test(arrow) for test in tests)


def append_new(spark: SparkSession, inserts: DataFrame, keyed: KeyedTarget, keys: NewKeys) -> None:
    """Append rows; the commit fails with a conflict if the target has one of the keys.

    Args:
        spark: The session.
        inserts: The rows, in `new_<i>`.
        keyed: The target.
        keys: Their keys, which all differ.
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
    # never yields a row: computing the first one raises the conflict
    in_the_way = exists.select(
        *(
            (F.expr(keyed.raising(literal(INSERT_EXISTS), "t")) if i == keyed.key[0] else F.lit(None))
            .cast(inserts.schema[f"new_{i}"].dataType)
            .alias(name)
            for i, name in enumerate(keyed.names)
        )
    )
    append_rows(inserts.select(*values).unionByName(in_the_way), keyed.path)

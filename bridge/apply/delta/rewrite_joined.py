"""Commits to a table of a file or two by joining its rows with a batch's effects, and writing what comes of them.

A MERGE reads the table twice, first to find the files that it touches, and shuffles them if there are new rows. With
random keys it touches both files anyway. Here the table is read once, and each task writes what it reads.

The commit is a transaction that is begun here: the table's columns, properties and size are looked at in it, its query
reads the version that the commit replaces, and if another writer commits meanwhile, Delta makes it fail. A row that
begins in the batch and is there already fails the query. Rows that are missing are only counted, as by a MERGE.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta.arrow_source import arrow_source
from bridge.apply.delta.commit_sessions import commit_session, is_tiny
from bridge.apply.delta.location import read_table
from bridge.apply.delta.raise_error import error_object
from bridge.apply.delta.schema import has_variant, stored_column
from bridge.apply.delta.transaction import RowCounter, can_begin, transaction
from bridge.apply.target.location import quoted
from bridge.spark_outcome import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.apply.delta.delta_table import TableSize
    from bridge.apply.delta.keyed_target import KeyedTarget
    from bridge.apply.effects.net_effect import NetEffect

_MOST_FILES: Final = 2
_MOST_BYTES: Final = 64 << 20
"""Of a larger table, or one of more files, a MERGE may leave out files that it does not touch."""

_MOST_EFFECTS: Final = 50_000
"""More are not broadcast."""

_EXISTS: Final = "pgbridge_exists"
"""Marks the error that a row is there which begins in the batch."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A commit that was made, or left out by Delta.

    Attributes:
        as_expected: Each row that effects are on was there; also if Delta has left the commit out.
        read_version: The version that it replaced.
    """

    as_expected: bool
    read_version: int


def rewrite_joined(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, size: TableSize) -> Joined | None:
    """Commit a net effect to a table of a file or two, if no row is in the way of one that begins.

    Args:
        effect: The net effect, of at least one row; clear.
        size: Its size, now or some calls ago.

    Returns:
        What became of the commit; None if nothing is committed.
    """
    if not (_fits(size) and can_begin(spark, keyed.path) and _is_simple(effect, overwrite=keyed.overwrite)):
        return None
    tiny = is_tiny(len(effect.table), size.size_bytes)
    session = commit_session(spark, "tiny" if tiny else "small")
    with transaction(session, keyed.path) as begun, arrow_source(session, keyed.source_of(effect)) as effects:
        table = read_table(session, keyed.path)
        if not _fits(begun.size) or sorted(begun.columns) != sorted(keyed.names) or has_variant(table.schema):
            return None  # a MERGE keeps the values of other columns
        updated, deleted = RowCounter(session), RowCounter(session)
        try:
            made = begun.overwrite(_rows(effects, table, keyed, effect, updated, deleted))
        except SPARK_ERRORS as error:
            if error_object(error, _EXISTS) is None:
                raise
            return None
        wanted = effect.shape.puts, effect.shape.deletes
        return Joined(not made or (updated.rows, deleted.rows) == wanted, begun.read_version)


def _is_simple(effect: NetEffect, *, overwrite: bool) -> bool:
    """Whether they are few, a row that is missing changes nothing, and one that is there must not be if it begins."""
    shape = effect.shape
    replaces = overwrite and (shape.new or shape.brief)
    return len(effect.table) <= _MOST_EFFECTS and not (shape.leaves or shape.reborn or replaces)


def _fits(size: TableSize) -> bool:
    return size.plain and size.files <= _MOST_FILES and size.size_bytes <= _MOST_BYTES


def _rows(
    effects: DataFrame,
    table: DataFrame,
    keyed: KeyedTarget,
    effect: NetEffect,
    updated: RowCounter,
    deleted: RowCounter,
) -> DataFrame:
    """The table's rows after the effects, in as many partitions as the table is read in."""
    shape, values = effect.shape, keyed.values_of(effect)
    # by position: a column may have the name of one of the effects'
    old = table.select(*(F.col(quoted(name)).alias(f"old_{i}") for i, name in enumerate(keyed.names)))
    same_key = reduce(and_, (F.col(f"old_{k}") == F.col(f"match_{k}") for k in keyed.key))
    met = old.join(F.broadcast(effects), same_key, "left")
    found = F.col(f"match_{keyed.key[0]}").isNotNull()
    if shape.puts:
        met = met.filter(updated.counting(found & ~F.col("ended")))
    if shape.deletes:
        met = met.filter(deleted.counting(found & F.col("ended")))
    if shape.new or shape.brief:
        exists = F.raise_error(F.lit(json.dumps({_EXISTS: True}))).cast("boolean")
        met = met.filter(F.when(found & F.col("begins"), exists).otherwise(~(found & F.col("ended"))))
    elif shape.deletes:
        met = met.filter(~(found & F.col("ended")))
    columns = []
    for i, (value, column) in enumerate(zip(values, keyed.columns, strict=True)):
        put = found
        if (mark := f"unchanged_{i}") in effects.columns:
            put &= ~F.coalesce(F.col(mark), F.lit(False))
        columns.append(F.when(put, stored_column(value, column)).otherwise(F.col(f"old_{i}")).alias(column.name))
    rows = met.select(*columns)
    if shape.new:
        new = effects.filter("begins AND NOT ended").select(*map(stored_column, values, keyed.columns)).coalesce(1)
        rows = rows.unionByName(new).coalesce(_MOST_FILES)
    return rows

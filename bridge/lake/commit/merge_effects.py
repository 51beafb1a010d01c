"""Commits a net effect that was computed when the batch was formed, by the least work that it needs.

Rows that all begin in the batch are appended, and what follows a TRUNCATE overwrites the table. A table of a file
or two is written anew; the rows of a large one are rewritten by their keys; and all else is a MERGE of the clauses that
the effects need. Conflicts are found as `bridge.lake.commit.conflicts` tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from bridge.effects.conflicts import DELETE_MISSING, EXAMPLES, UPDATE_MISSING, Tally
from bridge.effects.events import BEGINS
from bridge.effects.net_effect import reborn_apart
from bridge.lake.commit import merge
from bridge.lake.commit.conflicts import any_missing, conflicts
from bridge.lake.commit.merge import Clauses, left_none
from bridge.lake.commit.rewrite import rewrite_joined, rewrite_keys
from bridge.lake.commit.sessions import commit_session, is_tiny, work_of_append
from bridge.lake.commit.writes import BROADCAST_ROWS, append_effects, overwrite_rows
from bridge.lake.commit_errors import conflict_of
from bridge.lake.location import read_table
from bridge.lake.schema import stored_column
from bridge.lake.source import PLAN_ROWS, arrow_source, arrow_stream_source, as_frame
from bridge.lake.table import forget_size, table_size, table_version
from bridge.runtime import faults
from bridge.spark.outcome import SPARK_ERRORS
from bridge.spark.session import companion
from bridge.targets.location import sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.effects.net_effect import NetEffect
    from bridge.lake.commit.conflicts import KeyedTarget
    from bridge.lake.commit.sessions import Work
    from bridge.lake.table import TableSize

_SMALL_BYTES: Final = 64 << 20
"""A table up to this size is not large, even if all of it is shuffled."""

_FILES: Final = 4
"""With more files than this, Delta is told the keys' ranges. Their constants make Spark compile the query each time,
which takes longer than to read a few files."""

LARGE_BYTES: Final = 128 << 20
"""Below this size deletion vectors save little: with a million rows in 48 MB a commit takes as long either way."""


def apply_effects(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, *, truncated: bool) -> Tally | None:
    """Commit a net effect.

    Args:
        effect: The net effect, of at least one row.
        truncated: The target is emptied first.

    Returns:
        The conflicts that did not make the commit fail; none if the table has the batch already. None, with nothing
        committed, if the result depends on each change in turn.
    """
    shape = effect.shape
    if shape.unclear:
        return None
    if truncated:
        return overwrite(commit_session(spark, "large"), effect, keyed, _none_found(effect.table, keyed))
    if keyed.keeps_beside:
        effect = reborn_apart(effect)
    clauses = Clauses.of(effect, overwrite=keyed.overwrite)
    if clauses.raises and not (clauses.deletes or clauses.updates):
        _append(spark, effect, keyed)  # and not a rewrite: who streams from a table that only grows goes on
        return Tally()
    return _change(spark, effect, keyed, clauses)


def _change(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, clauses: Clauses) -> Tally | None:
    """Commit effects of which some may be on rows of the target."""
    size = table_size(spark, keyed.path)
    if clauses.updates or clauses.deletes:
        enable_for_large(spark, keyed.path, size)
    if rewrite_keys(spark, effect, keyed, size):
        return Tally()
    joined = rewrite_joined(spark, effect, keyed, size)
    if joined is None:
        return _merge(spark, effect, keyed, clauses, size)
    if joined.as_expected:
        return Tally()
    return _conflicts(spark, effect, keyed, read_table(spark, keyed.path, version=joined.read_version))


def leaves_missing(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget) -> bool:
    """Whether a row that would move to another key is not there: then that key need not be free, either."""
    leaving = effect.table.filter(effect.table["leaves"]).select([f"match_{k}" for k in keyed.key])
    return any_missing(spark, as_frame(spark, leaving), keyed)


def _append(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget) -> None:
    """Append rows that begin in the batch; rows that also end in it must not exist either."""
    session = commit_session(spark, work_of_append(len(effect.table)))
    first = effect.table["first"].cast(pa.int16())
    table = effect.table.select([*keyed.columns_of(effect), "ended"]).append_column("first", first)
    with arrow_source(session, table) as source:
        append_effects(session, source, keyed, effect)


def _merge(
    spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, clauses: Clauses, size: TableSize
) -> Tally | None:
    session = commit_session(spark, _work(effect, clauses, size))
    table = clauses.source(effect.table, keyed.key)
    ranges = size.files > _FILES
    try:
        with arrow_source(session, table) as source:
            frame = F.broadcast(source) if len(table) <= BROADCAST_ROWS else source
            merged = merge.merge_into(
                frame, keyed.path, lambda view: clauses.statement(view, table, keyed, ranges=ranges)
            )
    except SPARK_ERRORS as error:
        if left_none(error):
            return None
        if effect.shape.leaves and conflict_of(error) is not None and leaves_missing(session, effect, keyed):
            return None  # perhaps no conflict: a row that is missing does not come to the key that is taken
        raise
    if merged is None or merged.fit(effect.shape, overwrite=keyed.overwrite):
        return Tally()
    return _conflicts(session, effect, keyed, merge.before_merge(session, keyed.path))


def _conflicts(session: SparkSession, effect: NetEffect, keyed: KeyedTarget, before: DataFrame) -> Tally:
    """Count the conflicts with the rows that the target had before the commit."""
    columns = [*(f"match_{k}" for k in keyed.key), "updates", "deletes"]
    met = effect.table.select(columns).append_column("first", effect.table["first"].cast(pa.int16()))
    return conflicts(as_frame(session, met), keyed.keys_of(before), keyed)


def _work(effect: NetEffect, clauses: Clauses, size: TableSize) -> Work:
    """How much the commit computes: with an INSERT clause, also the target's touched files are shuffled."""
    if is_tiny(len(effect.table), size.size_bytes):
        return "tiny"
    small = len(effect.table) <= PLAN_ROWS and not (clauses.inserts and size.size_bytes > _SMALL_BYTES)
    return "small" if small else "large"


def overwrite(session: SparkSession, effect: NetEffect, keyed: KeyedTarget, tally: Tally) -> Tally:
    """Overwrite the truncated target with the rows that begin in the batch; other effects have no row to act on.

    Returns:
        `tally`; without conflicts if the table has the batch already.
    """
    names = [f"new_{i}" for i in range(len(keyed.columns))]
    schema = effect.table.select(names).schema
    born = (
        batch.filter(pc.and_not(batch["born"], batch["ended"])).select(names) for batch in effect.table.to_batches()
    )
    before = table_version(session, keyed.path) if tally.counts else 0
    with arrow_stream_source(session, schema, born) as source:
        # renamed here: Parquet does not allow each name
        rows = source.select(*(stored_column(f"new_{i}", column) for i, column in enumerate(keyed.columns)))
        overwrite_rows(rows, keyed.path)
    return tally if tally.counts and table_version(session, keyed.path) > before else Tally()


def _none_found(effects: pa.Table, keyed: KeyedTarget) -> Tally:
    """Count the conflicts with an empty target."""
    tally = Tally()
    old = ~np.isin(effects["first"].to_numpy(), BEGINS)
    for name, column in ((UPDATE_MISSING, "updates"), (DELETE_MISSING, "deletes")):
        counts = np.where(old, effects[column].to_numpy(), 0)
        found = np.flatnonzero(counts)
        if len(found):
            keys = effects.select([f"match_{k}" for k in keyed.key]).take(pa.array(found[:EXAMPLES]))
            tally.counts[name] = int(counts.sum())
            tally.keys[name] = [tuple(row.values()) for row in keys.to_pylist()]
    return tally


def enable_for_large(spark: SparkSession, path: str, size: TableSize) -> None:
    """Give a table deletion vectors, if it is large, pgbridge created it, and nobody has decided otherwise.

    Without them Delta writes each touched file anew: with random keys, a thousand changes touch every file of a table.
    With them a commit marks the rows as deleted. That takes Delta more steps, which small tables need not pay for.

    The property is set in a commit of its own, before the batch's commit and without its stamp: neither does Delta take
    the ALTER TABLE for the batch, nor does an undo revert it.
    """
    if not (size.vectors_undecided and size.size_bytes >= LARGE_BYTES):
        return
    forget_size(path)  # somebody may have decided since
    if table_size(spark, path).vectors_undecided:
        unstamped = companion(spark, "unstamped", {})
        unstamped.sql(
            f"ALTER TABLE {sql_name(path)} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        ).collect()
        forget_size(path)
        faults.reach("vectors_enabled")

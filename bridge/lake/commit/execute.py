"""Carries out commits of net effects to keyed tables: tries the ways that the plan gives, and judges the outcome.

Conflicts are found by the commit itself, not before it (see `bridge.lake.commit.conflicts`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, functions as F

from pgbridge.bridge.effects.conflicts import (
    DELETE_MISSING,
    INSERT_EXISTS,
    KEPT_KEYS,
    UPDATE_EXISTS,
    UPDATE_MISSING,
    Tally,
)
from pgbridge.bridge.effects.events import BEGINS, INSERTED
from pgbridge.bridge.effects.net_effect import NetEffect, reborn_apart
from pgbridge.bridge.lake import location, transaction, writes
from pgbridge.bridge.lake.commit import plan
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget, conflicts
from pgbridge.bridge.lake.commit.key_condition import least_and_greatest
from pgbridge.bridge.lake.commit.merge import left_none
from pgbridge.bridge.lake.commit.plan import commits
from pgbridge.bridge.lake.commit.replace import replace_all, replace_where
from pgbridge.bridge.lake.commit.replace_at import replace_at
from pgbridge.bridge.lake.commit.sessions import commit_session
from pgbridge.bridge.lake.commit_errors import conflict_of, literal
from pgbridge.bridge.lake.log.local_log import local_folder
from pgbridge.bridge.lake.schema import stored_column
from pgbridge.bridge.lake.source import arrow_source, arrow_stream_source, as_frame
from pgbridge.bridge.lake.table import table_version
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.spark.outcome import SPARK_ERRORS
from pgbridge.bridge.spark.session import companion, driver_of
from pgbridge.bridge.targets.location import sql_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.types import StructType

    from pgbridge.bridge.effects.kept import Kept
    from pgbridge.bridge.lake.table_facts import KnownTables, TableFacts

_GREATEST_BYTES: Final = 100
"""What is kept of a table, about."""

_MOST_FILES: Final = 200
"""Of a table whose files' statistics are looked at, after a commit of another kind: a call for each."""

_LEAST: Final = -(1 << 63) - 1
"""Less than any key: of a table without rows."""


def apply_effects(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, known: KnownTables) -> Tally | None:
    """Commit a net effect.

    Args:
        effect: The net effect, of at least one row; clear.

    Returns:
        The conflicts that did not make the commit fail; none if the table has the batch already. None, with nothing
        committed, if the result depends on each change in turn.
    """
    if keyed.keeps_beside:
        effect = reborn_apart(effect)
    transactions = transaction.can_begin(spark, keyed.path)
    places = transactions and local_folder(keyed.path) is not None
    abilities = plan.Abilities(transactions, places, not driver_of(spark).sends_plans)

    def facts() -> TableFacts:
        if keyed.hides_metadata:
            return known.facts(spark, keyed.path)
        return enable_vectors(spark, keyed.path, known, places=places and plan.go_by_places(effect, keyed))

    for commit in commits(effect, keyed, facts, abilities):
        outcome = _carried_out(spark, commit, effect, keyed, known)
        if outcome.state != "refused":
            return Tally() if outcome.met is None else _conflicts(spark, effect, keyed, outcome.met)
    return None


def _carried_out(
    spark: SparkSession, commit: plan.Commit, effect: NetEffect, keyed: KeyedTarget, known: KnownTables
) -> plan.Outcome:
    match commit:
        case plan.Append(work):
            return append(commit_session(spark, work), effect, keyed, known.greatest)
        case plan.ReplaceAt():
            work = plan.work_of_append(len(effect.table))
            return replace_at(commit_session(spark, work), effect, keyed, known.places)
        case plan.ReplaceWhere(condition):
            return replace_where(commit_session(spark, "keys"), effect, keyed, condition)
        case plan.Replace(tiny):
            session = commit_session(spark, "tiny" if tiny else "small")
            return replace_all(session, effect, keyed, known.rows if tiny else None)
        case plan.Merge():
            return _merge_unless_missing(commit_session(spark, commit.work), commit, effect, keyed)


def _conflicts(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, version: int) -> Tally:
    """Count the conflicts with the rows that the target had before the commit."""
    columns = [*(f"match_{k}" for k in keyed.key), "updates", "deletes"]
    met = effect.table.select(columns).append_column("first", effect.table["first"].cast(pa.int16()))
    return conflicts(
        as_frame(spark, met), keyed.keys_of(location.read_table(spark, keyed.path, version=version)), keyed
    )


def leaves_missing(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget) -> bool:
    """Whether a row that would move to another key is not there: then that key need not be free, either."""
    leaving = effect.table.filter(effect.table["leaves"]).select([f"match_{k}" for k in keyed.key])
    keys = keyed.keys_of(location.read_table(spark, keyed.path))
    return not as_frame(spark, leaving).join(keys, keyed.found("match"), "left_anti").isEmpty()


# --- MERGE ------------------------------------------------------------------------------------------------------------


def merge(
    session: SparkSession,
    commit: plan.Merge,
    effect: NetEffect,
    keyed: KeyedTarget,
    relying: Callable[[DataFrame], DataFrame] = lambda source: source,
) -> transaction.MergeCounts | None:
    """Commit effects by a MERGE.

    Args:
        relying: Makes of the source one that fails if what the effects rely on has changed.

    Returns:
        The row counts; None if Delta left the MERGE out.
    """
    clauses = commit.clauses
    table = clauses.source(effect.table, keyed.key)
    with arrow_source(session, table) as source:
        return writes.merge_into(
            relying(F.broadcast(source) if plan.fits_broadcast(table) else source),
            keyed.path,
            lambda view: clauses.statement(view, table, keyed, ranges=commit.ranges),
        )


def _merge_unless_missing(
    session: SparkSession, commit: plan.Merge, effect: NetEffect, keyed: KeyedTarget
) -> plan.Outcome:
    """Commit by a MERGE, unless a row is missing that would move: the result then depends on each change in turn."""
    try:
        merged = merge(session, commit, effect, keyed)
    except SPARK_ERRORS as error:
        if left_none(error):
            return plan.Outcome("refused")
        if effect.shape.leaves and conflict_of(error) is not None and leaves_missing(session, effect, keyed):
            # perhaps no conflict: a row that is missing does not come to the key that is taken
            return plan.Outcome("refused")
        raise
    if merged is None:
        return plan.Outcome("left out")
    if commit.clauses.fit(effect.shape, merged, overwrite=keyed.overwrite):
        return plan.Outcome("made")
    return plan.Outcome("made", writes.version_before_merge(session, keyed.path))


def enable_vectors(spark: SparkSession, path: str, known: KnownTables, *, places: bool) -> TableFacts:
    """Give a table deletion vectors, if it is large, pgbridge created it, and nobody has decided otherwise.

    The property is set in a commit of its own, before the batch's commit and without its stamp: neither does Delta take
    the ALTER TABLE for the batch, nor does an undo revert it.

    Returns:
        The table's facts.
    """
    facts = known.facts(spark, path)
    if plan.wants_vectors(facts, places=places):
        known.forget(path)  # somebody may have decided since
        facts = known.facts(spark, path)
    if not plan.wants_vectors(facts, places=places):
        return facts
    unstamped = companion(spark, "unstamped", {})
    unstamped.sql(f"ALTER TABLE {sql_name(path)} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')").collect()
    known.forget(path)
    faults.reach("vectors_enabled")
    return known.facts(spark, path)


# --- An overwrite, after TRUNCATE -------------------------------------------------------------------------------------


def overwrite(session: SparkSession, effect: NetEffect, keyed: KeyedTarget, tally: Tally | None = None) -> Tally:
    """Overwrite the truncated target with the rows that begin in the batch; other effects have no row to act on.

    Args:
        tally: The conflicts, if they are known; None to count those with an empty target.

    Returns:
        The conflicts; none if the table has the batch already.
    """
    tally = _none_there(effect.table, keyed) if tally is None else tally
    names = [f"new_{i}" for i in range(len(keyed.columns))]
    schema = effect.table.select(names).schema
    born = (
        batch.filter(pc.and_not(batch["born"], batch["ended"])).select(names) for batch in effect.table.to_batches()
    )
    before = table_version(session, keyed.path) if tally.counts else 0
    with arrow_stream_source(session, schema, born) as source:
        # renamed here: Parquet does not allow each name
        rows = source.select(*(stored_column(f"new_{i}", column) for i, column in enumerate(keyed.columns)))
        writes.overwrite_rows(rows, keyed.path)
    return tally if tally.counts and table_version(session, keyed.path) > before else Tally()


def _none_there(effects: pa.Table, keyed: KeyedTarget) -> Tally:
    """Count the conflicts with an empty target."""
    tally = Tally()
    old = ~np.isin(effects["first"].to_numpy(), BEGINS)
    for name, column in ((UPDATE_MISSING, "updates"), (DELETE_MISSING, "deletes")):
        counts = np.where(old, effects[column].to_numpy(), 0)
        missing = np.flatnonzero(counts)
        if len(missing):
            keys = effects.select([f"match_{k}" for k in keyed.key]).take(pa.array(missing[:KEPT_KEYS]))
            tally.counts[name] = int(counts.sum())
            tally.keys[name] = [tuple(row.values()) for row in keys.to_pylist()]
    return tally


# --- An append --------------------------------------------------------------------------------------------------------


def append(session: SparkSession, effect: NetEffect, keyed: KeyedTarget, kept: Kept[int]) -> plan.Outcome:
    """Append rows that begin in the batch; the commit fails with a conflict if the target has one of the keys.

    A row that also ends in the batch is not appended, but must not be there either. If all keys are greater than what
    the target has, as those of a sequence, the target is not read.
    """
    first = effect.table["first"].cast(pa.int16())
    effects = effect.table.select([*keyed.columns_of(effect), "ended"]).append_column("first", first)
    with arrow_source(session, effects) as source:
        begin = source if not pc.any(effects["ended"]).as_py() else source.filter("NOT ended")
        rows = begin.select(*map(stored_column, keyed.values_of(effect), keyed.columns))
        if len(effects) <= writes.ONE_FILE_ROWS:
            rows = rows.coalesce(1)

        keys = effects[f"match_{keyed.key[0]}"]

        def checked() -> DataFrame:
            wanted = source.select(*(F.col(f"match_{k}").alias(f"s_{k}") for k in keyed.key), "first")
            if plan.fits_broadcast(effects.select([f"match_{k}" for k in keyed.key])):
                wanted = F.broadcast(wanted)
            bounds = [_bounds(effects[f"match_{k}"]) for k in keyed.key]
            target = _between(keyed.keys_of(location.read_table(session, keyed.path)), keyed, bounds)
            name = f"CASE first WHEN {INSERTED} THEN {literal(INSERT_EXISTS)} ELSE {literal(UPDATE_EXISTS)} END"
            return rows.unionByName(_in_the_way(target, wanted, keyed, name, rows.schema))

        def append_knowing(begun: transaction.Transaction, rows: DataFrame) -> None:
            """Append rows with a key of one integer; if these are greater than those there, none is looked for."""
            before, (least, most), column = begun.read, least_and_greatest(keys), keyed.key_names[0]
            known = _greatest(begun, column, kept)
            if known is not None and least > known:
                begun.rely_on_all()
                made = begun.append(rows)
            else:
                made = begun.append(checked())
            if known is not None and made is not None and made.follows(before):
                kept.put(made.by(column), max(known, most), _GREATEST_BYTES)

        of_one_integer = len(keyed.key) == 1 and pa.types.is_integer(keys.type)
        if not (of_one_integer and writes.transacted(append_knowing, rows, keyed.path, {})):
            writes.append_rows(checked(), keyed.path)
    return plan.Outcome("made")


def _greatest(begun: transaction.Transaction, name: str, kept: Kept[int]) -> int | None:
    """What no value of an integer column exceeds in the version that the transaction begins with; None if unknown.

    Delta has it of each data file. A file's deleted rows count, too.
    """
    version = begun.read.by(name)
    if (known := kept.get(version)) is not None or version.table_id in kept.too_many:
        return known
    files = begun.named_files
    if files is None and begun.facts.files <= _MOST_FILES:
        files = [json.loads(file)["add"] for file in begun.files]
    if files is None:
        return None
    of_files = [json.loads(file.get("stats") or "{}") for file in files]
    in_file = begun.name_in_files(name)
    greatest = [stats.get("maxValues", {}).get(in_file) for stats in of_files if stats.get("numRecords") != 0]
    if not all(isinstance(value, int) for value in greatest):
        kept.too_many.add(version.table_id)  # until the next start: files without statistics mostly stay
        return None
    return max(greatest, default=_LEAST)


def _bounds(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """The least and the greatest value; None for types that have no such bounds."""
    return least_and_greatest(values) if _has_bounds(values.type) else None


def _has_bounds(arrow: pa.DataType) -> bool:
    """Whether Arrow, Python and Delta's statistics order the type's values alike."""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_date)
    return any(test(arrow) for test in tests)


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

"""Commits to a table of a file or two by joining its rows with a batch's effects, and writing what comes of them.

A MERGE reads the table twice, first to find the files that it touches, and shuffles them if there are new rows. With
random keys it touches both files anyway. Here the table is read once, and each task writes what it reads.

The query is computed in Delta's transaction: it reads the version that the commit replaces, and if another writer
changes these rows meanwhile, Delta makes the commit fail. A row that begins in the batch and is there already fails the
query. Rows that are missing are only counted, as by a MERGE.
"""

from __future__ import annotations

import json
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta.arrow_source import arrow_source, reads_local_files
from bridge.apply.delta.commit_sessions import commit_session
from bridge.apply.delta.delta_table import forget_size, is_of, table_size
from bridge.apply.delta.local_log import alters, check_log, entry_of, identity_of, info_of, latest_version, log_of
from bridge.apply.delta.location import place_of, read_table
from bridge.apply.delta.overwrite import overwrite_rows
from bridge.apply.delta.raise_error import error_object
from bridge.apply.delta.stamp import USER_METADATA
from bridge.apply.delta.stored import has_variant, stored_column
from bridge.apply.target.location import quoted
from bridge.detached import detached
from bridge.errors import TargetError
from bridge.spark_outcome import SPARK_ERRORS
from bridge.table_layout import NO_LAYOUT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from bridge.apply.delta.delta_table import TableSize
    from bridge.apply.delta.keyed_target import KeyedTarget
    from bridge.apply.effects.net_effect import NetEffect

_MOST_FILES: Final = 2
_MOST_BYTES: Final = 64 << 20
"""Of a larger table, or one of more files, a MERGE may leave out files that it does not touch."""

_MOST_EFFECTS: Final = 50_000
"""More are not broadcast."""

_OBSERVED_S: Final = 10.0
"""Spark tells what it has counted some milliseconds after the commit. It never does if another process made it: then
a thread waits until this process ends."""

_EXISTS: Final = "pgbridge_exists"
"""Marks the error that a row is there which begins in the batch."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A commit that was made, or left out by Delta.

    Attributes:
        found_all: Each row that effects are on was found; also if Delta has left the commit out.
        read_version: The version that it replaced.
    """

    found_all: bool
    read_version: int


_written: Final[dict[str, tuple[int, tuple[int, int]]]] = {}
"""The versions that were written so, each with its file's identity. While one is the latest, the table is as it was
found to be before."""


def rewrite_joined(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, size: TableSize) -> Joined | None:
    """Commit a net effect to a table of a file or two, if no row is in the way of one that begins.

    Args:
        spark: The subscription's session.
        effect: The net effect, of at least one row; clear.
        keyed: The target.
        size: Its size.

    Returns:
        What became of the commit; None if nothing is committed.

    Raises:
        TargetError: Another writer altered the table at the same moment, or gave a catalog another table of the name:
            the batch's commits have to be undone.
    """
    log = log_of(place_of(spark, keyed.path))
    if log is None or not reads_local_files(spark) or not _is_simple(effect, overwrite=keyed.overwrite):
        return None
    version = latest_version(log, _written.get(keyed.path, (None,))[0])
    if version < 0 or not _fits(size) or not _fits(_size_of(spark, keyed.path, size, log, version)):
        return None
    session = commit_session(spark, "small")
    table = read_table(session, keyed.path)
    if sorted(table.columns) != sorted(keyed.names) or has_variant(table.schema):
        return None  # a MERGE keeps the values of other columns
    wanted = {"updated": effect.shape.puts, "deleted": effect.shape.deletes}
    observation = Observation() if any(wanted.values()) else None
    with arrow_source(session, keyed.source_of(effect)) as effects:
        rows = _rows(effects, table, keyed, effect, observation)
        try:
            overwrite_rows(rows, keyed.path, layout=NO_LAYOUT)
        except SPARK_ERRORS as error:
            if error_object(error, _EXISTS) is None:
                raise
            return None
    own = _own(session, log, version)
    if own is None:
        check_log(log, place_of(spark, keyed.path, now=True), keyed.path)
        return Joined(found_all=True, read_version=version)
    altered = [one for one in range(version + 1, own) if alters(entry_of(log, one))]
    if altered:
        raise TargetError(
            f"{keyed.path}: another writer altered the table by version {altered[0]} while the batch was committed",
            hint="the batch is undone, which keeps that version, and applied again; alter tables while the daemon is "
            "stopped",
        )
    _written[keyed.path] = own, identity_of(entry_of(log, own))
    return Joined(observation is None or _observed(observation) == wanted, own - 1)


def _is_simple(effect: NetEffect, *, overwrite: bool) -> bool:
    """Whether they are few, a row that is missing changes nothing, and one that is there must not be if it begins."""
    shape = effect.shape
    replaces = overwrite and (shape.new or shape.brief)
    return len(effect.table) <= _MOST_EFFECTS and not (shape.leaves or shape.reborn or replaces)


def _fits(size: TableSize) -> bool:
    return size.plain and size.files <= _MOST_FILES and size.size_bytes <= _MOST_BYTES


def _size_of(spark: SparkSession, path: str, size: TableSize, log: Path, version: int) -> TableSize:
    """The size of the table as somebody may have altered it since it was asked for."""
    latest = version, identity_of(entry_of(log, version))
    if not is_of(size, *latest) and _written.get(path) != latest:
        forget_size(path)
        size = table_size(spark, path)
    return size


def _rows(
    effects: DataFrame, table: DataFrame, keyed: KeyedTarget, effect: NetEffect, observation: Observation | None
) -> DataFrame:
    """The table's rows after the effects, in as many partitions as the table is read in."""
    shape, values = effect.shape, keyed.values_of(effect)
    # by position: a column may have the name of one of the effects'
    old = table.select(*(F.col(quoted(name)).alias(f"old_{i}") for i, name in enumerate(keyed.names)))
    same_key = reduce(and_, (F.col(f"old_{k}") == F.col(f"match_{k}") for k in keyed.key))
    met = old.join(F.broadcast(effects), same_key, "left")
    found = F.col(f"match_{keyed.key[0]}").isNotNull()
    if observation is not None:
        met = met.observe(
            observation,
            F.count_if(found & ~F.col("ended")).alias("updated"),
            F.count_if(found & F.col("ended")).alias("deleted"),
        )
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


def _own(session: SparkSession, log: Path, version: int) -> int | None:
    """The version after this one that has the batch's stamp; None if Delta has left the commit out."""
    wanted = session.conf.get(USER_METADATA, None)
    latest = latest_version(log, version)
    own = [one for one in range(version + 1, latest + 1) if info_of(entry_of(log, one)).get("userMetadata") == wanted]
    return own[-1] if own else None


def _observed(observation: Observation) -> dict[str, int] | None:
    """How many rows were found; None if this Spark has not made the commit, and so will never tell."""
    counted = detached(lambda: observation.get, "observed")
    try:
        return counted.result(_OBSERVED_S)
    except (LateError, *SPARK_ERRORS):
        return None

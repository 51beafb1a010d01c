"""Commits to a table of moderate size by writing all of it anew: its rows are kept here, so Spark only writes.

A MERGE reads the table twice, plans four queries, and writes anew each file that it touches: of a table of one file,
all. So what was written last is kept, with the version that it became, and Delta only gets the new rows.

Kept rows count as long as the table has that version. Tables of a local folder tell it at no cost; on other file
systems, no rows are kept. Delta checks a commit against those that were made since it began, and this module those
between its look and that beginning: if another writer was in between, the batch is undone.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta.arrow_source import arrow_source, reads_local_files
from bridge.apply.delta.commit_sessions import TINY_ROWS, commit_session
from bridge.apply.delta.delta_table import forget_size, is_of, table_size
from bridge.apply.delta.kept_rows import A_WHILE_S, Kept, KeptRows
from bridge.apply.delta.local_log import check_log, entry_of, identity_of, info_of, latest_version, log_of
from bridge.apply.delta.location import place_of, read_table
from bridge.apply.delta.overwrite import overwrite_rows
from bridge.apply.delta.stamp import USER_METADATA
from bridge.apply.delta.stored import has_variant
from bridge.apply.effects.events import BEGINS
from bridge.apply.effects.key_codes import key_codes
from bridge.apply.target.location import quoted
from bridge.errors import TargetError
from bridge.table_layout import NO_LAYOUT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from bridge.apply.delta.delta_table import TableSize
    from bridge.apply.delta.keyed_target import KeyedTarget
    from bridge.apply.delta.stamp import CommitStamp
    from bridge.apply.effects.net_effect import NetEffect
    from bridge.apply.target.target import TargetColumn

MOST_BYTES: Final = 32 << 20
"""The rows of a table are not kept if its files, or the rows in memory, are larger."""

MOST_ROWS: Final = 250_000
"""More rows are not kept: Spark computes and writes them on several cores."""

_FEW_ROWS: Final = 30_000
"""The rows of a larger table are read for the second commit. The first one may come when Spark is cold, after a crash
for example: then to read and measure the rows takes longer than to join them (see `rewrite_joined`)."""

_VARYING: Final = ("string", "binary", "array", "map", "struct")
"""Types, by the beginning of their names in Spark, whose values have no fixed length."""
_FIXED_BYTES: Final = 8  # of a value of another type; of a text, beside its characters

_kept_rows: Final = KeptRows()
_refused: Final[dict[str, tuple[TargetColumn, ...]]] = {}
"""Tables that have other columns than these, or too many rows in small files."""
_met: Final = set[str]()
"""Larger tables that had a commit."""
_not_kept_until: Final[dict[str, float]] = {}
"""Tables whose rows are not kept, and until when. They had a conflict, or there was no room for their rows: they would
be read for each commit, in vain."""


def rewrite_kept(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget) -> bool:
    """Write a table anew with a net effect, if it has each row that the effects are on, and no other of them.

    Args:
        spark: The subscription's session.
        effect: The net effect; clear.
        keyed: The target.

    Returns:
        Whether it is committed, or Delta has left it out, because the table has the batch already. If not, nothing is.

    Raises:
        TargetError: Another writer committed at the same moment, or gave a catalog another table of the name. Its rows
            are not in the table's latest version: the batch's commits have to be undone.
    """
    log = log_of(place_of(spark, keyed.path))
    if log is None or not reads_local_files(spark) or time.monotonic() < _not_kept_until.get(keyed.path, 0.0):
        return False
    if not _are_few(effect.table):
        return False
    kept = _kept_rows.take(keyed.path)  # until it is known what the commit became
    if kept is None or not _is_latest(log, kept) or not _has_columns(kept.rows, keyed):
        kept = None  # its memory is free before others come
        kept = _read(spark, keyed, log)
    if kept is None:
        return False
    # a relation's columns may have another order than before, without a commit to the table
    rows = _applied(kept.rows.select(keyed.names), effect, keyed)
    if rows is None:
        _not_kept_until[keyed.path] = time.monotonic() + A_WHILE_S
        return False
    if not _are_few(rows):
        return False
    _write(commit_session(spark, "tiny" if len(rows) <= TINY_ROWS else "small"), rows, kept, keyed.path, log)
    return True


def _write(session: SparkSession, rows: pa.Table, read: Kept, path: str, log: Path) -> None:
    """Write rows in place of those that were read, and keep them; raises as `rewrite_kept` does."""
    # renamed here: Parquet does not allow each name
    with arrow_source(session, rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])) as source:
        overwrite_rows(source.toDF(*rows.column_names).coalesce(1), path, layout=NO_LAYOUT)
    entry = entry_of(log, read.version + 1)
    if entry.exists():
        _check_own(session, entry, read.version, path)
        if not _kept_rows.put(path, Kept(read.version + 1, identity_of(entry), rows)):
            _not_kept_until[path] = time.monotonic() + A_WHILE_S
    else:
        check_log(log, place_of(session, path, now=True), path)


def keep_copied(spark: SparkSession, path: str, rows: pa.Table | None, stamp: CommitStamp) -> None:
    """Keep the rows that a copy has just written to a table which pgbridge created, so that no commit has to read them.

    Args:
        spark: A session.
        path: The Delta table.
        rows: All its rows, under its column names; None if they are not known.
        stamp: The copy's stamp. If another writer has committed since, the rows are not kept.
    """
    log = log_of(place_of(spark, path))
    if rows is None or log is None or not reads_local_files(spark):
        return
    version = latest_version(log)
    entry = entry_of(log, version)
    forget_size(path)
    if version >= 0 and table_size(spark, path).plain and info_of(entry).get("userMetadata") == stamp.user_metadata:
        _kept_rows.put(path, Kept(version, identity_of(entry), rows))


def keep_no_rows(path: str) -> None:
    """Do not keep a table's rows from now on."""
    _not_kept_until[path] = math.inf


def _read(spark: SparkSession, keyed: KeyedTarget, log: Path) -> Kept | None:
    """Read a table's rows, if they are few and nothing about it is such that a MERGE would treat it otherwise."""
    size = table_size(spark, keyed.path)
    if not _is_moderate(size) or _refused.get(keyed.path) == keyed.columns or not _kept_rows.has_room(size.size_bytes):
        return None
    if keyed.path not in _met and (size.rows or 0) > _FEW_ROWS:
        _met.add(keyed.path)
        return None
    version = latest_version(log)
    identity = identity_of(entry_of(log, version))
    if not is_of(size, version, identity):
        forget_size(keyed.path)  # what is known may be of twenty batches ago
        if not _is_moderate(table_size(spark, keyed.path)):
            return None
    table = read_table(spark, keyed.path, version=version)
    if {*table.columns} == {*keyed.names} and not has_variant(table.schema) and _fits_memory(table):
        rows: pa.Table = table.toArrow()
        if _has_columns(rows, keyed) and _are_few(rows):
            return Kept(version, identity, rows)
    _refused[keyed.path] = keyed.columns
    return None


def _fits_memory(table: DataFrame) -> bool:
    """Whether the rows are as few, and as small, as kept rows may be: a small file can hold many equal values."""
    width = F.lit(_FIXED_BYTES * len(table.columns)).cast("bigint")
    for name, type_ in table.dtypes:
        if type_.startswith(_VARYING):
            column = F.col(quoted(name))
            text = column if type_ in {"string", "binary"} else column.cast("string")
            width += F.coalesce(F.octet_length(text), F.lit(0))
    rows, size_bytes = table.agg(F.count("*"), F.coalesce(F.sum(width), F.lit(0))).collect()[0]
    return bool(rows <= MOST_ROWS and size_bytes <= MOST_BYTES)


def _are_few(rows: pa.Table) -> bool:
    return len(rows) <= MOST_ROWS and rows.nbytes <= MOST_BYTES


def _has_columns(rows: pa.Table, keyed: KeyedTarget) -> bool:
    """Whether the rows have the replicated columns, and no others."""
    types = {column.name: column.type.arrow for column in keyed.columns}
    return dict(zip(rows.schema.names, rows.schema.types, strict=True)) == types


def _is_moderate(size: TableSize) -> bool:
    return size.plain and size.size_bytes <= MOST_BYTES and (size.rows or 0) <= MOST_ROWS


def _applied(rows: pa.Table, effect: NetEffect, keyed: KeyedTarget) -> pa.Table | None:
    """The table's rows after the effects; None if an effect is on a row that is not there, or begins one that is."""
    effects = effect.table
    keys = [(rows[keyed.columns[k].name], effects[f"match_{k}"]) for k in keyed.key]
    codes = key_codes([pa.chunked_array([*ours.chunks, *theirs.chunks], ours.type) for ours, theirs in keys])
    ours, theirs = codes[: len(rows)], codes[len(rows) :]
    order = np.argsort(ours, kind="stable")
    if len(ours) and (np.diff(ours[order]) == 0).any():
        return None
    at = np.searchsorted(ours, theirs, sorter=order)
    place = order[np.minimum(at, len(ours) - 1)] if len(ours) else np.zeros(len(theirs), np.int64)
    found = ours[place] == theirs if len(ours) else np.zeros(len(theirs), np.bool_)
    if (found == np.isin(effects["first"].to_numpy(), BEGINS)).any():
        return None
    untouched = np.ones(len(rows), np.bool_)
    untouched[place[found]] = False
    put = pa.array(~effects["ended"].to_numpy())
    before = pa.array(place, mask=~found)
    columns: dict[str, Any] = {}
    for i, (name, effect_name) in enumerate(zip(keyed.names, keyed.values_of(effect), strict=True)):
        value = effects[effect_name].cast(rows.schema.field(name).type)
        if f"unchanged_{i}" in effects.column_names and len(rows):
            stays = pc.and_(pc.fill_null(effects[f"unchanged_{i}"], fill_value=False), pa.array(found))
            value = pc.if_else(stays, rows[name].take(before), value)
        columns[name] = value
    return pa.concat_tables(
        [rows.filter(pa.array(untouched)), pa.table(columns, rows.schema).filter(put)]
    ).combine_chunks()  # or each commit would add one


def _is_latest(log: Path, kept: Kept) -> bool:
    try:
        return identity_of(entry_of(log, kept.version)) == kept.file and not entry_of(log, kept.version + 1).exists()
    except FileNotFoundError:
        return False


def _check_own(session: SparkSession, entry: Path, read_version: int, path: str) -> None:
    """Check that the version after the one whose rows were kept is this batch's, and that nothing came before it."""
    info = info_of(entry)
    wanted = session.conf.get(USER_METADATA, None)
    if info.get("userMetadata") != wanted or info.get("readVersion") != read_version:
        raise TargetError(
            f"{path}: another writer committed version {int(entry.stem)} ({info.get('operation')}) while the batch was",
            hint="the batch is undone, which keeps that commit, and applied again; on a local disk, other writers must "
            "wait until the daemon is stopped",
        )

"""Commits to a large table by deleting the rows with a batch's keys and writing what they became, in one overwrite.

A MERGE finds rows by a join, for which it reads the key's column of every file that may have one of the keys, three
times; with random keys that is all of the table. Here the keys are constants (`bridge.apply.delta.key_condition`), and
two queries look for them: ours, for the keys that are there, and Delta's, for the rows to delete.

Between the two another writer may commit. Delta does not notice, because our query is not part of its transaction. So
the version that Delta began with is compared with ours, and if rows may have changed in between, the batch is undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.utils import is_remote

from bridge.apply.delta.arrow_source import arrow_source
from bridge.apply.delta.commit_sessions import commit_session
from bridge.apply.delta.delta_table import described_history, table_version
from bridge.apply.delta.history import KEEP_ROWS
from bridge.apply.delta.key_condition import key_condition
from bridge.apply.delta.location import overwrite_where, read_table
from bridge.apply.delta.stamp import USER_METADATA
from bridge.apply.delta.stored import stored_column
from bridge.apply.effects.net_effect import BEGINS
from bridge.apply.target.location import quoted, sql_name
from bridge.errors import TargetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bridge.apply.delta.delta_table import TableSize
    from bridge.apply.delta.keyed_target import KeyedTarget
    from bridge.apply.effects.net_effect import NetEffect

MOST_KEYS: Final = 5_000
MOST_KEY_BYTES: Final = 512 << 10
"""More are not looked for so. Delta's log has the condition, too, which is about twice as long as the keys."""

_RECENT: Final = 20  # commits among which the batch's is looked for: other writers may have committed since


def rewrite_keys(spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, size: TableSize) -> bool:
    """Commit a net effect to a table with deletion vectors, if it has each row that the effects are on, and no other.

    Args:
        spark: The subscription's session.
        effect: The net effect, of at least one row; clear, and without rows that leave their key.
        keyed: The target.
        size: Its size.

    Returns:
        Whether it is committed, or Delta has left it out, because the table has the batch already. If not, nothing is.

    Raises:
        TargetError: Another writer committed at the same moment: the batch's commits have to be undone.
    """
    if is_remote() or not size.vectors or len(keyed.key) != 1 or len(effect.table) > MOST_KEYS:
        return False  # a Connect server would send the history's conditions to and fro
    key = keyed.key[0]
    keys = effect.table[f"match_{key}"]
    condition = key_condition(quoted(keyed.names[key]), keys) if keys.nbytes <= MOST_KEY_BYTES else None
    if condition is None:
        return False
    session = commit_session(spark, "keys")
    version = table_version(session, keyed.path)
    table = read_table(session, keyed.path)
    if sorted(table.columns) != sorted(keyed.names):  # a MERGE keeps the values of other columns
        return False
    if not _fits(effect.table, key, table.filter(condition).select(F.col(quoted(keyed.names[key])).alias("key"))):
        return False
    source = _source(effect.table, keyed)
    if len(source):
        with arrow_source(session, source) as changed:
            overwrite_where(_rows(changed, table.filter(condition), keyed), keyed.path, condition)
    else:
        session.sql(f"DELETE FROM {sql_name(keyed.path)} WHERE {condition}").collect()
    _check_own(session, keyed.path, version)
    return True


def _fits(effects: pa.Table, key: int, found: DataFrame) -> bool:
    """Whether the rows that are there are those that the effects are on, one for each key."""
    there = found.toArrow()["key"]
    on_rows = ~np.isin(effects["first"].to_numpy(), BEGINS)
    wanted = effects[f"match_{key}"].filter(pa.array(on_rows))
    # as many, and all of them: so none of another effect, and none twice
    return len(there) == len(wanted) and pc.all(pc.is_in(wanted, pc.unique(there))).as_py() is not False


def _source(effects: pa.Table, keyed: KeyedTarget) -> pa.Table:
    """The effects that leave a row, with the columns that are written."""
    unchanged = [name for name in effects.column_names if name.startswith("unchanged_")]
    kept = effects.filter(pc.invert(effects["ended"])).select([*keyed.effect_names, *unchanged])
    for name in unchanged:
        if not pc.any(kept[name]).as_py():
            kept = kept.drop_columns([name])
    return kept


def _rows(source: DataFrame, before: DataFrame, keyed: KeyedTarget) -> DataFrame:
    """The new rows as the target's columns store them; values that are unchanged are those of the rows before."""
    marks = {int(name.removeprefix("unchanged_")): name for name in source.columns if name.startswith("unchanged_")}
    key = keyed.key[0]
    columns = list(map(stored_column, keyed.effect_names, keyed.columns))
    if not marks:
        return source.select(*columns).coalesce(1)
    old = before.select(
        F.col(quoted(keyed.names[key])).alias("old_key"),
        *(F.col(quoted(keyed.names[i])).alias(f"old_{i}") for i in marks),
    )
    # a sort-merge join: the old values may be large, and a broadcast would hold them in the driver
    joined = source.join(old.hint("merge"), F.col(f"match_{key}") == F.col("old_key"), "left")
    for i, mark in marks.items():
        stays = F.col(mark) & F.col("old_key").isNotNull()
        columns[i] = F.when(stays, F.col(f"old_{i}")).otherwise(columns[i]).alias(keyed.names[i])
    return joined.select(*columns).coalesce(1)


def _check_own(session: SparkSession, path: str, version: int) -> None:
    """Check that nothing came between the version whose keys were read and the batch's commit, if it made one."""
    wanted = session.conf.get(USER_METADATA, None)
    rows = sorted(described_history(session, path, _RECENT), key=lambda row: int(row.version))
    # the first one: Delta may compact files after it, which has the session's metadata, too
    own = next((row for row in rows if row.version > version and row.userMetadata == wanted), None)
    if rows[-1].version < version:
        raise TargetError(
            f"{path}: there is another table now, of version {rows[-1].version}",
            hint="the batch is undone and applied again; disable the subscription before you replace its tables",
        )
    if own is None or own.readVersion == version:
        return
    between = [row.operation for row in rows if version < row.version <= own.readVersion]
    if len(between) < own.readVersion - version or not KEEP_ROWS.issuperset(between):
        raise TargetError(
            f"{path}: another writer committed version {own.readVersion} while the batch was",
            hint="the batch is undone, which keeps that commit, and applied again",
        )

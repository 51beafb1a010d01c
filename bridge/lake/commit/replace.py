"""Replaces a table's rows, all of them or those with some keys, by what a batch's effects make of them.

All rows of a table of a file or two are joined with the effects, and what comes of them is written.

A MERGE reads the table twice, first to find the files that it touches, and shuffles them if there are new rows. With
random keys it touches both files anyway. Here the table is read once, and each task writes what it reads.

The commit is a transaction that is begun here: the table's columns, properties and size are looked at in it, its query
reads the version that the commit replaces, and if another writer commits meanwhile, Delta makes it fail. A row that
begins in the batch and is there already fails the query. Rows that are missing are only counted, as by a MERGE.

The rows of a tiny table are kept: while it has the version that they are of, Spark only writes.
"""

from __future__ import annotations

import json
import re
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import StructField, StructType

from pgbridge.bridge.effects.kept_rows import MOST_BYTES, MOST_ROWS, are_few, rows_after
from pgbridge.bridge.lake.commit.plan import MOST_FILES, Outcome, replaceable
from pgbridge.bridge.lake.commit_errors import error_object
from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.lake.log.local_files import columns_of
from pgbridge.bridge.lake.log.local_log import folder_uri, local_folder
from pgbridge.bridge.lake.schema import has_variant, stored_column
from pgbridge.bridge.lake.source import arrow_source
from pgbridge.bridge.lake.table_facts import only_vectors, properties_now
from pgbridge.bridge.lake.transaction import Transaction, transaction
from pgbridge.bridge.lake.writes import overwrite_where
from pgbridge.bridge.spark.outcome import SPARK_ERRORS
from pgbridge.bridge.spark.session import java_class
from pgbridge.bridge.targets.location import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pgbridge.bridge.effects.kept import Kept
    from pgbridge.bridge.effects.net_effect import NetEffect
    from pgbridge.bridge.lake.commit.conflicts import KeyedTarget

_VARYING: Final = ("string", "binary", "array", "map", "struct")
"""Types, by the beginning of their names in Spark, whose values have no fixed length."""
_FIXED_BYTES: Final = 8
"""Of a value of another type; of a text, beside its characters."""

_NOT_AS_IT_IS: Final = re.compile(r"[][{}*?\\]|/[._][^/]*$")
"""Paths that Spark takes for patterns, and names of files that it passes over."""

_EXISTS: Final = "pgbridge_exists"
"""Marks the error that a row is there which begins in the batch."""


def replace_all(session: SparkSession, effect: NetEffect, keyed: KeyedTarget, kept: Kept[pa.Table] | None) -> Outcome:
    """Replace a table's rows by what effects make of them, unless a row is in the way of one that begins.

    Args:
        kept: The rows of tiny tables, of which this is one; None if it is not.
    """
    with transaction(session, keyed.path) as begun:
        if not replaceable(begun.facts) or sorted(begun.schema.names) != sorted(keyed.names):
            return Outcome("refused")  # a MERGE keeps the values of other columns
        if kept is not None and _replace_kept(session, begun, effect, keyed, kept):
            return Outcome("made")
        table = _table(session, begun, keyed.path)
        if has_variant(table.schema):
            return Outcome("refused")
        with arrow_source(session, keyed.source_of(effect)) as effects:
            updated, deleted = RowCounter(session), RowCounter(session)
            try:
                made = begun.overwrite(_rows(effects, table, keyed, effect, updated, deleted))
            except SPARK_ERRORS as error:
                if error_object(error, _EXISTS) is None:
                    raise
                return Outcome("refused")
            if made is None:
                return Outcome("left out")
            as_expected = (updated.rows, deleted.rows) == (effect.shape.puts, effect.shape.deletes)
            return Outcome("made", None if as_expected else begun.read_version)


def _named_here(begun: Transaction, path: str) -> list[dict[str, Any]]:
    """The data files of a local table without deletion vectors, if the last commit names them all; else none."""
    files = begun.named_files or []
    elsewhere = any(file.get("deletionVector") or urlsplit(file["path"]).scheme for file in files)
    return files if local_folder(path) is not None and not elsewhere else []


def _table(session: SparkSession, begun: Transaction, path: str) -> DataFrame:
    """The rows of the version that is replaced.

    Where the last commit names the files, Spark reads these. Delta would put the table's state together from its log
    first, which takes longer than all else.
    """
    places = [folder_uri(begun.folder / unquote(file["path"])) for file in _named_here(begun, path)]
    maps = begun.facts.properties.get("delta.columnMapping.mode", "none") != "none"
    if not places or maps or any(map(_NOT_AS_IT_IS.search, places)):
        return read_table(session, path)
    schema = StructType([StructField(field.name, field.dataType) for field in begun.schema])
    return session.read.schema(schema).parquet(*places)


def _replace_kept(
    session: SparkSession, begun: Transaction, effect: NetEffect, keyed: KeyedTarget, kept: Kept[pa.Table]
) -> bool:
    """Commit by writing what the effects make of the kept rows, or of rows that are read to be kept from now on.

    Returns:
        Whether it is committed, or Delta has left it out. If not, nothing is: rows are missing or in the way, or they
        are too many to be kept.
    """
    before = begun.read
    if before.entry is None or before.table_id in kept.too_many:
        return False
    types = {column.name: column.type.arrow for column in keyed.columns}
    rows = kept.get(before)
    if rows is None or _types(rows) != types:
        rows = _read_here(keyed.path, begun, types)
        if rows is None:
            # another thread collects it, and Delta's transaction is this one's: so the version is named
            table = read_table(session, keyed.path, version=before.version)
            rows = table.toArrow() if _fits_memory(table) and not has_variant(table.schema) else None
        if rows is None or not are_few(rows):
            kept.too_many.add(before.table_id)
            return False
        if _types(rows) != types:
            return False
        kept.put(before, rows, rows.nbytes)
    # a relation's columns may have another order than before, without a commit to the table
    after = rows_after(rows.select(keyed.names), effect.table, keyed.key, keyed.names, keyed.values_of(effect))
    if after is None:
        return False
    if not are_few(after):
        kept.too_many.add(before.table_id)
        return False
    # renamed here: Parquet does not allow each name
    with arrow_source(session, after.rename_columns([f"c{i}" for i in range(after.num_columns)])) as source:
        written = begun.overwrite(source.toDF(*after.column_names).coalesce(1))
    if written is not None and written.follows(before):
        kept.put(written, after, after.nbytes)
    return True


def _read_here(path: str, begun: Transaction, types: Mapping[str, pa.DataType]) -> pa.Table | None:
    """A table's rows in the columns' types, read without Spark; None if that cannot be, or there may be many."""
    files, names = _named_here(begun, path), [begun.name_in_files(name) for name in types]
    parts = [columns_of(begun.folder, file, names, most=(MOST_ROWS, MOST_BYTES)) for file in files]
    schema = pa.schema(types)
    read = [part.rename_columns(list(types)) for part in parts if part is not None]
    if not read or len(read) < len(parts) or any(_types(part) != types for part in read):
        return None
    return pa.Table.from_batches([batch for part in read for batch in part.cast(schema).to_batches()], schema)


def _types(rows: pa.Table) -> dict[str, pa.DataType]:
    return dict(zip(rows.schema.names, rows.schema.types, strict=True))


def _fits_memory(table: DataFrame) -> bool:
    """Whether the rows are few and small enough to be kept: a small file can hold many equal values."""
    size_bytes = F.lit(_FIXED_BYTES * len(table.columns)).cast("bigint")
    for name, type_ in table.dtypes:
        if type_.startswith(_VARYING):
            column = F.col(quoted(name))
            text = column if type_ in {"string", "binary"} else column.cast("string")
            size_bytes += F.coalesce(F.octet_length(text), F.lit(0))
    rows, all_bytes = table.agg(F.count("*"), F.coalesce(F.sum(size_bytes), F.lit(0))).collect()[0]
    return bool(rows <= MOST_ROWS and all_bytes <= MOST_BYTES)


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
    matched = F.col(f"match_{keyed.key[0]}").isNotNull()
    if shape.puts:
        met = met.filter(updated.counting(matched & ~F.col("ended")))
    if shape.deletes:
        met = met.filter(deleted.counting(matched & F.col("ended")))
    if shape.new or shape.brief:
        exists = F.raise_error(F.lit(json.dumps({_EXISTS: True}))).cast("boolean")
        met = met.filter(F.when(matched & F.col("begins"), exists).otherwise(~(matched & F.col("ended"))))
    elif shape.deletes:
        met = met.filter(~(matched & F.col("ended")))
    columns = []
    for i, (value, column) in enumerate(zip(values, keyed.columns, strict=True)):
        put = matched
        if (mark := f"unchanged_{i}") in effects.columns:
            put &= ~F.coalesce(F.col(mark), F.lit(False))
        columns.append(F.when(put, stored_column(value, column)).otherwise(F.col(f"old_{i}")).alias(column.name))
    rows = met.select(*columns)
    if shape.new:
        new = effects.filter("begins AND NOT ended").select(*map(stored_column, values, keyed.columns)).coalesce(1)
        rows = rows.unionByName(new).coalesce(MOST_FILES)
    return rows


# --- Commits to a large table by deleting the rows with a batch's keys and writing what they became, in one overwrite.
#
# A MERGE finds rows by a join, for which it reads the key's column of every file that may have one of the keys, three
# times; with random keys that is all of the table. Here the keys are constants (`bridge.lake.commit.key_condition`).
#
# The query whose rows are written checks that the table has each row that the effects are on, and no other of them. So
# the check is part of the commit: it reads the version that Delta deletes from, and if another writer changes these
# rows meanwhile, Delta makes the commit fail.

_OTHER_ROWS: Final = "pgbridge_other_rows"
"""Marks the error that the table has other rows than the effects are on."""


def replace_where(session: SparkSession, effect: NetEffect, keyed: KeyedTarget, condition: str) -> Outcome:
    """Replace the rows that meet a condition, if they are each row that the effects are on, and no other.

    Args:
        condition: It is met by the rows with the effects' keys.
    """
    table = read_table(session, keyed.path)
    if sorted(table.columns) != sorted(keyed.names) or not only_vectors(properties_now(session, keyed.path)):
        return Outcome("refused")  # a MERGE keeps other columns' values, and a change data feed shows its updates
    with arrow_source(session, keyed.source_of(effect)) as effects:
        try:
            overwrite_where(
                _rows_of_keys(effects, table.filter(condition), keyed, keyed.values_of(effect)), keyed.path, condition
            )
        except SPARK_ERRORS as error:
            if error_object(error, _OTHER_ROWS) is None:
                raise
            return Outcome("refused")
    return Outcome("made")


def _rows_of_keys(effects: DataFrame, before: DataFrame, keyed: KeyedTarget, values: Sequence[str]) -> DataFrame:
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


class RowCounter:
    """Counts rows in the query that a commit writes, as Delta's MERGE counts its own. Each task that counts writes."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001
        metrics = java_class(spark, "org.apache.spark.sql.execution.metric.SQLMetrics")
        self._metric = metrics.createMetric(context, "rows")

    def counting(self, condition: Column) -> Column:
        """A condition that every row meets; evaluating it counts the rows that meet the other one."""
        convert = java_class(self._spark, "org.apache.spark.sql.classic.ExpressionUtils")
        every, those = (convert.expression(column._jc) for column in (F.lit(True), condition))  # noqa: SLF001
        counting = java_class(self._spark, "org.apache.spark.sql.delta.metric.ConditionalIncrementMetric")
        return ClassicColumn(convert.column(counting(every, those, self._metric)))

    @property
    def rows(self) -> int:
        """How many there were, once the commit is made."""
        return int(self._metric.value())

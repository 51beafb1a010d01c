"""Brings a query's batches into a Delta table: `foreachBatch(pgbridge.merge_into(path, key=["id"]))`.

The net effect of a batch is computed here, by the fold that the daemon has; so a batch's rows pass the driver. A batch
must be made once only: a row whose key changed, and that kept a large value which the server does not send, cannot be
moved twice. So each commit is stamped with the query and the number of the batch, and Delta leaves out what it has. A
query with a new checkpoint counts from 0 again, and its slot may repeat a batch of the one before: it is refused.
"""

from __future__ import annotations

import json
import logging
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from pgbridge.bridge.batch.change_schema import NEW, OLD, OPERATION, POSITION_NAMES, UNCHANGED
from pgbridge.bridge.effects.events import kinds_of
from pgbridge.bridge.effects.net_effect import NetEffect, net_effect
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.lake.commit.merge import Clauses, left_none
from pgbridge.bridge.lake.schema import has_variant, table_properties
from pgbridge.bridge.runtime.errors import ConfigError, TargetError
from pgbridge.bridge.source.frame_schema import arrow_schema
from pgbridge.bridge.spark.outcome import SPARK_ERRORS
from pgbridge.bridge.targets.location import quoted, sql_name
from pgbridge.bridge.targets.target import TargetColumn, holds
from pgbridge.protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

MICROSECONDS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Spark's default, INT96 in nanoseconds, is read by others as 64 bits: they end in 2262, and then wrap."""

_MARK: Final = "pgbridge_batch"
_PREFIX: Final = f'{{"{_MARK}":'
"""The metadata of a commit: the query, and the number of the batch."""

_LOG: Final = logging.getLogger("pgbridge")
_AGAIN: Final = 'begin again: docs/spark-source.md, "Beginning again", says how'


def is_table(spark: SparkSession, path: str) -> bool:
    """Whether there is a Delta table at a path."""
    return DeltaTable.isDeltaTable(spark, path)


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Have a session these settings, and those of before afterwards."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


@dataclass(frozen=True)
class MergeInto:
    """What `foreachBatch` calls: it makes a Delta table have the rows of the published one after each batch.

    Attributes:
        path: The Delta table's path.
        key: The names of the key's columns.
        application: The name of the query in the table's commits; None for Spark's identifier of the query, which its
            checkpoint has.
    """

    path: str
    key: tuple[str, ...]
    application: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Commit a batch, unless the table has it.

        Columns that the table lacks are added. Afterwards every row that the batch is about is as the server had it
        at the batch's end.

        Raises:
            ConfigError: It is no batch of one table's changes, or has no column of a name in `key`.
            TargetError: The table does not have the rows that the changes are about.
        """
        rows = _row_type(batch.schema, self.key)
        spark = batch.sparkSession
        application = self.application or _query_of(spark)
        if batch_id == 0:
            self._refuse_followed(spark, application)
        key = tuple(rows.names.index(name) for name in self.key)
        changes, truncated = _changes(batch, rows, key)
        if not (len(changes) or truncated):
            return
        types = [changes.schema.field(f"new_{i}").type for i in range(len(rows))]
        columns = tuple(
            TargetColumn(name, ColumnType(0, -1, arrow, binary=False, kind=Kind.OPAQUE))
            for name, arrow in zip(rows.names, types, strict=True)
        )
        keyed = KeyedTarget(self.path, self.path, columns, key, overwrite=True)
        effect = net_effect(changes, key)
        if not effect.clear:
            raise TargetError(
                f"{self!r}: the changes of batch {batch_id} do not follow from each other",
                hint="the publication must publish insert, update, delete and truncate; if it does not, use the daemon",
            )
        stamp = {
            "spark.databricks.delta.write.txnAppId": application,
            "spark.databricks.delta.write.txnVersion": str(batch_id),
            "spark.databricks.delta.commitInfo.userMetadata": json.dumps({_MARK: [application, batch_id]}),
        }
        self._fit_columns(spark, rows)  # its commits are without the stamp
        with settings(spark, {**MICROSECONDS, **stamp}):
            if truncated:
                self._overwrite(spark, effect, keyed, rows)
            else:
                self._merge(spark, effect, keyed, rows)

    def _refuse_followed(self, spark: SparkSession, application: str) -> None:
        """Refuse a table that another query has followed, or this one with another checkpoint."""
        history = spark.sql(f"DESCRIBE HISTORY {sql_name(self.path)}").where(F.col("userMetadata").startswith(_PREFIX))
        stamps = [json.loads(row.userMetadata)[_MARK] for row in history.select("userMetadata").collect()]
        if others := [stamp for stamp in stamps if stamp != [application, 0]]:
            raise ConfigError(
                f"{self.path} has batch {others[0][1]} of the query {others[0][0]}, and this is a query that begins: "
                "changes would be made twice, or left out",
                hint=f"give the query the checkpoint that it had; without that, {_AGAIN}",
            )

    def _fit_columns(self, spark: SparkSession, rows: StructType) -> None:
        """Add columns that the table lacks, and refuse those that do not hold the values."""
        table = spark.sql(f"SELECT * FROM {sql_name(self.path)}").schema
        if has_variant(table):
            raise ConfigError(f"{self.path} has a column of VARIANT", hint="use the daemon, which keeps such columns")
        here = {field.name.casefold(): field for field in table}
        for field in rows:
            there = here.get(field.name.casefold(), field)
            if not holds(*(arrow_schema(StructType([either])).types[0] for either in (there, field))):
                raise ConfigError(
                    f'column "{field.name}" is {field.dataType.simpleString()} now, which the column of {self.path} '
                    "does not hold",
                    hint=f"stop the query, alter the table's column, and start it again; or {_AGAIN}",
                )
        new = [field for field in rows if field.name.casefold() not in here]
        if new:
            properties = table_properties([field.name for field in new])
            if properties:
                pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
                spark.sql(f"ALTER TABLE {sql_name(self.path)} SET TBLPROPERTIES ({pairs})")
            columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in new)
            spark.sql(f"ALTER TABLE {sql_name(self.path)} ADD COLUMNS ({columns})")

    def _merge(self, spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, rows: StructType) -> None:
        clauses = Clauses.of(effect, overwrite=True)
        source = clauses.source(effect.table, keyed.key)
        with _view(spark, source, rows) as view:
            try:
                done = spark.sql(clauses.statement(view, source, keyed, ranges=True)).collect()
            except SPARK_ERRORS as error:
                if left_none(error):
                    lacks = "a row is missing whose key the server has changed"
                    raise TargetError(f"{self!r}: {lacks}", hint=_AGAIN) from error
                raise
        counts = next(((row[1], row[2], row[3]) for row in done if any(row)), None)  # updated, deleted, inserted
        if counts is not None and not Clauses.fit(effect.shape, counts, overwrite=True):
            _LOG.warning("%s lacked rows that were updated or deleted, or had rows that were inserted", self.path)

    def _overwrite(self, spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, rows: StructType) -> None:
        """The table was emptied; the effects are on rows that came since."""
        table = effect.table.filter(pc.and_not(effect.table["born"], effect.table["ended"]))
        source = table.select(keyed.values_of(effect))
        frame = _frame(spark, source, rows).toDF(*rows.names)
        # not of the partitions of these rows only, and the table's clustering stays
        options = {"partitionOverwriteMode": "static", "replaceWhere": "true"}
        frame.write.format("delta").mode("overwrite").options(**options).save(self.path)


def merge_into(path: str, *, key: Sequence[str], application: str | None = None) -> MergeInto:
    """Return a function for `foreachBatch` that merges a stream of one table's changes into a Delta table.

    Changed keys, large values that the server does not send, and TRUNCATE are what they are for PostgreSQL's own
    subscription. A column that is added is NULL in the rows that are there. A batch that comes again is left out.

    Args:
        path: The Delta table's path; it has the rows of the snapshot that the stream begins at.
        key: All columns of the table's replica identity, or of its primary key with REPLICA IDENTITY FULL.
        application: A name for the query in the Delta table's commits. Without it the query's identifier is used, which
            Spark Connect does not tell.

    Raises:
        ConfigError: There is no key, or the path is relative.
    """
    if not (path.startswith("/") or "://" in path):
        raise ConfigError(f'path = "{path}": give an absolute path, or a URI, to which Delta adds nothing')
    if isinstance(key, str) or not key:
        raise ConfigError(f'key = {key!r}: give the names of the key\'s columns, as in key=["id"]')
    return MergeInto(path, tuple(key), application)


def _query_of(spark: SparkSession) -> str:
    try:
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    except SPARK_ERRORS:
        query = None
    if not query:
        raise ConfigError(
            "Spark does not tell which query this is: it is not called by foreachBatch, or by Spark Connect",
            hint='give a name of the query: merge_into(…, application="orders")',
        )
    return f"pgbridge/{query}"


def _row_type(schema: StructType, key: Sequence[str]) -> StructType:
    """The type of `new`."""
    rows = schema[NEW].dataType if NEW in schema.names else None
    if not (isinstance(rows, StructType) and {OPERATION, *POSITION_NAMES, OLD, UNCHANGED} <= set(schema.names)):
        raise ConfigError(
            f"the batch has the columns {', '.join(schema.names)}; it must have one table's changes as they come",
            hint='the source needs the option "table", and no option "shape"',
        )
    for name in key:
        if name not in rows.names:
            raise ConfigError(f'the table has no column "{name}" of the key; it has {", ".join(rows.names)}')
    return rows


def _changes(batch: DataFrame, rows: StructType, key: Sequence[int]) -> tuple[pa.Table, bool]:
    """A batch's changes as `bridge.effects` has them, in their order; and whether the table was emptied before."""
    table = batch.select(OPERATION, "commit_lsn", "ordinal", OLD, NEW, UNCHANGED).toArrow()
    table = table.sort_by([("commit_lsn", "ascending"), ("ordinal", "ascending")])
    commands = np.array(table[OPERATION].to_pylist(), object)
    truncates = np.flatnonzero(commands == "TRUNCATE")
    if len(truncates):
        table, commands = table.slice(truncates[-1] + 1), commands[truncates[-1] + 1 :]
    columns: dict[str, Any] = dict(kinds_of(commands, table[OLD]))
    for kind, positions in ((NEW, range(len(rows))), (OLD, key)):
        values = table[kind].flatten()
        columns |= {f"{kind}_{i}": values[i] for i in positions}
        for i in key:
            if pc.any(pc.and_(table[kind].is_valid(), values[i].is_null())).as_py():
                raise TargetError(
                    f'a change has no value of "{rows.names[i]}", a column of the key '
                    f"{', '.join(rows.names[k] for k in key)}",
                    hint="the key must be the table's replica identity, or its primary key with REPLICA IDENTITY FULL; "
                    f"if it was altered, {_AGAIN}",
                )
    unchanged = table[UNCHANGED].to_pylist()
    for name in {name for names in unchanged if names for name in names}:
        columns[f"unchanged_{rows.names.index(name)}"] = pa.array([name in (names or ()) for names in unchanged])
    return pa.table(columns), bool(len(truncates))


def _frame(spark: SparkSession, table: pa.Table, rows: StructType) -> DataFrame:
    """Effects, whose values have the types that the rows have in Spark."""

    def type_of(name: str) -> DataType:
        kind, _, position = name.partition("_")
        return rows[int(position)].dataType if kind in {"match", NEW} else BooleanType()

    return spark.createDataFrame(table, StructType([StructField(name, type_of(name)) for name in table.column_names]))


@contextmanager
def _view(spark: SparkSession, table: pa.Table, rows: StructType) -> Iterator[str]:
    """The name of a view of effects."""
    name = f"pgbridge_{uuid.uuid4().hex}"
    _frame(spark, table, rows).createOrReplaceTempView(name)
    try:
        yield name
    finally:
        spark.catalog.dropTempView(name)

"""Brings a query's batches into a Delta table: `foreachBatch(pgbridge.merge_into(path, key=["id"]))`.

The net effect of a batch is computed here, by the fold that the daemon has; so a batch's rows pass the driver. The
commit is stamped with the query and the number of the batch: Delta leaves it out if it has it already. That is needed.
A row whose key changed, and that kept a large value which the server does not send, cannot be moved twice.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from pgbridge.bridge.batch.change_schema import NEW, OLD, OPERATION, POSITION_NAMES, UNCHANGED
from pgbridge.bridge.effects.events import COMMANDS, KEY_TUPLE, NO_OLD
from pgbridge.bridge.effects.net_effect import NetEffect, net_effect
from pgbridge.bridge.lake.commit.conflicts import KeyedTarget
from pgbridge.bridge.lake.commit.merge import Clauses, left_none
from pgbridge.bridge.runtime.errors import ConfigError, TargetError
from pgbridge.bridge.spark.outcome import SPARK_ERRORS
from pgbridge.bridge.targets.location import quoted, sql_name
from pgbridge.bridge.targets.target import TargetColumn
from pgbridge.protocol.values.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

MICROSECONDS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Spark's default, INT96 in nanoseconds, is read by others as 64 bits: they end in 2262, and then wrap."""

_TAGS: Final = {command: tag for tag, command in COMMANDS.items()}
_AGAIN: Final = 'begin again: docs/spark-source.md, "Beginning again", says how'


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
        changes, truncated = _changes(batch, rows, self.key)
        if not (len(changes) or truncated):
            return
        types = [changes.schema.field(f"new_{i}").type for i in range(len(rows))]
        columns = tuple(
            TargetColumn(name, ColumnType(0, -1, arrow, binary=False, kind=Kind.OPAQUE))
            for name, arrow in zip(rows.names, types, strict=True)
        )
        keyed = KeyedTarget(self.path, self.path, columns, _positions(rows, self.key), overwrite=True)
        effect = net_effect(changes, keyed.key)
        if not effect.clear:
            raise TargetError(f"{self!r}: the changes of batch {batch_id} do not follow from each other", hint=_AGAIN)
        stamp = {
            "spark.databricks.delta.write.txnAppId": self.application or _query_of(spark),
            "spark.databricks.delta.write.txnVersion": str(batch_id),
        }
        self._add_columns(spark, rows)  # a commit of its own, without the stamp
        with settings(spark, {**MICROSECONDS, **stamp}):
            if truncated:
                self._overwrite(spark, effect, keyed, rows)
            else:
                self._merge(spark, effect, keyed, rows)

    def _add_columns(self, spark: SparkSession, rows: StructType) -> None:
        here = {name.casefold() for name in spark.sql(f"SELECT * FROM {sql_name(self.path)}").columns}
        new = [field for field in rows if field.name.casefold() not in here]
        if new:
            columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in new)
            spark.sql(f"ALTER TABLE {sql_name(self.path)} ADD COLUMNS ({columns})")

    def _merge(self, spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, rows: StructType) -> None:
        clauses = Clauses.of(effect, overwrite=True)
        source = clauses.source(effect.table, keyed.key)
        with _view(spark, source, rows) as view:
            try:
                spark.sql(clauses.statement(view, source, keyed, ranges=True)).collect()
            except SPARK_ERRORS as error:
                if left_none(error):
                    lacks = "a row is missing whose key the server has changed"
                    raise TargetError(f"{self!r}: {lacks}", hint=_AGAIN) from error
                raise

    def _overwrite(self, spark: SparkSession, effect: NetEffect, keyed: KeyedTarget, rows: StructType) -> None:
        """The table was emptied; the effects are on rows that came since."""
        table = effect.table.filter(pc.and_not(effect.table["born"], effect.table["ended"]))
        source = table.select(keyed.values_of(effect))
        names = ", ".join(quoted(name) for name in rows.names)
        with _view(spark, source, rows) as view:
            spark.sql(f"INSERT OVERWRITE {sql_name(self.path)} ({names}) SELECT * FROM {view}").collect()


def merge_into(path: str, *, key: Sequence[str], application: str | None = None) -> MergeInto:
    """Return a function for `foreachBatch` that merges a stream of one table's changes into a Delta table.

    Changed keys, large values that the server does not send, TRUNCATE and added columns are what they are for
    PostgreSQL's own subscription. A batch that comes again is left out.

    Args:
        path: The Delta table's path; it has the rows of the snapshot that the stream begins at.
        key: The columns of the table's replica identity, or of its primary key with REPLICA IDENTITY FULL.
        application: A name for the query in the Delta table's commits. Without it the query's identifier is used, which
            Spark Connect does not tell.

    Raises:
        ConfigError: There is no key.
    """
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
            hint='give the source the option "table", and leave out shape = "flat"',
        )
    for name in key:
        if name not in rows.names:
            raise ConfigError(f'the table has no column "{name}" of the key; it has {", ".join(rows.names)}')
    return rows


def _positions(rows: StructType, key: Sequence[str]) -> tuple[int, ...]:
    return tuple(rows.names.index(name) for name in key)


def _changes(batch: DataFrame, rows: StructType, key: Sequence[str]) -> tuple[pa.Table, bool]:
    """A batch's changes as `bridge.effects` has them, in their order; and whether the table was emptied before."""
    table = batch.select(OPERATION, "commit_lsn", "ordinal", OLD, NEW, UNCHANGED).toArrow()
    table = table.sort_by([("commit_lsn", "ascending"), ("ordinal", "ascending")])
    commands = np.array(table[OPERATION].to_pylist(), object)
    truncates = np.flatnonzero(commands == "TRUNCATE")
    if len(truncates):
        table, commands = table.slice(truncates[-1] + 1), commands[truncates[-1] + 1 :]
    columns: dict[str, Any] = {
        "op": np.array([_TAGS[command] for command in commands], np.uint8),
        "old": np.where(table[OLD].is_valid().to_numpy(), KEY_TUPLE, NO_OLD).astype(np.uint8),
    }
    for kind, positions in ((NEW, range(len(rows))), (OLD, _positions(rows, key))):
        values = table[kind].flatten()
        columns |= {f"{kind}_{i}": values[i] for i in positions}
    unchanged = table[UNCHANGED].to_pylist()
    for name in {name for names in unchanged if names for name in names}:
        columns[f"unchanged_{rows.names.index(name)}"] = pa.array([name in (names or ()) for names in unchanged])
    return pa.table(columns), bool(len(truncates))


@contextmanager
def _view(spark: SparkSession, table: pa.Table, rows: StructType) -> Iterator[str]:
    """The name of a view of effects, whose values have the types that the rows have in Spark."""

    def type_of(name: str) -> DataType:
        kind, _, position = name.partition("_")
        return rows[int(position)].dataType if kind in {"match", NEW} else BooleanType()

    schema = StructType([StructField(name, type_of(name)) for name in table.column_names])
    name = f"pgbridge_{uuid.uuid4().hex}"
    spark.createDataFrame(table, schema).createOrReplaceTempView(name)
    try:
        yield name
    finally:
        spark.catalog.dropTempView(name)

"""Commits to Delta tables: each stamped with its batch, so that Delta itself refuses it a second time.

Only what is public in PySpark and Delta, and SQL where Spark Connect has no other way without extra jars.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from bridge.apply.delta.schema import table_properties, target_schema_of
from bridge.apply.target.target import quoted
from bridge.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.types import StructType

    from bridge.apply.target.target import TargetSchema
    from protocol.lsn import Lsn

_TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

TABLES_AT_ONCE = 4
"""Commits under way at once: most of a small one is waiting for Spark's scheduler and the storage."""
_RECENT = 100  # commits among which the last MERGE is looked for; others may have written since


@dataclass(frozen=True, slots=True)
class CommitStamp:
    """What every commit of a batch carries.

    Attributes:
        txn_app_id: Delta's application id: server, subscription, incarnation and epoch.
        start_lsn: The batch's start.
        end_lsn: The batch's end; Delta's transaction version. A commit with a version that the table already
            has for the application id is left out by Delta.
        alters: The commits change the table's columns for the batch: they carry its mark, by which they are taken
            back with it, and have an application id of their own.
        part: Others of the same tables follow, which have the batch's version; None for those. Versions rise from
            start to end: with the last one there, Delta leaves all of them out.
    """

    txn_app_id: str
    start_lsn: Lsn
    end_lsn: Lsn
    alters: bool = False
    part: int | None = None

    @property
    def txn_version(self) -> int:
        """Delta's transaction version."""
        return int(self.end_lsn) if self.part is None else int(self.start_lsn) + 1 + self.part

    @property
    def txn_app_id_in_delta(self) -> str:
        """The application id as Delta gets it."""
        return f"{self.txn_app_id}/alter" if self.alters else self.txn_app_id

    @property
    def user_metadata(self) -> str:
        """The stamp for people, in `DESCRIBE HISTORY`'s userMetadata."""
        origin = {"origin": self.txn_app_id, "start_lsn": str(self.start_lsn), "end_lsn": str(self.end_lsn)}
        return json.dumps({"pgbridge": origin})


@contextmanager
def stamped(spark: SparkSession, stamp: CommitStamp) -> Iterator[None]:
    """Stamp every commit that the session makes within, from any thread. The session must be the caller's own."""
    settings = {
        _TXN_APP_ID: stamp.txn_app_id_in_delta,
        _TXN_VERSION: str(stamp.txn_version),
        USER_METADATA: stamp.user_metadata,
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


def schema_of(spark: SparkSession, path: str) -> StructType | None:
    """The Delta table's columns; None when nothing lies at the path.

    Raises:
        TargetError: What lies there is not a Delta table.
    """
    try:
        return spark.read.format("delta").load(path).schema
    except AnalysisException as error:
        condition = error.getCondition() or ""
        if condition in {"PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"}:
            return None
        if condition in {"DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_SCHEMA_NOT_SET"}:
            raise TargetError(
                f"{path} is there, but is not a Delta table",
                hint="move it out of the way, or give the subscription another warehouse",
            ) from error
        raise


def columns_of(spark: SparkSession, path: str) -> TargetSchema | None:
    """As `schema_of`, as a target has them."""
    schema = schema_of(spark, path)
    return None if schema is None else target_schema_of(schema)


def create(spark: SparkSession, path: str, schema: StructType) -> None:
    """Make an empty Delta table."""
    columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in table_properties(schema.fieldNames()).items())
    spark.sql(
        f"CREATE TABLE delta.{quoted(path)} ({columns}) USING delta"
        + (f" TBLPROPERTIES ({properties})" if properties else "")
    ).collect()


def append(rows: DataFrame, path: str) -> None:
    """Add rows whose columns have the target's names; a table that has vanished is not made anew."""
    rows.writeTo(f"delta.{quoted(path)}").append()


def empty(spark: SparkSession, path: str) -> None:
    """Remove the table's rows, in one commit; its columns stay."""
    schema = schema_of(spark, path)
    assert schema is not None  # noqa: S101 - a target is a table
    overwrite(spark.createDataFrame([], schema), path)


def overwrite(
    rows: DataFrame,
    path: str,
    stamp: CommitStamp | None = None,
    *,
    columns_too: bool = False,
    rows_per_file: int | None = None,
) -> None:
    """Replace the table's rows, in one commit; its columns stay, or become those of the rows.

    `stamp` is for a commit outside of `stamped`. A partition with more than `rows_per_file` becomes several files.
    """
    writer = rows.write.format("delta").mode("overwrite")
    if columns_too:
        writer = writer.option("overwriteSchema", "true")
    if rows_per_file is not None:
        writer = writer.option("maxRecordsPerFile", rows_per_file)
    if stamp is not None:
        writer = _with_stamp(writer, stamp)
    writer.save(path)


def append_nothing(spark: SparkSession, path: str, schema: StructType, stamp: CommitStamp) -> None:
    """Make an empty commit with a stamp, if the table has it not yet; outside of `stamped`."""
    _with_stamp(spark.createDataFrame([], schema).write.format("delta").mode("append"), stamp).save(path)


def _with_stamp(writer: DataFrameWriter, stamp: CommitStamp) -> DataFrameWriter:
    """A commit outside of `stamped`, which carries its stamp as options."""
    return writer.options(
        txnAppId=stamp.txn_app_id_in_delta, txnVersion=stamp.txn_version, userMetadata=stamp.user_metadata
    )


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows of the target that a MERGE changed."""

    updated: int
    deleted: int
    inserted: int


def merge(
    effects: DataFrame,
    path: str,
    columns: Sequence[str],
    key: Sequence[int],
    toast: Sequence[int],
    raising: str | None = None,
) -> Merged | None:
    """Apply effects (see `bridge.apply.delta.net_effect`) in one commit.

    Args:
        effects: At most one effect for each row of the target.
        path: The Delta table.
        columns: The replicated columns' names, by position.
        key: Positions of the key's columns.
        toast: Positions of the columns that have an `unchanged_<i>`.
        raising: An expression over `s`, in the type of the key's first column, that fails; for an effect that begins
            with a new row and finds one. None to overwrite that one.

    Returns:
        What it did; None when the table has the batch already.
    """
    return merge_into(effects, path, lambda view: merge_statement(view, path, columns, key, toast, raising))


def merge_into(source: DataFrame, path: str, statement: Callable[[str], str]) -> Merged | None:
    """Run a MERGE.

    Args:
        source: What is merged.
        path: The Delta table.
        statement: The statement, from the name of a view of the source.

    Returns:
        What it did; None when Delta left it out, because the table has the batch already.
    """
    view = f"pgbridge_effects_{abs(hash(path)):x}"
    source.createOrReplaceTempView(view)
    try:
        rows = source.sparkSession.sql(statement(view)).collect()
    finally:
        source.sparkSession.catalog.dropTempView(view)
    if not rows:
        return None
    return Merged(rows[0].num_updated_rows, rows[0].num_deleted_rows, rows[0].num_inserted_rows)


def version(spark: SparkSession, path: str) -> int:
    """The table's version."""
    number: int = spark.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT 1").collect()[0].version
    return number


def before_merge(spark: SparkSession, path: str) -> DataFrame:
    """The table as it was before its last MERGE."""
    history = spark.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT {_RECENT}").filter("operation = 'MERGE'")
    last: int = history.selectExpr("max(version)").collect()[0][0]
    return spark.read.format("delta").option("versionAsOf", last - 1).load(path)


def merge_statement(
    view: str,
    path: str,
    columns: Sequence[str],
    key: Sequence[int],
    toast: Sequence[int],
    raising: str | None = None,
) -> str:
    """The MERGE of `merge`. A key's columns are never NULL in a row, so `=` finds it, and NULL matches none."""
    condition = " AND ".join(f"t.{quoted(columns[k])} = s.match_{k}" for k in key)

    def new(i: int) -> str:
        if i in toast:
            return f"CASE WHEN s.unchanged_{i} THEN t.{quoted(columns[i])} ELSE s.new_{i} END"
        return f"s.new_{i}"

    update = ", ".join(f"t.{quoted(name)} = {new(i)}" for i, name in enumerate(columns))
    names = ", ".join(quoted(name) for name in columns)
    values = ", ".join(f"s.new_{i}" for i in range(len(columns)))
    first = quoted(columns[key[0]])
    begins = "s.first IN ('insert', 'arrive')"
    exists = f"WHEN MATCHED AND {begins} THEN UPDATE SET t.{first} = {raising} " if raising else ""
    return (
        f"MERGE INTO delta.{quoted(path)} AS t USING {view} AS s ON {condition} {exists}"
        "WHEN MATCHED AND s.action = 'delete' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED AND s.action = 'put' AND s.born THEN INSERT ({names}) VALUES ({values})"
    )

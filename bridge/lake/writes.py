"""Single commits to a Delta table: rows are appended or overwritten, and the table's layout stays; or a MERGE.

Delta 4.4 forgets a table's layout in most overwrites: the clustering columns unless the overwrite is of the rows that
meet a condition, and both kinds if the columns are replaced, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession, functions as F

from pgbridge.bridge.lake import location, retry, table, table_position, transaction
from pgbridge.bridge.lake.log.local_log import has_checkpoint_after, latest_version, log_of
from pgbridge.bridge.lake.log.stamp import CommitStamp, stamp_options
from pgbridge.bridge.lake.transaction import MergeCounts, Transaction
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout
from pgbridge.bridge.spark.session import driver_of, java_class
from pgbridge.bridge.targets.location import catalog_parts, quoted, sql_name
from pgbridge.protocol.lsn import INVALID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql.types import StructType

ONE_FILE_ROWS: Final = 50_000
"""Up to this many rows are appended as one file, not as one for each core."""

_CHECKPOINTS: Final = "pgbridge/checkpoint"
"""The application id of commits that only a checkpoint is made of."""
_INTERVAL: Final = "delta.checkpointInterval"
_INTERVAL_BEFORE: Final = "pgbridge.checkpointInterval"

_RECENT: Final = 100
"""So many commits are searched for the last MERGE: other writers may have committed since."""


def append_rows(rows: DataFrame, path: str, options: Mapping[str, str] | None = None) -> None:
    """Add rows, under the table's column names, in one commit. A table that has vanished is not created again."""
    if not transacted(Transaction.append, rows, path, options or {}):
        rows.writeTo(sql_name(path)).options(**(options or {})).append()


def append_stamped(rows: DataFrame, path: str, stamps: Sequence[CommitStamp]) -> bool:
    """Add rows in one commit that has several stamps; False, and nothing is done, if the table has one of them.

    Also where no transaction can be begun here, and where no table is, or one of other columns.
    """
    if not transaction.can_begin(rows.sparkSession, path):
        return False
    with transaction.transaction(rows.sparkSession, path) as begun:
        fits = begun.read_version >= 0 and begun.takes(rows) and all(map(begun.lacks, stamps))
        if fits:
            begun.append(rows, stamps)
    return fits


def transacted(
    write: Callable[[Transaction, DataFrame], object], rows: DataFrame, path: str, options: Mapping[str, str]
) -> bool:
    """Write rows in a transaction that is begun here, if one can be, on a table that is there and has their columns."""
    if not transaction.can_begin(rows.sparkSession, path):
        return False
    with transaction.transaction(rows.sparkSession, path, options) as begun:
        fits = begun.read_version >= 0 and begun.takes(rows)
        if fits:
            write(begun, rows)
    return fits


def commit_nothing(spark: SparkSession, path: str, schema: StructType, *stamps: CommitStamp) -> None:
    """Make an empty commit with these stamps, outside of `stamped`, or several; Delta leaves out what the table has.

    The user metadata is the first stamp's; of several commits, each has its own.
    """
    if transaction.can_stage(spark, path):
        with transaction.transaction(spark, path, stamp_options(stamps[0])) as begun:
            begun.commit_nothing(stamps)
        return
    for stamp in stamps:
        append_rows(spark.createDataFrame([], schema), path, stamp_options(stamp))


def overwrite_where(rows: DataFrame, path: str, condition: str) -> None:
    """Replace the table's rows that meet a condition of SQL by rows that do, too, in one commit.

    A table that has vanished is not created again.
    """
    rows.writeTo(sql_name(path)).overwrite(F.expr(condition))


def overwrite_rows(
    rows: DataFrame,
    path: str,
    stamp: CommitStamp | None = None,
    *,
    columns_too: bool = False,
    rows_per_file: int | None = None,
    layout: Layout | None = None,
) -> None:
    """Replace all rows of an existing table, in one commit; its layout stays.

    Args:
        rows: The new rows, under the target's column names.
        stamp: The commit's stamp, outside of `stamped`.
        columns_too: Replace the table's columns by those of the rows; else they stay, filled where rows lack them. Of
            the layout what the new columns allow stays; clustering columns come back by a second commit.
        rows_per_file: The most rows of a file; None for one file for each partition of `rows`.
        layout: The table's layout; None to ask Delta for it.
    """
    options = stamp_options(stamp) if stamp is not None else {}
    if rows_per_file is not None:
        options["maxRecordsPerFile"] = str(rows_per_file)
    kept = location.layout_of(rows.sparkSession, path) if layout is None else layout
    overwrite = _overwrite_with_columns if columns_too else _overwrite_keeping
    overwrite(rows, path, options, kept)


def _overwrite_keeping(rows: DataFrame, path: str, options: Mapping[str, str], layout: Layout) -> None:
    missing = [name for name in layout.partition_by if name not in rows.columns]
    if missing:  # Delta adds other columns by itself, and those that their definition fills
        types, filled = location.read_table(rows.sparkSession, path).schema, location.filled_of(rows.sparkSession, path)
        nulls = {name: F.lit(None).cast(types[name].dataType) for name in missing if filled[name].how == "null"}
        rows = rows.withColumns(nulls) if nulls else rows  # Spark Connect does not take none
    if layout == NO_LAYOUT and transacted(Transaction.overwrite, rows, path, options):
        return
    condition = {"replaceWhere": "true"} if layout.cluster_by else {}
    _overwrite(rows, path, {**options, **condition})


def _overwrite_with_columns(rows: DataFrame, path: str, options: Mapping[str, str], layout: Layout) -> None:
    there = frozenset(rows.columns)
    partitions = tuple(name for name in layout.partition_by if name in there)
    clustering = ", ".join(quoted(name) for name in layout.cluster_by if name in there)
    _overwrite(rows, path, {**options, "overwriteSchema": "true"}, partitions)
    if clustering:
        rows.sparkSession.sql(f"ALTER TABLE {sql_name(path)} CLUSTER BY ({clustering})").collect()


def _overwrite(rows: DataFrame, path: str, options: Mapping[str, str], partition_by: Sequence[str] = ()) -> None:
    """Replace all rows of the table by rows under its column names, in one commit.

    Args:
        partition_by: The table's partition columns from now on, if the options replace its columns; else they stay.
    """
    # a session may have "dynamic" by default, which replaces the partitions of these rows only
    options = {**options, "partitionOverwriteMode": "static"}
    writer = rows.write.format("delta").mode("overwrite").options(**options)
    if catalog_parts(path) is None:
        writer.partitionBy(*partition_by).save(path)
    elif partition_by:  # a catalog's are expressions
        writer.partitionBy(*map(quoted, partition_by)).saveAsTable(sql_name(path))
    else:  # saveAsTable would create a table that has vanished
        rows.writeTo(sql_name(path)).options(**options).overwrite(F.lit(True))


def truncate_table(spark: SparkSession, path: str) -> None:
    """Remove all rows of the table, in one commit; its columns stay.

    Raises:
        TargetError: The table does not exist any more.
    """
    schema = table.written_schema(spark, path)
    # where nothing is at the location, `existing_schema` says so
    overwrite_rows(spark.createDataFrame([], table.existing_schema(spark, path) if schema is None else schema), path)


def merge_into(source: DataFrame, path: str, statement: Callable[[str], str]) -> MergeCounts | None:
    """Run a MERGE, of which `statement` makes the statement, given the name of a view of `source`.

    Returns:
        The row counts; None if Delta left the MERGE out, because the table has the batch already.
    """
    view = f"pgbridge_effects_{abs(hash(path)):x}"
    source.createOrReplaceTempView(view)
    try:
        rows = source.sparkSession.sql(statement(view)).collect()
    finally:
        source.sparkSession.catalog.dropTempView(view)
    if not rows:
        return None
    return MergeCounts(rows[0].num_updated_rows, rows[0].num_deleted_rows, rows[0].num_inserted_rows)


def version_before_merge(spark: SparkSession, path: str) -> int:
    """The table's version before its last MERGE."""
    history = spark.sql(f"DESCRIBE HISTORY {sql_name(path)} LIMIT {_RECENT}").filter("operation = 'MERGE'")
    last: int = history.selectExpr("max(version)").collect()[0][0]
    return last - 1


def write_checkpoint(spark: SparkSession, path: str) -> None:
    """Commit nothing to a local table, and have a checkpoint of that: its readers do not need what its log has before.

    So it does not matter whether a power cut takes these entries yet, of which a flush has failed. The commit is made
    because Delta does not write the checkpoint of a version again, whose flush may have failed as well. It does nothing
    on an object store, or if there is no table.

    Raises:
        StateError: There is no checkpoint: Delta only logs why.
        TargetBusy: Concurrent commits were in the way.
    """
    place = location.place_of(spark, path)
    log = log_of(place)
    if log is None or (schema := table.written_schema(spark, path)) is None:
        return
    before = latest_version(log)
    if driver_of(spark).is_ours:
        here = table_position.history_of(spark, path).standing
        nothing = CommitStamp(_CHECKPOINTS, INVALID, INVALID, fences=True, undo_number=before + 1, stands_on=here)
        retry.retry_commit(lambda: commit_nothing(spark, path, schema, nothing), path)
        delta_log = java_class(spark, "org.apache.spark.sql.delta.DeltaLog")
        delta_log.forTable(spark._jsparkSession, place).checkpoint()  # noqa: SLF001
    else:
        _checkpoint_by_interval(spark, sql_name(path))
    if not has_checkpoint_after(log, before):
        raise StateError(
            f"{path}: Delta could not write a checkpoint, which makes up for log entries that the disk may lack",
            hint="check the disk, and Spark's log; pgbridge tries again by itself. If that does not help, move the "
            f"table away, and copy it again: {remedies.resync('SUB', 'TABLE')}",
            retry=True,
        )


def _checkpoint_by_interval(spark: SparkSession, name: str) -> None:
    """Have Delta write a checkpoint after a commit to a table, by its interval: a Connect server has no other way.

    The interval of before is a property meanwhile: whoever is killed in between would leave a checkpoint for each
    commit.
    """
    properties = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0].properties
    every = properties.get(_INTERVAL_BEFORE, properties.get(_INTERVAL, ""))
    alter = f"ALTER TABLE {name}"
    spark.sql(f"{alter} SET TBLPROPERTIES ('{_INTERVAL}' = '1', '{_INTERVAL_BEFORE}' = '{every}')").collect()
    if every:
        spark.sql(f"{alter} SET TBLPROPERTIES ('{_INTERVAL}' = '{every}')").collect()
        spark.sql(f"{alter} UNSET TBLPROPERTIES ('{_INTERVAL_BEFORE}')").collect()
    else:
        spark.sql(f"{alter} UNSET TBLPROPERTIES ('{_INTERVAL}', '{_INTERVAL_BEFORE}')").collect()

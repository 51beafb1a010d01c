"""Repairs a Delta table: the rows that differ become those of the source's snapshot, by one stamped commit.

No daemon runs meanwhile, so Delta stays at the origin's LSN. Keys whose last changes are not applied yet were left out
of the verification: the stream brings them. So each repaired row is the one that Delta should have at that LSN, and the
stream goes on from there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.lake.commit.writes import merge_into
from bridge.lake.location import place_of, read_table
from bridge.lake.log.durable import LocalTables
from bridge.lake.log.stamp import CommitStamp, stamped
from bridge.lake.looked_up import have_changed, unless_changed
from bridge.lake.retry import retry_commit
from bridge.lake.source import as_frame
from bridge.runtime.errors import VerifyError
from bridge.spark.outcome import SPARK_ERRORS
from bridge.sync.copy_plan import BlockRange
from bridge.sync.copy_reader import copy_rows, copy_spec
from bridge.targets.location import quoted, sql_name
from bridge.targets.target import TargetColumn
from bridge.verify.source_table import SourceTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from bridge.apply.published import Published
    from bridge.config.config import Subscription
    from bridge.verify.comparison import Difference
    from bridge.verify.source import Source
    from bridge.verify.target import TargetVersion
    from protocol.lsn import Lsn

_REMOVED = "pgbridge removed"


def repair(
    spark: SparkSession,
    source: Source,
    target: TargetVersion,
    differences: Collection[Difference],
    *,
    subscription: Subscription,
    published: Published,
    app_id: str,
    lsn: Lsn,
) -> None:
    """Make the rows that differ those of the source; the commit is durable when this returns.

    Args:
        spark: The session that writes.
        source: The source's snapshot.
        target: The version that was verified.
        differences: The rows to repair.
        published: What is published.
        app_id: Delta's application id of the subscription's commits.
        lsn: The LSN that Delta is at.

    Raises:
        VerifyError: The table has no key, so which of equal rows is meant is not known; or another writer has changed
            these rows since.
        PublisherError: The source cannot be read.
        PySparkException, Py4JError: The commit failed.
        TargetBusy: Another writer's commits made every attempt fail.
        StateError: The table is local and cannot be flushed.
    """
    table = target.table
    if table.mode != "mirror":
        raise VerifyError(f'table "{table.relation}" has a {table.mode}, of which single versions are not repaired')
    if table.left_out:
        raise VerifyError(f'column "{table.left_out[0]}" of table "{table.relation}" is not compared, so not repaired')
    if not table.keyed:
        raise VerifyError(f'table "{table.relation}" has no key, so single rows of it cannot be repaired')
    spec = copy_spec(
        table.published,
        published.publisher.types(column.type_oid for column in table.published.columns),
        conninfo=subscription.connection,
        application_name=f"{subscription.name}_verify",
        snapshot=source.export(),
        unrepresentable=subscription.unrepresentable,
        ranges=[BlockRange()],
        columns=[
            TargetColumn(column.name, replace(column.type, arrow=column.target, place=column.place))
            for column in table.columns
        ],
    )
    batches = list(
        copy_rows(spec, SourceTable(source, table).copy_of(spec.select, [difference.key for difference in differences]))
    )
    rows = as_frame(spark, pa.Table.from_batches(batches, spec.schema))
    names = [column.name for column in table.columns]
    extra = target.rows_of([difference.key for difference in differences if difference.outcome == "extra"])
    gone = as_frame(spark, extra.select(*map(quoted, table.key)).distinct().toArrow())  # in the session that writes
    if not gone.join(rows.select(*map(quoted, table.key)), list(table.key), "left_semi").isEmpty():
        raise VerifyError("Delta has several rows with one key, of which single ones are not removed")
    changes = _changes(rows, gone, table.key)
    compared = as_frame(
        spark, target.rows_of([difference.key for difference in differences]).select(*map(quoted, names)).toArrow()
    )
    stamp = CommitStamp(f"{app_id}/repair-{str(source.lsn).replace('/', '-')}", lsn, lsn)

    def commit() -> None:
        latest = read_table(spark, table.path).alias("t")
        same = reduce(and_, (F.col(f"t.{quoted(name)}").eqNullSafe(F.col(f"s.{quoted(name)}")) for name in table.key))
        now = latest.join(changes.alias("s"), same, "left_semi").select(*map(quoted, names))
        source = unless_changed(changes, compared, now)
        try:
            merge_into(source, table.path, lambda view: _statement(table.path, view, names, table.key))
        except SPARK_ERRORS as error:
            if not have_changed(error):
                raise
            raise VerifyError(
                f'another writer changed rows of table "{table.relation}" while they were compared',
                hint="verify it again",
            ) from error

    with stamped(spark, stamp):
        retry_commit(commit, table.path)
    LocalTables(partial(place_of, spark)).flush([table.path])


def _statement(path: str, view: str, names: Iterable[str], key: Iterable[str]) -> str:
    columns = [quoted(name) for name in names]
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in key)
    removed = f"s.{quoted(_REMOVED)}"
    return (
        f"MERGE INTO {sql_name(path)} AS t USING {view} AS s ON {same} "
        f"WHEN MATCHED AND {removed} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in columns)} "
        f"WHEN NOT MATCHED AND NOT {removed} THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join(f's.{name}' for name in columns)})"
    )


def _changes(rows: DataFrame, gone: DataFrame, key: Collection[str]) -> DataFrame:
    """Return the rows to write and the keys to remove."""
    only = gone.join(rows.select(*map(quoted, key)), list(key), "left_anti")
    written = rows.withColumn(_REMOVED, F.lit(False))
    return written.unionByName(only.withColumn(_REMOVED, F.lit(True)), allowMissingColumns=True)

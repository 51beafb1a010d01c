"""The Delta table `<warehouse>/pgbridge/commits`: which version of which table has which LSN.

A row is a batch that is durable, or tables that join a subscription's batches or leave them (`CommitRecord`). Rows of a
subscription are appended in the order of their numbers, several at a time, stamped with the last one's number, so that
Delta refuses a late commit of a daemon that was killed.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql import types as spark_types

from bridge.lake.create import create_table
from bridge.lake.location import append_table, read_table
from bridge.lake.retry import retry_commit
from bridge.lake.schema import spark_schema
from bridge.lake.source import as_frame
from bridge.lake.table import schema_of
from bridge.runtime.errors import TargetError
from bridge.targets.location import own_location, sql_name
from protocol.lsn import utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bridge.catalog.commits import CommitRecord

_TABLES: Final = spark_types.ArrayType(
    spark_types.StructType(
        [
            *(spark_types.StructField(name, spark_types.StringType()) for name in ("namespace", "name", "path")),
            spark_types.StructField("version", spark_types.LongType()),
        ]
    )
)
_FLAT: Final = pa.schema(
    [
        ("subscription", pa.string()),
        ("origin", pa.string()),  # the application id of the subscription's commits, without the epoch
        ("number", pa.int64()),  # grows with each row of an origin
        ("kind", pa.string()),  # batch, joined, left
        ("start_lsn", pa.string()),
        ("end_lsn", pa.string()),
        ("position", pa.int64()),  # end_lsn as a number, to compare and to sort by
        ("first_commit_time", pa.timestamp("us", "UTC")),  # NULL if it is not known
        ("last_commit_time", pa.timestamp("us", "UTC")),
        ("transactions", pa.int64()),
        ("recorded_at", pa.timestamp("us", "UTC")),  # by this machine's clock
        ("tables", pa.string()),  # JSON here, an array in the table
    ]
)


def path_in(warehouse: str) -> str:
    """The location of a warehouse's table of commits."""
    return own_location(warehouse, "commits")


def ensure(spark: SparkSession, path: str) -> None:
    """Create the table if it does not exist.

    Raises:
        TargetError: The table at the path has other columns.
    """
    flat = spark_schema([(field.name, field.type) for field in _FLAT if field.name != "tables"])
    wanted = flat.add("tables", _TABLES)

    def found_or_made() -> None:  # two subscriptions may begin at once
        schema = schema_of(spark, path)
        if schema is None:
            create_table(spark, path, wanted)
        elif schema.fieldNames() != wanted.fieldNames():
            raise TargetError(
                f"the Delta table at {path} is not a table of commits: its columns are {schema.simpleString()}",
                hint="move it away; it is made again from the tables' histories",
            )

    retry_commit(found_or_made, path)


def last_number(spark: SparkSession, path: str, origin: str) -> int:
    """The number of the last row of an origin; 0 if there is none."""
    rows = read_table(spark, path).filter(F.col("origin") == origin)
    return int(rows.agg(F.max("number")).collect()[0][0] or 0)


def row_of(
    subscription: str | None, origin: str, record: CommitRecord, versions: Mapping[str, int | None]
) -> dict[str, Any]:
    """A record as a row for `frame_of`; a table without a version has had no commit, or is gone."""
    return {
        "subscription": subscription,
        "origin": origin,
        "number": record.number,
        "kind": record.kind,
        "start_lsn": str(record.start_lsn),
        "end_lsn": str(record.end_lsn),
        "position": int(record.end_lsn),
        "first_commit_time": None if record.first_commit_us is None else utc(record.first_commit_us),
        "last_commit_time": None if record.last_commit_us is None else utc(record.last_commit_us),
        "transactions": record.transactions,
        "recorded_at": dt.datetime.fromtimestamp(record.recorded_s, dt.UTC),
        "tables": json_of(
            {"namespace": namespace, "name": name, "path": path, "version": versions.get(path)}
            for namespace, name, path in record.tables
        ),
    }


def json_of(tables: Iterable[Mapping[str, Any]]) -> str:
    """The tables of a row, as `frame_of` reads them."""
    return json.dumps(list(tables))


def frame_of(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows as a DataFrame with the table's columns."""
    flat = as_frame(spark, pa.Table.from_pylist(list(rows), schema=_FLAT))
    return flat.withColumn("tables", F.from_json("tables", _TABLES))


def append(spark: SparkSession, path: str, rows: Iterable[Mapping[str, Any]], origin: str, number: int) -> None:
    """Append rows by one commit, which is stamped with the number of the last one."""
    frame = frame_of(spark, rows).coalesce(1)
    stamp = {"txnAppId": f"{origin}/commits", "txnVersion": str(number)}
    retry_commit(lambda: append_table(frame, path, stamp), path)


def tables_at(rows: DataFrame, position: int) -> list[Any]:
    """The tables that follow the stream as of a position, ordered by name.

    Args:
        rows: Rows of one origin.
        position: An LSN where a batch ends.

    Returns:
        Rows of `namespace`, `name`, `path`, `version` (None if it is not recorded yet), and `later`: whether a later
        batch may have committed to the table.
    """
    each = rows.select("kind", "position", "number", F.explode("tables").alias("t"))
    here = F.col("position") <= F.lit(position)
    latest = F.max_by(F.when(here, F.struct("kind", "t")), F.when(here, F.struct("position", "number")))
    newest = each.groupBy("t.path").agg(latest.alias("newest"), F.max("position").alias("until"))
    return (
        newest.filter("newest.kind <> 'left'")
        .select("newest.t.*", (F.col("until") > position).alias("later"))
        .orderBy("namespace", "name")
        .collect()
    )


def prune(spark: SparkSession, path: str, origin: str, before: int) -> None:
    """Delete the rows of an origin that end before a position, and files that readers had a week to leave."""
    condition = f"origin = '{origin}' AND position < {before}"
    retry_commit(lambda: spark.sql(f"DELETE FROM {sql_name(path)} WHERE {condition}").collect(), path)
    spark.sql(f"VACUUM {sql_name(path)}").collect()

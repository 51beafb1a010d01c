"""The Delta table `<warehouse>/pgbridge/commits`: which version of which table has which LSN.

A row is a batch that is durable, or tables that join a subscription's batches or leave them (`CommitRecord`); or says
up to where tables are complete, or were found equal (`bridge.snapshots.completeness`). Rows of the first kinds of a
subscription are appended in the order of their numbers, several at a time, stamped with the last one's number, so that
Delta refuses a late commit of a daemon that was killed. `CommitRows` gives records their versions, and appends them: it
is Spark's part of the commit log.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F, types as spark_types

from pgbridge.bridge.lake import ddl, location, own_table, retry, source, table_position, writes
from pgbridge.bridge.lake.log.stamp import CommitStamp
from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.snapshots.commit_log import derived
from pgbridge.bridge.targets.location import own_location, sql_name
from pgbridge.protocol.lsn import INVALID, Lsn, utc

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pgbridge.bridge.catalog.commits import CommitRecord
    from pgbridge.bridge.snapshots.commit_log import Part

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
        ("kind", pa.string()),  # batch, joined, left; complete, verified
        ("start_lsn", pa.string()),
        ("end_lsn", pa.string()),
        ("position", pa.int64()),  # end_lsn as a number, to compare and to sort by
        ("first_commit_time", pa.timestamp("us", "UTC")),  # NULL if it is not known
        ("last_commit_time", pa.timestamp("us", "UTC")),
        # tables that follow have all that was committed before, by the server's clock; NULL if that is not known
        ("complete_until", pa.timestamp("us", "UTC")),
        ("transactions", pa.int64()),
        ("recorded_at", pa.timestamp("us", "UTC")),  # by this machine's clock
        ("tables", pa.string()),  # JSON here, an array in the table
    ]
)
OF_BATCHES: Final = ("batch", "joined", "left")
"""The kinds of rows that say which tables a batch has committed to, or which follow."""

_IN_FLIGHT: Final = dt.timedelta(seconds=1)
"""A commit has its time before its record is written, so that others may be written between."""


def path_in(warehouse: str) -> str:
    """The location of a warehouse's table of commits."""
    return own_location(warehouse, "commits")


def _stamp(origin: str, number: int) -> CommitStamp:
    """What Delta refuses a late commit of the same rows by."""
    return CommitStamp(f"{origin}/commits", INVALID, INVALID, copy_number=number)


class CommitRows(own_table.OwnRows):
    """The table of commits of a warehouse."""

    __slots__ = ()
    NAME = "commits"

    def ensure(self) -> bool:
        """Create the table if it does not exist; returns whether it did not.

        Raises:
            TargetError: The table at the path has other columns.
        """
        flat = spark_schema([(field.name, field.type) for field in _FLAT if field.name != "tables"])
        wanted = flat.add("tables", _TABLES)

        def found_or_made() -> bool:  # two subscriptions may begin at once
            schema = schema_of(self.spark, self.path)
            if schema is None:
                ddl.create_table(self.spark, self.path, wanted)
            elif set(schema.fieldNames()) == {*wanted.fieldNames()} - {"complete_until"}:  # of an earlier version
                self.spark.sql(f"ALTER TABLE {sql_name(self.path)} ADD COLUMNS (complete_until timestamp)").collect()
            elif set(schema.fieldNames()) != {*wanted.fieldNames()}:
                columns = schema.simpleString()
                raise TargetError(
                    f"the Delta table at {self.path} is not a table of commits: its columns are {columns}",
                    hint="move it away; it is made again from the tables' histories",
                )
            return schema is None

        return retry.retry_commit(found_or_made, self.path)

    def last_numbers(self, origins: Collection[str]) -> dict[str, int]:
        """The number of the last row of each origin that has one."""
        rows = location.read_table(self.spark, self.path).filter(F.col("origin").isin(*origins))
        return {origin: int(number) for origin, number in rows.groupBy("origin").agg(F.max("number")).collect()}

    def append(self, parts: Sequence[Part]) -> None:
        """Append records of subscriptions, with the tables' versions, by one commit if Delta allows; and flush them."""
        rows = [self._rows(part) for part in parts]
        numbers = {part.origin: part.records[-1].number for part in parts}
        if len(parts) == 1 or not self._append_together([row for own in rows for row in own], numbers):
            for own, (origin, number) in zip(rows, numbers.items(), strict=True):
                self._append(own, origin, number)
        self.local.flush([self.path])

    def _rows(self, part: Part) -> list[Mapping[str, Any]]:
        histories = {
            path: table_position.history_of(self.spark, path) for record in part.records for _, _, path in record.tables
        }
        return [
            row_of(
                part.subscription,
                part.origin,
                record,
                {
                    path: histories[path].as_of(int(record.end_lsn)) if record.kind != "left" else None
                    for _, _, path in record.tables
                },
            )
            for record in part.records
        ]

    def _append_together(self, rows: Iterable[Mapping[str, Any]], numbers: Mapping[str, int]) -> bool:
        """Append rows of several origins, with the stamp of each; False if that is not possible, or one is there."""
        frame = frame_of(self.spark, rows).coalesce(1)
        stamps = [_stamp(*each) for each in numbers.items()]
        return retry.retry_commit(lambda: writes.append_stamped(frame, self.path, stamps), self.path)

    def _append(self, rows: Iterable[Mapping[str, Any]], origin: str, number: int) -> None:
        """Append rows by one commit, which is stamped with the number of the last one."""
        frame = frame_of(self.spark, rows).coalesce(1)
        of_origin = _stamp(origin, number)
        stamp = {"txnAppId": of_origin.txn_app_id_in_delta, "txnVersion": str(of_origin.txn_version)}
        retry.retry_commit(lambda: writes.append_rows(frame, self.path, stamp), self.path)

    def append_now(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows that are true whenever they come, of whatever subscriptions, and flush them."""
        frame = frame_of(self.spark, rows).coalesce(1)
        retry.retry_commit(lambda: writes.append_rows(frame, self.path), self.path)
        self.local.flush([self.path])

    def rebuild(self, subscription: str, origin: str, tables: Iterable[tuple[str, str, str]]) -> int:
        """Append what the histories of tables have of earlier batches; returns the number of rows."""
        histories = {table: table_position.history_of(self.spark, table[2]) for table in tables}
        batches, joins = derived({table: history.commits() for table, history in histories.items()}, origin)
        rows = [
            {
                "subscription": subscription,
                "origin": origin,
                "number": 0,
                "kind": "batch",
                "start_lsn": batch["start_lsn"],
                "end_lsn": batch["end_lsn"],
                "position": batch["position"],
                "last_commit_time": _time(batch["last_commit_time"]),
                "recorded_at": _time(batch["last_commit_time"]) or dt.datetime.now(dt.UTC),
                "tables": json_of(batch["tables"]),
            }
            for batch in batches
        ]
        rows += [
            rows[0]
            | {
                "kind": "joined",
                "start_lsn": str(INVALID),  # no end of a batch
                "end_lsn": str(Lsn(position)),
                "position": position,
                "tables": json_of({table: histories[table].as_of(position)}),
            }
            for table, position in (joins.items() if rows else ())
        ]
        if batches:
            self._append(rows, f"{origin}/rebuilt", batches[-1]["position"])
        return len(rows)

    def prune(self, origin: str, before_s: float) -> int:
        """Delete rows that are older than that, in seconds since 1970; returns the number of rows.

        All tables' versions as of the last of these batches are kept, as of tables that join there. Files of the table
        that readers had a week to leave are removed.
        """
        limit = dt.datetime.fromtimestamp(before_s, dt.UTC)
        self._prune_complete(origin)
        rows = location.read_table(self.spark, self.path).filter(F.col("origin") == origin)
        old = rows.filter((F.col("kind") == "batch") & (F.col("recorded_at") < F.lit(limit)))
        last = old.orderBy(F.desc("position")).limit(1).drop("tables").collect()
        number = 0 if not last else rows.filter(F.col("position") < last[0].position).count()
        if not number:
            return 0
        tables = tables_at(rows, last[0].position)
        row = {
            name: in_utc(value) if isinstance(value, dt.datetime) else value for name, value in last[0].asDict().items()
        }
        kept = row | {
            "kind": "joined",
            "start_lsn": last[0].end_lsn,
            "tables": json_of({(table.namespace, table.name, table.path): table.version for table in tables}),
        }
        writes.append_rows(frame_of(self.spark, [kept]), self.path)
        name, condition = sql_name(self.path), f"origin = '{origin}' AND position < {last[0].position}"
        retry.retry_commit(lambda: self.spark.sql(f"DELETE FROM {name} WHERE {condition}").collect(), self.path)
        self.spark.sql(f"VACUUM {name}").collect()
        self.local.flush([self.path])
        return number

    def _prune_complete(self, origin: str) -> None:
        """Delete what was said of completeness, but for the last day."""
        limit = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        old = f"origin = '{origin}' AND kind = 'complete' AND recorded_at < timestamp '{limit:%F %T+00:00}'"
        statement = f"DELETE FROM {sql_name(self.path)} WHERE {old}"
        retry.retry_commit(lambda: self.spark.sql(statement).collect(), self.path)


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
        "complete_until": None if record.last_commit_us is None else utc(record.last_commit_us) - _IN_FLIGHT,
        "transactions": record.transactions,
        "recorded_at": dt.datetime.fromtimestamp(record.recorded_s, dt.UTC),
        "tables": json_of({table: versions.get(table[2]) for table in record.tables}),
    }


def json_of(versions: Mapping[tuple[str, str, str], int | None]) -> str:
    """The tables of a row, by (namespace, name, path), as `frame_of` reads them."""
    return json.dumps(
        [
            {"namespace": namespace, "name": name, "path": path, "version": version}
            for (namespace, name, path), version in versions.items()
        ]
    )


def frame_of(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows as a DataFrame with the table's columns."""
    flat = source.as_frame(spark, pa.Table.from_pylist(list(rows), schema=_FLAT))
    return flat.withColumn("tables", F.from_json("tables", _TABLES))


def tables_at(rows: DataFrame, position: int) -> list[Any]:
    """The tables that follow the stream as of a position, ordered by name.

    Args:
        rows: Rows of one origin.
        position: An LSN where a batch ends.

    Returns:
        Rows of `namespace`, `name`, `path`, `version` (None if it is not recorded yet), and `later`: whether a later
        batch may have committed to the table.
    """
    of_batches = rows.filter(F.col("kind").isin(*OF_BATCHES))
    each = of_batches.select("kind", "position", "number", F.explode("tables").alias("t"))
    here = F.col("position") <= F.lit(position)
    latest = F.max_by(F.when(here, F.struct("kind", "t")), F.when(here, F.struct("position", "number")))
    newest = each.groupBy("t.path").agg(latest.alias("newest"), F.max("position").alias("until"))
    return (
        newest.filter("newest.kind <> 'left'")
        .select("newest.t.*", (F.col("until") > position).alias("later"))
        .orderBy("namespace", "name")
        .collect()
    )


def in_utc(time: dt.datetime) -> dt.datetime:
    """A time as PySpark gives it, without a zone and by this machine's."""
    return time.astimezone(dt.UTC)


def _time(text: str) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None

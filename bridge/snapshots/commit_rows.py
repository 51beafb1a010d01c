"""Spark's part of the commit log: gives records their versions, and appends them to the table of commits."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.lake.location import append_table, read_table
from bridge.lake.table_position import history_of
from bridge.snapshots import commits_table
from bridge.snapshots.commit_log import derived
from bridge.spark.session import companion, interrupt_companion
from protocol.lsn import INVALID, Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bridge.catalog.commits import CommitRecord
    from bridge.lake.log.durable import LocalTables

_SETTINGS: Final = {
    # each append is a small file
    "spark.databricks.delta.autoCompact.enabled": "true",
    # a few rows: to generate code takes longer than to do without
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass(frozen=True, slots=True)
class CommitRows:
    """The table of commits of a warehouse.

    Attributes:
        parent: The subscription's session; the commits are made in a companion without its stamp.
        local: Flushes it, if it is local.
    """

    parent: SparkSession
    path: str
    local: LocalTables

    @property
    def _spark(self) -> SparkSession:
        return companion(self.parent, "commits", _SETTINGS)

    def interrupt(self) -> None:
        """End Spark's jobs that are under way."""
        interrupt_companion(self.parent, "commits")

    def ensure(self) -> None:
        """Create the table if it does not exist."""
        commits_table.ensure(self._spark, self.path)

    def last_number(self, origin: str) -> int:
        """The number of the last row of an origin; 0 if there is none."""
        return commits_table.last_number(self._spark, self.path, origin)

    def append(self, subscription: str, origin: str, records: Sequence[CommitRecord]) -> None:
        """Append records, with the tables' versions, and flush them."""
        histories = {path: history_of(self._spark, path) for record in records for _, _, path in record.tables}
        rows = [
            commits_table.row_of(
                subscription,
                origin,
                record,
                {
                    path: histories[path].as_of(int(record.end_lsn)) if record.kind != "left" else None
                    for _, _, path in record.tables
                },
            )
            for record in records
        ]
        commits_table.append(self._spark, self.path, rows, origin, records[-1].number)
        self.local.flush([self.path])

    def rebuild(self, subscription: str, origin: str, tables: Iterable[tuple[str, str, str]]) -> int:
        """Append what the histories of tables have of earlier batches; returns the number of rows."""
        histories = {table: history_of(self._spark, table[2]) for table in tables}
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
                "tables": _tables(batch["tables"]),
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
                "tables": _tables({table: histories[table].as_of(position)}),
            }
            for table, position in (joins.items() if rows else ())
        ]
        if batches:
            commits_table.append(self._spark, self.path, rows, f"{origin}/rebuilt", batches[-1]["position"])
        return len(rows)

    def prune(self, origin: str, before_s: float) -> int:
        """Delete rows that are older than that, in seconds since 1970; returns the number of rows.

        All tables' versions as of the last of these batches are kept, as of tables that join there.
        """
        limit = dt.datetime.fromtimestamp(before_s, dt.UTC)
        rows = read_table(self._spark, self.path).filter(F.col("origin") == origin)
        old = rows.filter((F.col("kind") == "batch") & (F.col("recorded_at") < F.lit(limit)))
        last = old.orderBy(F.desc("position")).limit(1).drop("tables").collect()
        number = 0 if not last else rows.filter(F.col("position") < last[0].position).count()
        if not number:
            return 0
        tables = commits_table.tables_at(rows, last[0].position)
        row = {name: _utc(value) for name, value in last[0].asDict().items()}
        kept = row | {
            "kind": "joined",
            "start_lsn": last[0].end_lsn,
            "tables": commits_table.json_of(
                {"namespace": table.namespace, "name": table.name, "path": table.path, "version": table.version}
                for table in tables
            ),
        }
        frame = commits_table.frame_of(self._spark, [kept])
        append_table(frame, self.path)
        commits_table.prune(self._spark, self.path, origin, last[0].position)
        self.local.flush([self.path])
        return number


def _time(text: str) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


def _utc(value: Any) -> Any:
    """A value as PySpark gives it; times are without a zone there, and by this machine's."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def _tables(versions: dict[tuple[str, str, str], int | None]) -> str:
    return commits_table.json_of(
        {"namespace": namespace, "name": name, "path": path, "version": version}
        for (namespace, name, path), version in versions.items()
    )

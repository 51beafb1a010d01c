"""All tables of a subscription as of one LSN: which version of each has exactly the transactions up to there.

The table of commits says where batches end, and which tables follow the stream there. The version of a table comes from
its own history (`History.as_of`): so it may be a later one with the same rows, as after an OPTIMIZE, whose files VACUUM
keeps longer.
"""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import DataFrame, SparkSession, functions as F

from pgbridge.bridge.lake import location, table_position
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import folded
from pgbridge.bridge.snapshots import commits_table
from pgbridge.bridge.targets.location import quoted, sql_name
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pgbridge.bridge.catalog.commits import CommitRecord

At = Lsn | dt.datetime | Literal["now"]
"""An LSN; a time, with its time zone; or the latest batch."""

_AT_ONCE: Final = 4
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TableAt:
    """A table as of a position.

    Attributes:
        recorded: The version that the table of commits has; None if it is not recorded yet.
        later: Whether a later batch may have committed to it.
    """

    namespace: str
    name: str
    path: str
    recorded: int | None
    later: bool

    @property
    def qualified_name(self) -> str:
        """`namespace.name`."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Point:
    """The end of a batch.

    Attributes:
        lsn: The batch's end: the tables have all transactions that end at or before it, and no other.
        commit_time: When the last of these was committed; of a copy that no batch has followed yet, when the tables
            began to follow the stream.
    """

    subscription: str
    lsn: Lsn
    commit_time: dt.datetime
    tables: tuple[TableAt, ...]


def point_of(
    spark: SparkSession,
    warehouse: str,
    at: At,
    *,
    subscription: str | None = None,
    pending: Iterable[tuple[str, CommitRecord]] = (),
) -> Point:
    """Find the last batch that ends at or before a position or time.

    Args:
        subscription: The subscription; None if the warehouse is of one only.
        pending: Records of the subscription, each with its origin, that the table of commits does not have yet.

    Raises:
        TargetError: The warehouse has no commits of the subscription, or none that is so old.
    """
    path = commits_table.path_in(warehouse)
    rows = _rows(spark, path, subscription, pending)
    if rows is None:
        raise TargetError(
            f"{path} does not exist: no commits are recorded in the warehouse",
            hint="the daemon makes it within some ten seconds after its first batch",
        )
    name, origin = _origin(rows.filter(F.col("kind").isin(*commits_table.OF_BATCHES)), path, subscription)
    rows = rows.filter((F.col("subscription") == name) & (F.col("origin") == origin))
    time = F.coalesce("last_commit_time", "recorded_at")
    # a table that joins ahead of the stream does not say where the others are
    ends = rows.filter("kind IN ('batch', 'left') OR (kind = 'joined' AND start_lsn = end_lsn)")
    ends = ends.select("position", time.alias("time"))
    wanted = _until(ends, at)
    last = wanted.orderBy(F.desc("position"), F.desc("time")).limit(1).collect()
    if not last:
        oldest = ends.agg(F.min("position"), F.min("time")).collect()[0]
        since = "later" if oldest[0] is None else f"{Lsn(oldest[0])} ({commits_table.in_utc(oldest[1]):%F %T} UTC)"
        raise TargetError(
            f'the recorded commits of subscription "{name}" begin at {since}, after the position {at}',
            hint="tables, and records of commits, keep their history for 30 days",
        )
    position = last[0].position
    tables = tuple(TableAt(*row) for row in commits_table.tables_at(rows, position))
    return Point(name, Lsn(position), commits_table.in_utc(last[0].time), tables)


def _rows(
    spark: SparkSession, path: str, subscription: str | None, pending: Iterable[tuple[str, CommitRecord]]
) -> DataFrame | None:
    """The rows of the table, and those of records that it does not have yet; None if there is no table either."""
    rows = [commits_table.row_of(subscription, origin, record, {}) for origin, record in pending]
    new = commits_table.frame_of(spark, rows) if rows else None
    if schema_of(spark, path) is None:
        return new
    there = location.read_table(spark, path)
    return there if new is None else there.unionByName(new)


def _origin(rows: DataFrame, path: str, subscription: str | None) -> tuple[str, str]:
    """The subscription, and the origin of its latest rows: another one begins when its state was removed."""
    latest = F.max_by("origin", F.struct("recorded_at", "number")).alias("origin")
    origins = {row.subscription: row.origin for row in rows.groupBy("subscription").agg(latest).collect()}
    names = ", ".join(f'"{name}"' for name in sorted(origins))
    if subscription is None and len(origins) == 1:
        return next(iter(origins.items()))
    if subscription is None or subscription not in origins:
        wanted = "which of its subscriptions is meant" if subscription is None else f'subscription "{subscription}"'
        raise TargetError(f"{path} does not say {wanted} (it has: {names or 'none'})", hint="name the subscription")
    return subscription, origins[subscription]


def _until(ends: DataFrame, at: At) -> DataFrame:
    if isinstance(at, Lsn):
        return ends.filter(F.col("position") <= F.lit(min(int(at), _MOST)))
    return ends if at == "now" else ends.filter(F.col("time") <= F.lit(at))


def version_at(spark: SparkSession, table: TableAt, lsn: Lsn, *, replayed: bool = False) -> int:
    """The latest version of a table that has the rows of a position; with `replayed` what was replayed there, too.

    Raises:
        TargetError: The table, or that version of it, is gone.
    """
    history = table_position.history_of(spark, table.path)
    version = history.as_of(int(lsn), replayed=replayed)
    oldest = history.oldest
    if (
        version is None
        and oldest is not None
        and not table.later
        and not history.has_after(int(lsn), replayed=replayed)
    ):
        version = history.latest  # what is older than the log's retention made the rows, and nothing has changed them
    if version is None:
        removed = "has no history" if oldest is None else f"has a history that begins with version {oldest}"
        raise TargetError(
            f'"{table.qualified_name}" is gone as of {lsn}: {table.path} {removed}',
            hint="Delta keeps a table's history for 30 days (delta.logRetentionDuration)",
        )
    if (vacuum := history.vacuumed(version)) is not None:
        raise TargetError(
            f'"{table.qualified_name}" is gone as of {lsn}: VACUUM has removed files of version {version} '
            f"(version {vacuum.version} of {table.path})",
            hint="choose a later LSN; target.vacuum_retention_h says how long VACUUM keeps files",
        )
    return version


def versions_at(spark: SparkSession, point: Point) -> list[tuple[TableAt, int | TargetError]]:
    """The version of each table, or why it has none any more."""

    def version(table: TableAt) -> int | TargetError:
        try:
            return version_at(spark, table, point.lsn)
        except TargetError as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE, "versions") as pool:
        return list(zip(point.tables, pool.map(version, point.tables), strict=True))


def create_views(
    spark: SparkSession,
    namespace: str,
    subscription: str,
    versions: Sequence[tuple[TableAt, int]],
    taken: dict[str, str],
) -> None:
    """Create or replace a view of each table's version in a namespace of a catalog, as <schema>_<table>.

    Args:
        taken: The tables that have a view in this namespace already, by the view as a catalog has it; these are added.

    Raises:
        TargetError: Two tables would have the same view; none of these has been made.
    """
    views = dict(taken)
    for table, _ in versions:
        name, of = f"{table.namespace}_{table.name}", f'"{table.qualified_name}" of subscription "{subscription}"'
        if (other := views.setdefault(folded(name), of)) is not of:
            raise TargetError(
                f"the tables {other} and {of} would both be the view {namespace}.{quoted(name)}",
                hint="read their versions with VERSION AS OF, or with pgbridge.snapshot; or give each subscription a "
                "namespace of its own",
            )
    taken.update(views)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}").collect()
    for table, version in versions:
        view = f"{namespace}.{quoted(f'{table.namespace}_{table.name}')}"
        spark.sql(
            f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {sql_name(table.path)} VERSION AS OF {version}"
        ).collect()

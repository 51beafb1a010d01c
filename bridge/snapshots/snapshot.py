"""All tables of a subscription as of one LSN: `pgbridge snapshot`, and `pgbridge.snapshot` for Spark programs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.text import Text

from pgbridge.bridge.catalog import commits
from pgbridge.bridge.catalog.catalog import Catalog, catalog_path
from pgbridge.bridge.config.each_subscription import each
from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.runtime.errors import BridgeError, ConfigError, TargetError
from pgbridge.bridge.runtime.listing import Listing
from pgbridge.bridge.snapshots import point_in_time
from pgbridge.bridge.spark.session import command_session, told
from pgbridge.bridge.targets.location import quoted
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pgbridge.bridge.config.config import Config, Subscription


class Snapshot(Mapping[str, "DataFrame"]):
    """The tables of a subscription as of one LSN, by `schema.table`: DataFrames of the version that has it.

    A table's version is found when the table is first asked for.

    Attributes:
        lsn: Where its batch ends, as text: the tables have all transactions that end at or before it, and no other.
        commit_time: When the last of these was committed, in UTC.
    """

    def __init__(self, spark: SparkSession, point: point_in_time.Point) -> None:
        self._spark = spark
        self._lsn = point.lsn
        self._tables = {table.qualified_name: table for table in point.tables}
        self._versions: dict[str, int] = {}
        self.subscription: str = point.subscription
        self.lsn: str = str(point.lsn)
        self.commit_time: dt.datetime = point.commit_time

    def version(self, table: str) -> int:
        """The Delta version of a table.

        Raises:
            KeyError: No such table followed the stream there.
            TargetError: VACUUM, or the retention of Delta's log, has removed that version.
        """
        if table not in self._tables:
            raise KeyError(f'no table "{table}" followed the stream at {self.lsn}; there are {", ".join(self._tables)}')
        if table not in self._versions:
            self._versions[table] = point_in_time.version_at(self._spark, self._tables[table], self._lsn)
        return self._versions[table]

    def __getitem__(self, table: str) -> DataFrame:
        """A table's rows; raises as `version`."""
        version = self.version(table)
        return read_table(self._spark, self._tables[table].path, version=version)

    def __repr__(self) -> str:
        """Say what it is of."""
        return f"<snapshot of {self.subscription} at {self.lsn}, {self.commit_time}: {', '.join(self._tables)}>"

    def __iter__(self) -> Iterator[str]:
        """The tables' names."""
        return iter(self._tables)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)


def snapshot(
    spark: SparkSession, warehouse: str, at: str | dt.datetime = "now", *, subscription: str | None = None
) -> Snapshot:
    """All tables of a subscription as of one LSN, so that readers see whole transactions.

    Args:
        spark: A session with Delta, as `pgbridge.session` starts it.
        warehouse: The subscription's warehouse.
        at: An LSN ("16/B374D848"), a time (with its time zone, or in UTC), or "now" for the latest batch that is
            recorded. The snapshot is of the last batch that ends at or before it.
        subscription: The subscription; needed if several write to the warehouse.

    Raises:
        TargetError: No commits are recorded in the warehouse, or none that are so old.
        ConfigError: `at` is neither an LSN nor a time.
    """
    return Snapshot(spark, point_in_time.point_of(spark, warehouse, parse_at(at), subscription=subscription))


def parse_at(at: str | dt.datetime) -> point_in_time.At:
    """Parse an LSN, a time in ISO 8601 (without a zone: UTC), or "now".

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(at, str):
        if at == "now":
            return "now"
        try:
            return Lsn.parse(at)
        except ValueError:
            pass
        try:
            at = dt.datetime.fromisoformat(at)
        except ValueError as error:
            raise ConfigError(
                f'"{at}" is not a position',
                hint='give an LSN ("16/B374D848"), a time ("2026-05-01 12:00:00+02"), or "now"',
            ) from error
    return at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)


def collect(
    config: Config, chosen: list[Subscription], at: str, *, views: str = "", spark: SparkSession | None = None
) -> dict[str, Any]:
    """Return the document of `pgbridge snapshot --json`.

    Args:
        views: A namespace of a catalog, in which a view of each table's version is made; empty for none.
        spark: A session; None to start the configured one, and stop it.

    Returns:
        `{"snapshots": [{"subscription", "wanted", "lsn", "commit_time", "remote_lsn", "tables": [{"table", "path",
        "version", "error", "view"}]}]}`. `version` is null where `error` says why it is gone. Of several subscriptions,
        one without recorded commits, or without any so old, or that cannot be read, has `error` itself, and no tables.

    Raises:
        ConfigError: `at` is not a position; or the views would end with this process.
        TargetError: The only subscription has such an error; or a table of its views is gone, or two would be one view.
    """
    wanted = parse_at(at)
    with nullcontext(spark) if spark else command_session(config, chosen, log="snapshot-spark.log") as running:
        if views:
            _check_catalog(running, views)
        with closing(Catalog(catalog_path(config.state_dir))) as catalog:
            taken: dict[str, str] = {}

            def document_of(subscription: Subscription) -> dict[str, Any]:
                with told(running):
                    return _one(running, catalog, subscription, wanted, at, views, taken)

            return {"snapshots": each(chosen, document_of, partial(_failed, at))}


def _failed(at: str, subscription: Subscription, error: BridgeError) -> dict[str, Any]:
    nothing: dict[str, Any] = {"lsn": None, "commit_time": None, "remote_lsn": None, "tables": []}
    return {"subscription": subscription.name, "wanted": at, **nothing, "error": str(error)}


def _one(
    spark: SparkSession,
    catalog: Catalog,
    subscription: Subscription,
    wanted: point_in_time.At,
    at: str,
    views: str,
    taken: dict[str, str],
) -> dict[str, Any]:
    row = catalog.subscription(subscription.name)
    origin = row.txn_app_id if row is not None else ""
    pending = [(origin, record) for record in commits.pending(catalog, subscription.name)]
    point = point_in_time.point_of(
        spark, subscription.warehouse, wanted, subscription=subscription.name, pending=pending
    )
    versions = point_in_time.versions_at(spark, point)
    if views:
        made: list[tuple[point_in_time.TableAt, int]] = []
        for table, version in versions:
            if isinstance(version, TargetError):
                raise version
            made.append((table, version))
        point_in_time.create_views(spark, _namespace(views), point.subscription, made, taken)
    remote_lsn = catalog.remote_lsn(subscription.name)
    return {
        "subscription": point.subscription,
        "wanted": at,
        "lsn": str(point.lsn),
        "commit_time": point.commit_time.isoformat(),
        "remote_lsn": None if remote_lsn is None else str(remote_lsn),
        "tables": [
            {
                "table": table.qualified_name,
                "path": table.path,
                "version": version if isinstance(version, int) else None,
                "error": None if isinstance(version, int) else version.message,
                "view": f"{views}.{table.namespace}_{table.name}" if views else None,
            }
            for table, version in versions
        ],
    }


def _namespace(views: str) -> str:
    return ".".join(quoted(part) for part in views.split("."))


def _check_catalog(spark: SparkSession, views: str) -> None:
    """Raise if views would end with this process: Spark's own catalog is in memory unless Hive's is configured."""
    own = "." not in views or views.startswith("spark_catalog.")
    if own and spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory":
        raise ConfigError(
            "the views would be gone as soon as this command ends: Spark's catalog is in memory",
            hint='set "spark.sql.catalogImplementation" = "hive" in [spark.conf], with the metastore that its readers '
            "use; or read the versions with VERSION AS OF, or with pgbridge.snapshot",
        )


def render(document: dict[str, Any]) -> Listing:
    """Render the document as a table."""
    table = Listing("subscription", "lsn", "committed (UTC)", "table", "version", "Delta table")
    for entry in document["snapshots"]:
        if "error" in entry:
            table.add_row(*map(Text, (entry["subscription"], "-", "-", "-", "-", entry["error"])))
            continue
        time = dt.datetime.fromisoformat(entry["commit_time"]).strftime("%F %T.%f")
        for row in entry["tables"] or [{"table": "-", "version": None, "error": None, "path": "-", "view": None}]:
            version = "-" if row["version"] is None else str(row["version"])
            place = row["error"] or row["view"] or row["path"]
            table.add_row(*map(Text, (entry["subscription"], entry["lsn"], time, row["table"], version, place)))
    return table


def is_incomplete(document: dict[str, Any]) -> bool:
    """Whether a table's version is gone, or a subscription has failed."""
    return any("error" in entry or any(table["error"] for table in entry["tables"]) for entry in document["snapshots"])

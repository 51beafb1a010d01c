"""The Delta table `<warehouse>/pgbridge/subscriptions`: the manifest of each subscription that writes there.

A row is a document (`bridge.catalog.manifest`); the one with the highest number counts. It is appended before the
server may forget anything that it says: before a batch is confirmed, never with each batch. So with the slot's
confirmed_flush_lsn, whatever has been confirmed is durable in each table that the document has as one that follows.
"""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from bridge.catalog import manifest
from bridge.catalog.catalog import boot_id
from bridge.catalog.catalog_rows import owner_of
from bridge.lake import ddl, location, retry, source, writes
from bridge.lake.log.local_tables import LocalTables
from bridge.lake.schema import spark_schema
from bridge.lake.table import schema_of
from bridge.runtime import faults, remedies
from bridge.runtime.errors import StateError, StoreError, TargetError
from bridge.runtime.threads import Together
from bridge.spark.outcome import SPARK_ERRORS, is_lost, store_hint, summary
from bridge.spark.session import companion
from bridge.targets.location import own_location, sql_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bridge.catalog.catalog import Catalog
    from bridge.config.config import Subscription

_SCHEMA: Final = pa.schema(
    [
        ("origin", pa.string()),  # the server's system identifier and the subscription: pgbridge/…/…
        ("slot_name", pa.string()),
        ("number", pa.int64()),  # grows with each row of an origin: the last one counts
        ("document", pa.string()),  # JSON
        ("recorded_at", pa.timestamp("us", "UTC")),  # by this machine's clock
    ]
)
_KEPT: Final = 20
"""So many changes may be in the table before earlier ones are removed."""

_SETTINGS: Final = {
    # a few rows: to generate code takes longer than to do without
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A document that is to be appended, and the session to do it with."""

    spark: SparkSession
    origin: str
    slot_name: str
    due: manifest.Due


@dataclass(eq=False)
class ManifestTable:
    """The table of one warehouse. One commit takes the documents of all subscriptions that wait to write one."""

    path: str
    _last: dict[str, tuple[int, str]] = field(init=False, default_factory=dict)  # number and slot, by origin
    _known: bool = field(init=False, default=False)  # they were read, and each append since has succeeded
    _together: Together[_Entry, None] = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)  # of both

    def __post_init__(self) -> None:
        self._together = Together(self._append)

    def append(self, spark: SparkSession, origin: str, slot_name: str, due: manifest.Due) -> None:
        """Append a document, with a number that is higher than all before, and flush it.

        Raises:
            TargetError: The table at the path has other columns.
            TargetBusy: Other writers were in the way.
            StateError: It cannot be flushed.
            PySparkException: Spark cannot commit.
        """
        self._together.do(_Entry(spark, origin, slot_name, due))

    def _append(self, entries: list[_Entry]) -> list[None]:
        spark = companion(entries[0].spark, "manifest", _SETTINGS)
        with self._lock:
            self._read(spark)
            self._known = False
            if not self._last:
                retry.retry_commit(partial(self._ensure, spark), self.path)
            rows: list[dict[str, Any]] = []
            for entry in entries:
                number = self._last.get(entry.origin, (0, ""))[0] + 1
                self._last[entry.origin] = number, entry.slot_name
                values = entry.origin, entry.slot_name, number, entry.due.document, dt.datetime.now(dt.UTC)
                rows.append(dict(zip(_SCHEMA.names, values, strict=True)))
            frame = source.as_frame(spark, pa.Table.from_pylist(rows, schema=_SCHEMA)).coalesce(1)
            retry.retry_commit(lambda: writes.append_rows(frame, self.path), self.path)
            local = LocalTables(partial(location.place_of, spark))
            local.flush([self.path])
            for row in rows:
                if row["number"] % _KEPT == 0:
                    self._prune(spark, row["origin"], row["number"])
                    local.flush([self.path])
            self._known = True
        return [None] * len(entries)

    def _read(self, spark: SparkSession) -> None:
        """Read the last number and slot of each origin, unless they are known."""
        if self._known:
            return
        self._last = {}
        if self._exists(spark):
            last = location.read_table(spark, self.path).groupBy("origin").agg(F.max(F.struct("number", "slot_name")))
            self._last |= {origin: (latest.number, latest.slot_name) for origin, latest in last.collect()}
        self._known = True

    def has(self, spark: SparkSession, origin: str, slot_name: str) -> bool:
        """Whether there is a document of a subscription that has this slot."""
        with self._lock:
            self._read(companion(spark, "manifest", _SETTINGS))
            return self._last.get(origin, (0, ""))[1] == slot_name

    def _ensure(self, spark: SparkSession) -> None:
        if not self._exists(spark):
            ddl.create_table(spark, self.path, spark_schema([(column.name, column.type) for column in _SCHEMA]))

    def _exists(self, spark: SparkSession) -> bool:
        schema = schema_of(spark, self.path)
        if schema is not None and schema.fieldNames() != _SCHEMA.names:
            raise TargetError(
                f"the Delta table at {self.path} is not a table of subscriptions: its columns are "
                f"{schema.simpleString()}",
                hint="move it away; it is made again from the state directory",
            )
        return schema is not None

    def _prune(self, spark: SparkSession, origin: str, number: int) -> None:
        name, condition = sql_name(self.path), f"origin = '{origin}' AND number < {number}"
        retry.retry_commit(lambda: spark.sql(f"DELETE FROM {name} WHERE {condition}").collect(), self.path)
        spark.sql(f"VACUUM {name}").collect()

    def latest(self, spark: SparkSession, origin: str, slot_name: str) -> manifest.Manifest | None:
        """The last document of a subscription that has this slot; None if there is none."""
        if not self._exists(spark):
            return None
        rows = location.read_table(spark, self.path).filter(F.col("origin") == origin)
        last = rows.orderBy(F.desc("number")).limit(1).collect()
        return manifest.Manifest.of(last[0].document) if last and last[0].slot_name == slot_name else None


_TABLES: Final[dict[str, ManifestTable]] = {}
_lock: Final = threading.Lock()


def table_in(warehouse: str) -> ManifestTable:
    """The table of a warehouse: one for all of this process."""
    path = own_location(warehouse, "subscriptions")
    with _lock:
        return _TABLES.setdefault(path, ManifestTable(path))


def origin_of(system_identifier: str | None, subscription: str) -> str:
    """The name of a subscription to a server, in the table."""
    return f"pgbridge/{system_identifier}/{subscription}"


def record(spark: SparkSession, catalog: Catalog, subscription: Subscription) -> None:
    """Have the warehouse know all that the tables' logs cannot say; it does nothing if nothing of it has changed.

    It is called before anything is confirmed to the server: if it raises, nothing may be.

    Args:
        subscription: The subscription, or its tablesync worker's.

    Raises:
        StoreError: Spark cannot commit.
        TargetBusy: Other writers were in the way.
        TargetError: The table there has other columns.
        StateError: It cannot be flushed.
        PySparkException, Py4JError: Spark has ended.
    """
    name = owner_of(subscription.name)
    due = manifest.due(catalog, name, boot_id())
    row = catalog.subscription(name) if due is not None else None
    if due is None or row is None or row.slot_name is None:
        return
    origin = origin_of(row.system_identifier, name)
    table = table_in(subscription.warehouse)
    try:
        table.append(spark, origin, row.slot_name, due)
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
        raise StoreError(
            f"{table.path}: what a lost state directory is made from cannot be written, so nothing is confirmed to the "
            f"server: {summary(error)}",
            hint=store_hint(error),
        ) from error
    faults.reach("manifest_written")
    manifest.written(catalog, name, due)


def check_new(spark: SparkSession, catalog: Catalog, subscription: Subscription, system_identifier: str) -> None:
    """Check that a subscription that begins is not one that the warehouse knows, and the catalog does not.

    One that was dropped, or is begun afresh, is known to the catalog.

    Raises:
        StateError: It is.
    """
    name = subscription.name
    if name != owner_of(name) or manifest.is_written(catalog, name):
        return
    table = table_in(subscription.warehouse)
    if table.has(spark, origin_of(system_identifier, name), subscription.slot_name):
        raise StateError(
            f'subscription "{name}" has been here: {table.path} has what belongs to it, and the state directory '
            f"{catalog.state_dir} does not: it was lost, or state_dir is another one",
            hint=f"stop the daemon, and make the state anew from the tables and the slot: {remedies.recover(name)}",
        )

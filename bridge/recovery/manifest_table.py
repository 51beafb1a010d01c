"""The Delta table `<warehouse>/pgbridge/subscriptions`: the manifest of each subscription that writes there.

A row is a document (`bridge.catalog.manifest`); the one with the highest number counts. It is appended when something
of it has changed, before anything else is confirmed to the server. (A batch changes nothing of it, unless transactions
are prepared or altered tables are in it.) So with the slot's confirmed_flush_lsn, whatever has been confirmed is
durable in each table that follows by the document.
"""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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


_GENERATION_BITS: Final = 32
"""A number is the generation of the catalog, and a count within it."""


class Last(NamedTuple):
    """The number and the slot of a document."""

    number: int
    slot_name: str

    @property
    def generation(self) -> int:
        """How many recoveries it comes after."""
        return self.number >> _GENERATION_BITS


_NONE: Final = Last(0, "")


@dataclass(eq=False)
class ManifestTable:
    """The table of one warehouse. One commit takes the documents of all subscriptions that wait to write one."""

    path: str
    _last: dict[str, Last] = field(init=False, default_factory=dict)  # by origin
    _known: bool = field(init=False, default=False)  # they were read, and each append since has succeeded
    _together: Together[_Entry, None] = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)  # of both
    _locks: dict[str, threading.Lock] = field(init=False, default_factory=dict)
    _local: tuple[SparkSession, LocalTables] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._together = Together(self._append)

    def append(self, spark: SparkSession, origin: str, slot_name: str, due: manifest.Due) -> None:
        """Append a document, with a number that is higher than all before, and flush it.

        Raises:
            TargetError: The table at the path has other columns.
            TargetBusy: Other writers were in the way.
            StateError: It cannot be flushed; or the state was made anew elsewhere since.
            PySparkException: Spark cannot commit.
        """
        with self._lock:
            self._read(spark)
            last = self._last.get(origin, _NONE)
        if last.generation > due.generation:
            raise StateError(
                f"{self.path}: the state of this subscription was made anew by pgbridge recover, for another state "
                "directory than the one here",
                hint="run one daemon only, with the state directory that was made last; remove the other one",
            )
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
                last = self._last.get(entry.origin, _NONE)
                number = max(last.number, entry.due.generation << _GENERATION_BITS) + 1
                self._last[entry.origin] = Last(number, entry.slot_name)
                values = entry.origin, entry.slot_name, number, entry.due.document, dt.datetime.now(dt.UTC)
                rows.append(dict(zip(_SCHEMA.names, values, strict=True)))
            frame = source.as_frame(spark, pa.Table.from_pylist(rows, schema=_SCHEMA)).coalesce(1)
            retry.retry_commit(lambda: writes.append_rows(frame, self.path), self.path)
            self._flush(spark)
            for row in rows:
                if row["number"] % _KEPT == 0:
                    self._prune(spark, row["origin"], row["number"])
            self._known = True
        return [None] * len(entries)

    def _flush(self, spark: SparkSession) -> None:
        if self._local is None or self._local[0] is not spark:  # its first flush is of the whole file system
            self._local = spark, LocalTables(partial(location.place_of, spark))
        self._local[1].flush([self.path])

    def _read(self, spark: SparkSession) -> None:
        """Read the last number and slot of each origin, unless they are known."""
        if self._known:
            return
        spark = companion(spark, "manifest", _SETTINGS)
        self._last = {}
        if self._exists(spark):
            last = location.read_table(spark, self.path).groupBy("origin").agg(F.max(F.struct("number", "slot_name")))
            self._last |= {origin: Last(*latest) for origin, latest in last.collect()}
        self._known = True

    def last(self, spark: SparkSession, origin: str) -> Last | None:
        """The last document's number and slot; None if there is none."""
        with self._lock:
            self._read(spark)
            return self._last.get(origin)

    def lock_of(self, origin: str) -> threading.Lock:
        """Held by who reads a subscription's document from the catalog, until it is appended: the last one counts."""
        with self._lock:
            return self._locks.setdefault(origin, threading.Lock())

    def _ensure(self, spark: SparkSession) -> None:
        if not self._exists(spark):
            ddl.create_table(spark, self.path, spark_schema([(column.name, column.type) for column in _SCHEMA]))

    def _exists(self, spark: SparkSession) -> bool:
        schema = schema_of(spark, self.path)
        if schema is not None and schema.fieldNames() != _SCHEMA.names:
            raise TargetError(
                f"the Delta table at {self.path} is not a table of subscriptions: its columns are "
                f"{schema.simpleString()}",
                hint="move it away; each subscription writes it again when it is started",
            )
        return schema is not None

    def _prune(self, spark: SparkSession, origin: str, number: int) -> None:
        name, condition = sql_name(self.path), f"origin = '{origin}' AND number < {number}"
        retry.retry_commit(lambda: spark.sql(f"DELETE FROM {name} WHERE {condition}").collect(), self.path)
        spark.sql(f"VACUUM {name}").collect()
        self._flush(spark)

    def latest(self, spark: SparkSession, origin: str, slot_name: str) -> manifest.Manifest | None:
        """The last document of a subscription that has this slot; None if there is none."""
        if not self._exists(spark):
            return None
        rows = location.read_table(spark, self.path).filter(F.col("origin") == origin)
        last = rows.orderBy(F.desc("number")).limit(1).collect()
        if not last or last[0].slot_name != slot_name:
            return None
        return manifest.Manifest.of(last[0].document, Last(last[0].number, slot_name).generation)


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
        StateError: It cannot be flushed; or the state was made anew elsewhere since.
        PySparkException, Py4JError: Spark has ended.
    """
    name = owner_of(subscription.name)
    if not manifest.is_due(catalog, name) or (row := catalog.subscription(name)) is None or row.slot_name is None:
        return
    table, origin = table_in(subscription.warehouse), origin_of(row.system_identifier, name)
    try:
        with table.lock_of(origin):  # the tablesync worker and copies record, too
            if (due := manifest.due(catalog, name, boot_id())) is None:
                return
            manifest.begin(catalog, name)
            table.append(spark, origin, row.slot_name, due)
            faults.reach("manifest_written")
            manifest.written(catalog, name, due)
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
        raise StoreError(
            f"{table.path}: what a lost state directory is made from cannot be written, so nothing is confirmed to the "
            f"server: {summary(error)}",
            hint=store_hint(error),
        ) from error


def record_all(spark: SparkSession, catalog: Catalog, subscription: Subscription) -> None:
    """The same when a stream begins: also if the warehouse has lost what it had."""
    row = catalog.subscription(owner_of(subscription.name))
    if row is not None and row.slot_name is not None:
        origin = origin_of(row.system_identifier, row.name)
        if table_in(subscription.warehouse).last(spark, origin) is None:
            manifest.lost(catalog, row.name)
    record(spark, catalog, subscription)


def knows(spark: SparkSession, subscription: Subscription, system_identifier: str) -> bool:
    """Whether the warehouse has a document of a subscription, or of its tablesync worker's."""
    origin = origin_of(system_identifier, owner_of(subscription.name))
    # the worker's slot has another name
    return table_in(subscription.warehouse).last(spark, origin) is not None


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
    last = table.last(spark, origin_of(system_identifier, name))
    if last is not None and last.slot_name == subscription.slot_name:
        raise StateError(
            f'subscription "{name}" has been here: {table.path} has what belongs to it, and the state directory '
            f"{catalog.state_dir} does not: it was lost, or state_dir is another one",
            hint=f"stop the daemon, and make the state anew from the tables and the slot: {remedies.recover(name)}",
        )

"""The Delta table `<warehouse>/pgbridge/subscriptions`: the manifest of each subscription that writes there.

A row is a document (`bridge.catalog.manifest`); the one with the highest number counts. It is appended when something
of it has changed, before anything else is confirmed to the server. (A batch changes nothing of it, unless transactions
are prepared or altered tables are in it.) So with the slot's confirmed_flush_lsn, whatever has been confirmed is
durable in each table that follows by the document.

Or a row is a claim, by which a recovery begins a generation. Documents of earlier generations do not count any more.
Both sides write first, and read then: the owner a document, before it relies on it, and whoever recovers the claim,
before it relies on the last document. So at least one of them sees the other. An owner that sees a claim is not the
owner any more (`TakenOver`).
"""

from __future__ import annotations

import datetime as dt
import socket
import threading
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from pgbridge.bridge.catalog import manifest
from pgbridge.bridge.catalog.catalog import boot_id
from pgbridge.bridge.catalog.catalog_rows import owner_of
from pgbridge.bridge.lake import location, own_table, retry, source, writes
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.log.stamp import USER_METADATA
from pgbridge.bridge.lake.table import asked
from pgbridge.bridge.lake.table_position import Entry, log_entries
from pgbridge.bridge.recovery.manifest_log import GENERATION_BITS, NO_ROW, Last, folded, told_since, user_metadata
from pgbridge.bridge.runtime import faults, remedies
from pgbridge.bridge.runtime.errors import StateError, StoreError, TakenOver
from pgbridge.bridge.runtime.threads import Together
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, is_lost, store_hint, summary
from pgbridge.bridge.spark.session import companion
from pgbridge.bridge.targets.location import own_location, sql_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription

_SCHEMA: Final = pa.schema(
    [
        ("origin", pa.string()),  # the server's system identifier and the subscription: pgbridge/…/…
        ("slot_name", pa.string()),
        ("number", pa.int64()),  # grows with each row of an origin: the last one counts
        ("document", pa.string()),  # JSON; NULL for a claim
        ("claimed_by", pa.string()),  # the machine, and what no other claim has; NULL for a document
        ("recorded_at", pa.timestamp("us", "UTC")),  # by this machine's clock
    ]
)
_TABLE: Final = own_table.OwnTable(
    "subscriptions", _SCHEMA, hint="move it away; each subscription writes it again when it is started"
)
_KEPT: Final = 20
"""So many changes may be in the table before earlier ones are removed."""
_FIRST: Final = 3
_BEGINS_AFTER_S: Final = 1.0
"""How long after a commit of others a subscription's first documents are written: hundreds begin within minutes."""
_VACUUM_EVERY: Final = 10 * _KEPT
"""After so many changes, files that readers had a week to leave are removed: a second's work, before a confirmation."""

_SETTINGS: Final = {
    # its other commits, as those that remove earlier rows, append none
    USER_METADATA: user_metadata({}),
    **own_table.FEW_ROWS,
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A document that is to be appended, and the session to do it with."""

    spark: SparkSession
    origin: str
    slot_name: str
    due: manifest.Due


_NO_TABLE: Final = -1

_LOOKED_BACK: Final = 50
"""A table of at most so many commits needs no query, if nothing of it is known."""

_SINCE: Final = 10
"""The same for the commits since the version that is known; on a store, each is a request."""


@dataclass(eq=False)
class ManifestTable:
    """The table of one warehouse. One commit takes the documents of all subscriptions that wait to write one."""

    path: str
    _last: dict[str, Last] = field(init=False, default_factory=dict)  # by origin
    _version: int | None = field(init=False, default=None)  # of which they were read
    _last_origins: frozenset[str] = field(init=False, default=frozenset())  # of the last call's documents
    _together: Together[_Entry, Last] = field(init=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)  # of both
    _locks: dict[str, threading.Lock] = field(init=False, default_factory=dict)
    _local: tuple[SparkSession, LocalTables] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._together = Together(self._append)

    def append(self, spark: SparkSession, origin: str, slot_name: str, due: manifest.Due) -> Last:
        """Append a document, with a number that is higher than all before, and flush it.

        Returns:
            The origin's last row afterwards. If that is of a later generation, the document does not count.

        Raises:
            TargetError: The table at the path has other columns.
            TargetBusy: Other writers were in the way.
            StateError: It cannot be flushed.
            PySparkException: Spark cannot commit.
        """
        number = self._last.get(origin, NO_ROW).number - (due.generation << GENERATION_BITS)
        begins_with_others = number < _FIRST and not self._last_origins <= {origin}
        after_s = _BEGINS_AFTER_S if begins_with_others else 0.0
        return self._together.do(_Entry(spark, origin, slot_name, due), after_s=after_s)

    def _append(self, entries: list[_Entry]) -> list[Last]:
        spark = entries[0].spark
        with self._lock:
            self._read(spark)
            rows: list[dict[str, Any]] = []
            numbers = {origin: last.number for origin, last in self._last.items()}
            for entry in entries:
                if self._last.get(entry.origin, NO_ROW).generation <= entry.due.generation:
                    number = max(numbers.get(entry.origin, 0), entry.due.generation << GENERATION_BITS) + 1
                    numbers[entry.origin] = number
                    rows.append(_row(entry.origin, entry.slot_name, number, document=entry.due.document))
            self._write(spark, rows)
            for row in rows:
                if row["number"] % _KEPT == 0:
                    self._prune(spark, row["origin"], row["number"])
            self._read(spark)  # whoever claims an origin from here on sees its document
            self._last_origins = frozenset(entry.origin for entry in entries)
            return [self._last.get(entry.origin, NO_ROW) for entry in entries]

    def claim(self, spark: SparkSession, origin: str, slot_name: str) -> int:
        """Begin another generation of a subscription, whose documents count from now on; returns its number.

        Raises:
            StateError: Another machine has begun it at the same moment. Or as `append`.
        """
        by = f"{socket.gethostname()}/{uuid.uuid4().hex}"
        with self._lock:
            self._read(spark)
            generation = self._last.get(origin, NO_ROW).generation + 1
            # of two claims Delta takes one
            stamp = {"txnAppId": f"{origin}/claim", "txnVersion": str(generation)}
            self._write(spark, [_row(origin, slot_name, generation << GENERATION_BITS, claimed_by=by)], stamp)
            self._read(spark)
            last = self._last.get(origin, NO_ROW)
        if last.claimed_by != by:
            raise StateError(f"another machine recovers {origin} at the same moment", retry=True)
        return generation

    def _write(self, spark: SparkSession, rows: list[dict[str, Any]], stamp: Mapping[str, str] | None = None) -> None:
        """Append rows by one commit, and flush it. Its log entry has what `Last` has of them."""
        if not rows:
            return
        spark = companion(spark, "manifest", _SETTINGS)
        if self._version == _NO_TABLE:
            _TABLE.ensure(spark, self.path)
        told = {row["origin"]: Last(row["number"], row["slot_name"], row["claimed_by"]) for row in rows}
        options = {**(stamp or {}), "userMetadata": user_metadata(told)}
        frame = source.as_frame(spark, pa.Table.from_pylist(rows, schema=_SCHEMA)).coalesce(1)
        local = self._local_tables(spark)  # from before what it flushes
        retry.retry_commit(lambda: writes.append_rows(frame, self.path, options), self.path)
        local.flush([self.path])

    def _local_tables(self, spark: SparkSession) -> LocalTables:
        if self._local is None or self._local[0] is not spark:  # its first flush is of the whole file system
            self._local = spark, LocalTables(partial(location.place_of, spark))
        return self._local[1]

    def _read(self, spark: SparkSession) -> None:
        """Have the last row of each origin as of now: by what the commits since say of themselves, or by a query.

        A daemon of many subscriptions starts, and each has a look: a query takes a second of a JVM that is cold.
        """
        entries = asked(self.path, lambda: self._entries(spark))
        version = entries[0].version if entries else _NO_TABLE
        if version == self._version:
            return
        since = told_since(entries, self._version)
        if since is None:
            self._last = self._queried(companion(spark, "manifest", _SETTINGS)) if entries else {}
        else:
            known, rows = since
            self._last = folded(self._last if known else {}, rows)
        self._version = version

    def _entries(self, spark: SparkSession) -> list[Entry]:
        latest = list(log_entries(spark, self.path, 1))
        if not latest or latest[0].version == self._version:
            return latest
        return list(log_entries(spark, self.path, _LOOKED_BACK if self._version is None else _SINCE))

    def _queried(self, spark: SparkSession) -> dict[str, Last]:
        """The last row of each origin."""
        if _TABLE.exists(spark, self.path):
            rows = location.read_table(spark, self.path)
            claim = F.when(F.col("claimed_by").isNotNull(), F.struct("number", "claimed_by"))
            last = rows.groupBy("origin").agg(F.max(F.struct("number", "slot_name")), F.max(claim)["claimed_by"])
            return {
                origin: Last(number, slot_name, claimed_by)
                for origin, (number, slot_name), claimed_by in last.collect()
            }
        return {}

    def last(self, spark: SparkSession, origin: str) -> Last | None:
        """The last row of an origin; None if there is none."""
        with self._lock:
            self._read(spark)
            return self._last.get(origin)

    def lock_of(self, origin: str) -> threading.Lock:
        """Held by who reads a subscription's document from the catalog, until it is appended: the last one counts."""
        with self._lock:
            return self._locks.setdefault(origin, threading.Lock())

    def _prune(self, spark: SparkSession, origin: str, number: int) -> None:
        spark = companion(spark, "manifest", _SETTINGS)
        name, condition = sql_name(self.path), f"origin = '{origin}' AND number < {number}"
        local = self._local_tables(spark)
        retry.retry_commit(lambda: spark.sql(f"DELETE FROM {name} WHERE {condition}").collect(), self.path)
        if number % _VACUUM_EVERY == 0:
            spark.sql(f"VACUUM {name}").collect()
        local.flush([self.path])

    def latest(self, spark: SparkSession, origin: str, slot_name: str) -> manifest.Manifest | None:
        """The last document of a subscription that has this slot; None if there is none."""
        if not _TABLE.exists(spark, self.path):
            return None
        rows = location.read_table(spark, self.path).filter(F.col("origin") == origin).filter("document IS NOT NULL")
        last = rows.orderBy(F.desc("number")).limit(1).collect()
        if not last or last[0].slot_name != slot_name:
            return None
        return manifest.Manifest.of(last[0].document)


def _row(
    origin: str, slot_name: str, number: int, document: str | None = None, claimed_by: str | None = None
) -> dict[str, Any]:
    values = origin, slot_name, number, document, claimed_by, dt.datetime.now(dt.UTC)
    return dict(zip(_SCHEMA.names, values, strict=True))


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
        TakenOver: The subscription goes on elsewhere.
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
            last = table.append(spark, origin, row.slot_name, due)
            _refuse_taken(table, last, name, due.generation)
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


def check_owned(spark: SparkSession, catalog: Catalog, subscription: Subscription) -> None:
    """Check that no other machine goes on with a subscription.

    Args:
        subscription: The subscription, or its tablesync worker's.

    Raises:
        TakenOver: It does.
        PySparkException, Py4JError: Spark cannot read the table.
    """
    name = owner_of(subscription.name)
    row = catalog.subscription(name)
    if row is None or row.system_identifier is None:
        return  # it has not begun
    table = table_in(subscription.warehouse)
    last = table.last(spark, origin_of(row.system_identifier, name))
    if last is not None:
        _refuse_taken(table, last, name, manifest.generation(catalog, name))


def _refuse_taken(table: ManifestTable, last: Last, subscription: str, generation: int) -> None:
    if last.generation > generation:
        by = f" ({last.claimed_by.partition('/')[0]})" if last.claimed_by else ""
        raise TakenOver(
            f'subscription "{subscription}" was taken over: by {table.path}, another state directory{by} goes on with '
            "it, and nothing is done here any more",
            hint=f"to have this machine wait for the other one's end, run: {remedies.standby()}; else remove the state "
            "directory here",
        )


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

    One that was dropped, or is begun afresh, is known to the catalog. Another slot, with another state directory, is
    another life: its documents count from here on.

    Raises:
        StateError: It is.
        TakenOver: The catalog knows it, and another machine goes on with it.
    """
    name = owner_of(subscription.name)
    table = table_in(subscription.warehouse)
    last = table.last(spark, origin_of(system_identifier, name))
    if last is None:
        return
    if manifest.is_written(catalog, name):
        _refuse_taken(table, last, name, manifest.generation(catalog, name))
        return
    if name != subscription.name:
        return
    if last.slot_name == subscription.slot_name:
        raise StateError(
            f'subscription "{name}" has been here: {table.path} has what belongs to it, and the state directory '
            f"{catalog.state_dir} does not: it was lost, or state_dir is another one",
            hint=f"stop the daemon, and make the state anew from the tables and the slot: {remedies.recover(name)}",
        )
    manifest.set_generation(catalog, name, last.generation)

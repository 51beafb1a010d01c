"""Up to which commit time and LSN tables are complete, also while nothing changes; and when they were found equal.

The daemon asks each server every half minute for a time, and an LSN up to which whatever was committed before it ends.
Once the origin has passed the LSN, the tables that follow the stream are complete until that time. Each minute a row
for each subscription goes to the table of commits, by one commit for all of a warehouse.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.window import Window

from pgbridge.bridge.catalog import verified
from pgbridge.bridge.lake import location
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.threads import Closing, Turns
from pgbridge.bridge.snapshots.commits_table import OF_BATCHES, json_of, path_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.receive.slot_status import Moment
    from pgbridge.protocol.lsn import Lsn

_EVERY_S: Final = 60.0
_AGAIN_S: Final = 300.0
_TURNS: Final = Turns("completeness", rest=4)


class Rows(Protocol):
    """The table of commits of a warehouse (`bridge.snapshots.commits_table`)."""

    def ensure(self) -> bool:
        """Create the table if it does not exist."""

    def append_now(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows, and flush them."""


class Completeness(Closing):
    """Writes it for the subscriptions of a daemon, in a thread, until it is closed.

    Args:
        subscriptions: Returns all that there are now.
        complete: Gives the latest moment of a subscription's server of which an LSN has everything.
        table: Gives the table of commits of a warehouse.
    """

    def __init__(
        self,
        catalog: Catalog,
        subscriptions: Callable[[], Iterable[Subscription]],
        complete: Callable[[str, Lsn], Moment | None],
        table: Callable[[str], Rows],
        log: FilteringBoundLogger,
    ) -> None:
        self._catalog, self._subscriptions, self._complete = catalog, subscriptions, complete
        self._table, self._log = table, log
        self._tables: dict[str, Rows] = {}  # those that are there, by warehouse
        self._told: dict[str, Moment] = {}  # what was written last, by subscription
        _TURNS.begin(self._again, _EVERY_S)

    def close(self) -> None:
        """Write no more; waits for the commit under way."""
        _TURNS.end(self._again)

    def _again(self) -> float:
        try:
            self.turn()
        except Exception as error:  # noqa: BLE001 - whatever it was, the subscriptions go on without
            self._tables.clear()
            self._log.debug("how complete tables are cannot be written now", error=str(error))
            return _AGAIN_S
        return _EVERY_S

    def turn(self) -> None:
        """Write what is new, by one commit for each warehouse.

        Raises:
            PySparkException, Py4JError, BridgeError: Nothing, or all, of a warehouse's rows are in its table.
        """
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        moments: dict[str, Moment] = {}
        equal: list[tuple[str, verified.Equal]] = []
        for subscription in self._subscriptions():
            name = subscription.name
            row, remote_lsn = self._catalog.subscription(name), self._catalog.remote_lsn(name)
            if row is None or row.incarnation is None or remote_lsn is None:
                continue
            moment = self._complete(name, remote_lsn)
            if moment is not None and (name not in self._told or moment > self._told[name]):
                moments[name] = moment
                rows[subscription.warehouse].append(_row(name, row.txn_app_id, "complete", moment.lsn, moment.at, ()))
            for each in verified.unrecorded(self._catalog, name):
                equal.append((name, each))
                at = dt.datetime.fromtimestamp(each.at_s, dt.UTC)
                rows[subscription.warehouse].append(_row(name, row.txn_app_id, "verified", each.lsn, at, each.tables))
        for warehouse, new in rows.items():
            if warehouse not in self._tables:
                table = self._table(warehouse)
                table.ensure()
                self._tables[warehouse] = table
            self._tables[warehouse].append_now(new)
        self._told |= moments
        for name, each in equal:
            verified.recorded(self._catalog, name, each)


def _row(
    subscription: str, origin: str, kind: str, lsn: Lsn, at: dt.datetime, tables: Iterable[tuple[str, str, str]]
) -> dict[str, Any]:
    return {
        "subscription": subscription,
        "origin": origin,
        "number": 0,
        "kind": kind,
        "start_lsn": str(lsn),
        "end_lsn": str(lsn),
        "position": int(lsn),
        "complete_until": at,
        "transactions": 0,
        "recorded_at": dt.datetime.now(dt.UTC),
        "tables": json_of(dict.fromkeys(tables)),
    }


def complete_until(spark: SparkSession, warehouse: str, *, subscription: str | None = None) -> DataFrame:
    """Up to where each table is complete, as the daemon said last: about a minute ago, if it runs.

    Args:
        spark: A session with Delta, as `pgbridge.session` starts it.
        warehouse: The subscriptions' warehouse.
        subscription: A subscription; None for all that write there.

    Returns:
        A row for each table: `subscription`, `namespace`, `name`, `path`; `follows`: whether it follows the stream;
        `lsn` and `complete_until`: it has every transaction that was committed before that time (by the server's clock,
        NULL if that is not known) and ends at or before that LSN, but for those that were skipped. Of a table that
        does not follow any more, these are those of its end. `verified_lsn` and `verified_until`: up to where `pgbridge
        verify` found it equal last.

    Raises:
        TargetError: No commits are recorded in the warehouse.
    """
    path = path_in(warehouse)
    if schema_of(spark, path) is None:
        raise TargetError(
            f"{path} does not exist: no commits are recorded in the warehouse",
            hint="the daemon makes it within some ten seconds after its first batch",
        )
    rows = location.read_table(spark, path)
    if subscription is not None:
        rows = rows.filter(F.col("subscription") == subscription)
    latest = F.max_by("origin", F.struct("recorded_at", "number")).over(Window.partitionBy("subscription"))
    rows = rows.withColumn("latest", latest).filter("origin = latest")
    each = rows.select("*", F.explode("tables").alias("t")).drop("tables").withColumn("path", F.col("t.path"))
    order = F.struct("position", "number")
    last = F.max_by(F.struct("kind", "position", "t"), order).alias("last")
    tables = each.filter(F.col("kind").isin(*OF_BATCHES)).groupBy("subscription", "path").agg(last)
    said = rows.filter("kind IN ('batch', 'complete')").select(
        F.col("subscription").alias("whose"), "position", "end_lsn", "complete_until"
    )
    # of a table that has left, only what was said until then
    of_it = F.expr("whose = subscription AND (last.kind <> 'left' OR position <= last.position)")
    until = (F.max_by("end_lsn", "position").alias("lsn"), F.max("complete_until").alias("complete_until"))
    complete = tables.join(said, of_it, "left").groupBy("subscription", "path", "last").agg(*until)
    newest = F.max_by(F.struct("end_lsn", "complete_until"), "position").alias("equal")
    verified = each.filter("kind = 'verified'").groupBy("subscription", "path").agg(newest)
    return (
        complete.join(verified, ["subscription", "path"], "left")
        .selectExpr(
            *("subscription", "last.t.namespace", "last.t.name", "path", "last.kind <> 'left' AS follows"),
            *("lsn", "complete_until", "equal.end_lsn AS verified_lsn", "equal.complete_until AS verified_until"),
        )
        .orderBy("subscription", "namespace", "name")
    )

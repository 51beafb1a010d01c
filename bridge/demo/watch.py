"""Watches a running demo: the subscriptions' positions, and the row counts of both sides.

The server counts the published rows, with the publication's row filter. The rows in Delta are added up from the Delta
log, without Spark.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from bridge.catalog.catalog import Catalog, catalog_path
from bridge.config import config
from bridge.demo.folder import SUBSCRIPTIONS
from bridge.demo.published_tables import published_tables
from bridge.monitor.document import collect
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from bridge.catalog.catalog_rows import BatchIntent
    from bridge.demo.published_tables import PublishedTable
    from bridge.monitor.document import SubscriptionStatus

_COUNT_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class TableView:
    """A table at one moment.

    Attributes:
        name: `schema.table`.
        state: i, d, f, s or r (`pg_subscription_rel.srsubstate`); empty before the daemon knows it.
        published_rows: Rows that the publication publishes.
        delta_rows: Rows of the Delta table; None before it exists.
        version: The Delta table's version; None before it exists.
    """

    name: str
    state: str
    published_rows: int
    delta_rows: int | None
    version: int | None


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """A subscription at one moment.

    Attributes:
        state: As `pgbridge status` shows it.
        remote_lsn: Every transaction that ends at or before it is durable in Delta; None before the slot exists.
        lag_bytes: WAL between it and the server's flush position; None if one of them is unknown.
        error: The last error's message; None without one.
        tables: The published tables, sorted by name.
    """

    name: str
    state: str
    remote_lsn: Lsn | None
    lag_bytes: int | None
    error: str | None
    tables: tuple[TableView, ...]

    @property
    def copied(self) -> bool:
        """Whether every table follows the stream."""
        return bool(self.tables) and all(table.state in {"s", "r"} for table in self.tables)

    def reached(self, lsn: Lsn) -> bool:
        """All up to `lsn` is in the Delta tables."""
        return self.remote_lsn is not None and self.remote_lsn >= lsn


@dataclass
class DeltaLog:
    """Counts a Delta table's rows by its log. Each reading goes on where the last one ended.

    Attributes:
        folder: The table's folder.
        version: The last version read, -1 before the first.
    """

    folder: Path
    version: int = -1
    _files: dict[str, int] = field(default_factory=dict)

    def rows(self) -> int | None:
        """Return the row count of the newest version; None before the table exists."""
        while (path := self.folder / "_delta_log" / f"{self.version + 1:020}.json").exists():
            self._commit(path.read_text(encoding="utf-8"))
            self.version += 1
        return sum(self._files.values()) if self.version >= 0 else None

    def _commit(self, text: str) -> None:
        actions = [json.loads(line) for line in text.splitlines()]
        for action in actions:
            if "remove" in action:
                self._files.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                file = action["add"]
                deleted = (file.get("deletionVector") or {}).get("cardinality", 0)
                self._files[file["path"]] = json.loads(file["stats"])["numRecords"] - deleted


class Watch:
    """Reads the state of a running demo, from the catalog, the server and the Delta logs.

    Args:
        config_file: The demo's configuration.
        conninfo: The shop's database.
    """

    def __init__(self, config_file: Path, conninfo: str) -> None:
        self._config = config.load(config_file)
        self._catalog = Catalog(catalog_path(self._config.state_dir))
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._published = {name: published_tables(self._connection, pub) for name, pub in SUBSCRIPTIONS.items()}
        self._logs: dict[Path, DeltaLog] = {}
        self._counted_s = -math.inf
        self._counts: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        """Close the connection and the catalog."""
        self._connection.close()
        self._catalog.close()

    def flush_lsn(self) -> Lsn:
        """Return the server's WAL flush position."""
        row = self._connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        return Lsn.parse(row[0] if row else "0/0")

    def batch(self, subscription: str) -> BatchIntent | None:
        """Return the batch that is being applied."""
        return self._catalog.batch(subscription)

    def look(self, *, running: bool) -> list[SubscriptionView]:
        """Return the current state of all subscriptions.

        Args:
            running: Whether the daemon runs. Asking its lock would disturb it.
        """
        self._count()
        document = collect(self._config, self._catalog, running=running)
        return [self._view(entry) for entry in document["subscriptions"]]

    def _count(self) -> None:
        """Count the published rows, unless that was done just now: it is work for the server that is watched."""
        if time.monotonic() - self._counted_s < _COUNT_EVERY_S:
            return
        self._counts = {
            (name, table.qualified_name): table.count(self._connection)
            for name, tables in self._published.items()
            for table in tables
        }
        self._counted_s = time.monotonic()

    def _view(self, entry: SubscriptionStatus) -> SubscriptionView:
        states = {table["name"]: table["state"] for table in entry["tables"]}
        remote_lsn = entry["remote_lsn"]
        tables = []
        for published in self._published[entry["name"]]:
            state = states.get(published.qualified_name, "")
            log = self._log(entry["name"], published)
            delta_rows = log.rows()
            version = log.version if log.version >= 0 else None
            rows = self._counts[entry["name"], published.qualified_name]
            tables.append(TableView(published.qualified_name, state, rows, delta_rows, version))
        return SubscriptionView(
            entry["name"],
            entry["state"],
            Lsn.parse(remote_lsn) if remote_lsn else None,
            entry["lag_bytes"],
            entry["last_error"]["message"] if entry["last_error"] else None,
            tuple(tables),
        )

    def _log(self, subscription: str, table: PublishedTable) -> DeltaLog:
        folder = Path(self._config.subscription[subscription].warehouse) / table.namespace / table.name
        return self._logs.setdefault(folder, DeltaLog(folder))

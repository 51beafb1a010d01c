"""A daemon in this process, whose tables may be in memory, and a person on call who has its commands and the server."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.config import config
from pgbridge.bridge.runtime.errors import BridgeError
from pgbridge.bridge.runtime.supervisor import StopSignals
from pgbridge.bridge.service.daemon import Daemon
from tests.bridge.made_daemon import wait_until
from tests.oracle.delta import delta_table, differences
from tests.oracle.memory_tables import MemoryTables
from tests.oracle.native import text_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.fix_cli import Outcome
    from tests.fix_postgres import Publisher
    from tests.oracle.native import Row

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, note text, due date);
CREATE TABLE events (what text); ALTER TABLE events REPLICA IDENTITY FULL;
INSERT INTO orders SELECT n, 'copied', '2026-01-01' FROM generate_series(1, 20) n;
INSERT INTO events SELECT 'copied' FROM generate_series(1, 3);
CREATE PUBLICATION pub FOR TABLE orders, events;
"""


class OnCall:
    """The subscription `shop` of the tables orders and events, its daemon, and what a person can do about them.

    Args:
        spark: The shared session, or tables in memory in its place.
        publisher: The server's database.
        folder: Where pgbridge.toml is.
        command: Runs pgbridge there.
    """

    def __init__(
        self, spark: SparkSession | MemoryTables, publisher: Publisher, folder: Path, command: Callable[..., Outcome]
    ) -> None:
        self.spark: Any = spark
        self.publisher = publisher
        self.folder = folder
        self.slot_name = f"{publisher.name}_shop"
        self._command = command
        self._thread: threading.Thread | None = None
        self.configure()

    def configure(self, **options: Any) -> None:
        """Write pgbridge.toml."""
        options = {
            "connection": self.publisher.conninfo,
            "publications": ["pub"],
            "warehouse": "./lake",
            "slot_name": self.slot_name,
            "batch__max_age_s": 0.0,
            "workers__retry_max_s": 1.0,
            **options,
        }
        lines = ['state_dir = "./state"', "[subscription.shop]"]
        lines += [f"{key.replace('__', '.')} = {json.dumps(value)}" for key, value in options.items()]
        (self.folder / "pgbridge.toml").write_text("\n".join(lines) + "\n")

    def start(self, *, standby: bool = False) -> None:
        """Start the daemon."""
        file = self.folder / "pgbridge.toml"
        self._signals = StopSignals()
        self._daemon = Daemon(config.load(file), self._signals, standby=standby, read=lambda: config.load(file))
        self._thread = threading.Thread(target=self._run, name="daemon")
        self._thread.start()

    def _run(self) -> None:
        self.ended_by = None
        try:
            self._daemon.run()
        except BridgeError as error:  # what the command would print
            self.ended_by = error

    def ends(self) -> BridgeError:
        """Wait until the daemon ends by itself; return its error."""
        assert self._thread is not None
        self._thread.join(60)
        assert self.ended_by is not None
        return self.ended_by

    ended_by: BridgeError | None = None

    def stop(self) -> None:
        """Stop the daemon as SIGTERM does."""
        if self._thread is not None:
            if self._signals.name is None:
                self._signals._on_signal(signal.SIGTERM, None)
            self._thread.join(60)
            assert not self._thread.is_alive()

    def run(self, *arguments: str) -> str:
        """Run pgbridge; return what it prints. It must succeed."""
        done = self._command(*arguments)
        assert done.code == 0, done
        return done.out

    def refused(self, *arguments: str) -> str:
        """Run pgbridge; return what it prints as its error, in one line. It must fail."""
        done = self._command(*arguments)
        assert done.code == 1, done
        return " ".join(done.err.split())

    def check(self) -> str:
        """Run `pgbridge check`, which may have something to warn of."""
        return self._command("check").out

    def status(self) -> dict[str, Any]:
        """Return what `pgbridge status` has of the subscription."""
        entry: dict[str, Any] = json.loads(self.run("status", "--json"))["subscriptions"][0]
        return entry

    def error(self) -> str:
        """Wait for an error, and return `pgbridge status` as a person sees it, but in one line."""
        wait_until(lambda: self.status()["last_error"] is not None)
        return " ".join(self.run("status").split())

    def execute(self, statements: str) -> None:
        """Run SQL on the server."""
        self.publisher.execute(statements)

    def disable(self) -> None:
        """Disable the subscription, and wait until its slot is free."""
        self.run("disable", "shop")
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        wait_until(lambda: self.publisher.query(active, (self.slot_name,)) == [(False,)])

    def wait_for_state(self, state: str) -> None:
        """Wait until the subscription is in a state."""
        wait_until(lambda: self.status()["state"] == state)

    def path(self, table: str) -> Path:
        """Where a table of public is."""
        return self.folder / "lake" / "public" / table

    def has(self, table: str) -> bool:
        """Whether there is a Delta table."""
        memory = isinstance(self.spark, MemoryTables)
        return str(self.path(table)) in self.spark.lake.tables if memory else self.path(table).exists()

    def ids(self) -> set[int]:
        """Return the keys that the Delta table of orders has."""
        return set(delta_table(self.spark, str(self.path("orders")))["id"].to_pylist())

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[Row]:
        """Return the server's rows of a table."""
        return text_rows(self.publisher.conninfo, table, columns)

    def differences(self, *tables: str) -> list[str]:
        """Return what differs between server and Delta, by table."""
        gone = [f"{table}: there is no Delta table" for table in tables if not self.has(table)]
        return gone or [
            f"{table}: {line}"
            for table in tables
            for line in differences(self.spark, str(self.path(table)), self, table)
        ]

    def equal(self, *tables: str) -> None:
        """Make changes in the tables, and wait until they are equal to the server's; fail if they do not become so."""
        self.execute("INSERT INTO events VALUES ('later'); UPDATE orders SET note = 'later' WHERE id = 2")
        end_s = time.monotonic() + 60
        while found := self.differences(*(tables or ("orders", "events"))):
            assert time.monotonic() < end_s, (found, self.run("status"))
            time.sleep(0.2)

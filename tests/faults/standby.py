"""A physical standby of a private server, which is promoted when its primary is gone; and the pair of both."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from bridge.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from bridge.demo.server import Setting

SETTINGS: dict[str, Setting] = {
    "hot_standby_feedback": True,
    "wal_retrieve_retry_interval": "200ms",
    "max_slot_wal_keep_size": -1,
}
_PATIENCE_S = 60.0


class Standby(EmbeddedPostgres):
    """A server that follows another one.

    Args:
        primary: It runs, and gets a physical slot for this one.
        settings: Settings beside those of `SETTINGS`.
    """

    def __init__(self, primary: EmbeddedPostgres, settings: Mapping[str, Setting]) -> None:
        super().__init__(settings={**SETTINGS, **settings, "sync_replication_slots": True}, fsync=False)
        self._primary = primary
        self.password = primary.password
        self.slot = f"standby_{self._primary.port}"

    def _fill(self) -> None:
        with psycopg.connect(self._primary.conninfo(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                (self.slot,),
            )
        self.programs.run(
            "pg_basebackup", "--pgdata", self.datadir, "--dbname", self._primary.conninfo(), "--write-recovery-conf",
            "--create-slot", "--slot", self.slot, "--checkpoint", "fast", "--no-sync", "--wal-method", "stream",
        )  # fmt: skip

    def promote(self) -> None:
        """Promote it, and wait until it can be written to."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")


class Pair:
    """A primary and its standby; after a promotion the other way round, with a new standby."""

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self._settings = dict(settings)
        self.primary = EmbeddedPostgres(settings={**SETTINGS, **settings}, fsync=False)
        self.standby: Standby | None = None

    def __enter__(self) -> Self:
        self.primary.start()
        self.make_standby()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.standby is not None:
            self.standby.close()
        self.primary.close()

    def make_standby(self) -> None:
        """Make a standby, from whose position on the primary's logical slots may move."""
        self.standby = Standby(self.primary, self._settings)
        self.standby.start()
        with psycopg.connect(self.primary.conninfo(), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{self.standby.slot}'".encode())
            connection.execute("SELECT pg_reload_conf()")

    def is_synchronized(self, slot_name: str) -> bool:
        """Whether a logical slot would survive a promotion now."""
        assert self.standby is not None
        with psycopg.connect(self.standby.conninfo(), autocommit=True) as connection:
            query = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s"
            row = connection.execute(query, (slot_name,)).fetchone()
        return row is not None and bool(row[0])

    def wait_synchronized(self, slot_name: str) -> bool:
        """Wait for that; False if it takes too long."""
        end_s = time.monotonic() + _PATIENCE_S
        while not self.is_synchronized(slot_name):
            if time.monotonic() > end_s:
                return False
            time.sleep(0.2)
        return True

    def fail_over(self) -> None:
        """The primary dies at once, the standby is promoted; the pair is alone until `make_standby`."""
        assert self.standby is not None
        gone, self.primary = self.primary, self.standby
        self.standby = None
        gone.stop("immediate")
        self.primary.promote()
        with psycopg.connect(self.primary.conninfo(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET synchronized_standby_slots")
            connection.execute("SELECT pg_reload_conf()")
        gone.close()

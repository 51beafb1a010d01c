"""Servers that are promoted: a standby that follows its primary, the pair of both, and a server with cold copies.

`Pair` is for a stream that goes over a promotion: its standby has what it needs. `ForkedServer` is for a primary that
lacks what the one before it had: a cold copy of its data directory takes its place, in a fraction of a second.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import psycopg

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.runtime.threads import Closing
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from pgbridge.bridge.demo.server import Setting

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

    def let_lag(self) -> None:
        """Have the standby receive nothing any more, and the primary's logical slots not wait for it."""
        assert self.standby is not None
        for server, setting in (
            (self.standby, "SET primary_conninfo = ''"),
            (self.primary, "RESET synchronized_standby_slots"),
        ):
            with psycopg.connect(server.conninfo(), autocommit=True) as connection:
                connection.execute(f"ALTER SYSTEM {setting}".encode())
                connection.execute("SELECT pg_reload_conf()")

    def fail_over(self) -> None:
        """The primary dies at once, the standby is promoted; the pair is alone until `make_standby`."""
        assert self.standby is not None
        gone, self.primary = self.primary, self.standby
        self.standby = None
        gone.stop("immediate")
        self.primary.promote()
        with psycopg.connect(self.primary.conninfo(), autocommit=True) as connection:
            for setting in ("synchronized_standby_slots", "primary_conninfo"):
                connection.execute(f"ALTER SYSTEM RESET {setting}".encode())
            connection.execute("SELECT pg_reload_conf()")
        gone.close()


class ForkedServer(Closing):
    """A server that can be replaced by an earlier copy of itself, under the same address.

    A copy that is promoted begins a new timeline where it was made. It has the same system identifier, and its LSNs
    go on from there, with other transactions than those that the server before it had. A copy holds the logical slots
    as they were: each with the confirmed_flush_lsn that its reader had sent before `save`. Physical and temporary slots
    are the same, or not there.

    Args:
        name: Of the subscription that streams from it, and so of its slot.
        settings: Settings beside autovacuum, which is off: WAL grows by what a test writes.
        bindir: The server's programs; None for those of the tests.
    """

    def __init__(
        self, name: str = "forked", settings: Mapping[str, Setting] | None = None, *, bindir: Path | None = None
    ) -> None:
        self.name = name
        self.postgres = EmbeddedPostgres(bindir, settings={"autovacuum": False, **(settings or {})}, fsync=False)
        self.postgres.start()

    @property
    def conninfo(self) -> str:
        """A libpq connection string; it leads to whichever copy runs."""
        return self.postgres.conninfo()

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection in autocommit mode; the caller closes it."""
        return psycopg.connect(self.conninfo, autocommit=True)

    def execute(self, statements: str) -> None:
        """Run any number of statements, in one transaction if they do not say otherwise."""
        with self.connect() as connection:
            connection.execute(statements.encode())

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        with self.connect() as connection:
            return connection.execute(statement.encode()).fetchall()

    # --- copies -------------------------------------------------------------------------------------------------------

    def save(self, copy: str) -> None:
        """Copy the data directory, cold: the server is stopped in order, and started again."""
        self.postgres.stop("fast")
        subprocess.run(["cp", "-a", str(self.postgres.datadir), str(self.postgres.folder / copy)], check=True)
        self.postgres.start()

    def switch_to(self, copy: str, *, promote: bool = True) -> None:
        """Have a copy take the place of the server, which is gone for good. The copy stays, and can be used again.

        Args:
            copy: Its name.
            promote: Whether it is promoted, which it can be later. Until then it is a standby without a primary.
        """
        self.postgres.stop("immediate")
        shutil.rmtree(self.postgres.datadir)
        subprocess.run(["cp", "-a", str(self.postgres.folder / copy), str(self.postgres.datadir)], check=True)
        (self.postgres.datadir / "standby.signal").touch()
        self.postgres.start()
        if promote:
            self.promote()

    def promote(self) -> None:
        """Promote a copy that runs as a standby, and wait until it can be written to."""
        self.query("SELECT pg_promote(true, 60)")

    def replace(self) -> None:
        """Have another server take its place."""
        self.postgres.close()
        self.postgres = EmbeddedPostgres(settings=self.postgres.settings, fsync=False)
        self.postgres.start()

    def upgrade(self, bindir: Path | None = None) -> None:
        """Have pg_upgrade make another server of it, as for a major version, which takes its place.

        Args:
            bindir: The new version's programs; None for those of the tests.
        """
        old, new = self.postgres, EmbeddedPostgres(bindir, settings=self.postgres.settings, fsync=False)
        old.stop()
        new.start()
        new.stop()
        options: list[str | Path] = ["--username", new.user, "--socketdir", new.folder, "--no-sync"]
        for which, server in (("old", old), ("new", new)):
            options += [f"--{which}-datadir", server.datadir, f"--{which}-bindir", server.programs.bindir]
            options += [f"--{which}-port", str(server.port)]
        # it leaves a script in the folder where it is run
        command = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', new.folder, new.programs.bindir / "pg_upgrade", *options]
        done = new.programs.account.run(command)
        assert done.returncode == 0, done.stdout + done.stderr
        old.close()
        self.postgres = new
        new.start()

    # --- WAL and slots ------------------------------------------------------------------------------------------------

    def flush_lsn(self) -> Lsn:
        """The end of its WAL."""
        ((lsn,),) = self.query("SELECT pg_current_wal_flush_lsn()::text")
        return Lsn.parse(lsn)

    def grow(self, segments: int = 3) -> None:
        """Write WAL with nothing published in it, so that LSNs from here on are greater by some 16 MB each."""
        self.execute("CREATE TABLE IF NOT EXISTS junk (n int)")
        for _ in range(segments):
            self.execute("INSERT INTO junk VALUES (1); SELECT pg_switch_wal()")

    def confirmed(self, slot_name: str) -> Lsn | None:
        """A logical slot's confirmed_flush_lsn; None if it does not exist."""
        query = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot_name}'"
        rows = self.query(query)
        return Lsn.parse(rows[0][0]) if rows else None

    def advance_slot(self, slot_name: str) -> None:
        """Have a slot that nobody reads any more confirm everything, as an operator or another reader does."""
        self._wait_until_free(slot_name)
        self.query(f"SELECT pg_replication_slot_advance('{slot_name}', pg_current_wal_flush_lsn())")

    def drop_slot(self, slot_name: str) -> None:
        """Drop a slot that nobody reads any more."""
        self._wait_until_free(slot_name)
        self.query(f"SELECT pg_drop_replication_slot('{slot_name}')")

    def _wait_until_free(self, slot_name: str) -> None:
        active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot_name}' AND active"
        while self.query(active):  # the walsender of a life that has ended notices it when it sends
            self.query("SELECT pg_sleep(0.1)")

    def close(self) -> None:
        """Stop the server, and remove it and its copies."""
        self.postgres.close()

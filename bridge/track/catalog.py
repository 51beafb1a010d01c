"""The subscriber's catalog: what pg_subscription, pg_subscription_rel and the origin's status are to PostgreSQL.

One SQLite file, `state_dir/catalog.sqlite`, in WAL mode with synchronous = FULL: what a call has returned from
survives a power cut. The daemon and the command line open it at the same time.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.errors import StateError
from protocol.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SCHEMA_VERSION = 2

_SCHEMA = (
    """
    CREATE TABLE subscription (
      name TEXT PRIMARY KEY,
      enabled INTEGER NOT NULL,
      configured_enabled INTEGER NOT NULL,   -- the file's value when it was last seen: a change of it takes effect
      incarnation TEXT,                      -- made with the origin; part of Delta's txnAppId
      epoch INTEGER NOT NULL DEFAULT 0,      -- moves on when a batch is undone
      slot_name TEXT,
      slot_state TEXT,                       -- creating | ready
      system_identifier TEXT,
      skip_lsn INTEGER,
      state TEXT NOT NULL DEFAULT 'stopped',
      received_lsn INTEGER NOT NULL DEFAULT 0,
      apply_error_count INTEGER NOT NULL DEFAULT 0,
      sync_error_count INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    """
    CREATE TABLE subscription_rel (
      subscription TEXT NOT NULL REFERENCES subscription(name),
      namespace TEXT NOT NULL,
      name TEXT NOT NULL,
      state TEXT NOT NULL CHECK (state IN ('i','d','f','s','r')),
      lsn INTEGER NOT NULL DEFAULT 0,        -- changes of transactions that commit before it are in the copy
      path TEXT NOT NULL,
      PRIMARY KEY (subscription, namespace, name)
    ) STRICT
    """,
    """
    CREATE TABLE origin (
      subscription TEXT PRIMARY KEY REFERENCES subscription(name),
      remote_lsn INTEGER NOT NULL            -- every transaction that ends at or before it is durable in Delta
    ) STRICT
    """,
    """
    CREATE TABLE batch (                     -- the intent of the batch being applied: one a subscription
      subscription TEXT PRIMARY KEY REFERENCES subscription(name),
      start_lsn INTEGER NOT NULL,
      end_lsn INTEGER NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE error (
      subscription TEXT PRIMARY KEY REFERENCES subscription(name),
      message TEXT NOT NULL,
      finish_lsn INTEGER,
      relation TEXT,
      time REAL NOT NULL
    ) STRICT
    """,
)

_SINCE_2 = (
    """
    CREATE TABLE prepared (                  -- prepared transactions whose end has not come, pg_prepared_xacts' part
      subscription TEXT NOT NULL REFERENCES subscription(name),
      file TEXT NOT NULL,                    -- its changes: a file in state_dir/spool/<subscription>
      gid TEXT NOT NULL,
      xid INTEGER NOT NULL,
      end_lsn INTEGER NOT NULL,
      PRIMARY KEY (subscription, file)
    ) STRICT
    """,
)

_BUSY_TIMEOUT_S = 30  # the command line and the daemon hold the write lock for milliseconds


def catalog_path(state_dir: Path) -> Path:
    """Where a state directory's catalog lies."""
    return state_dir / "catalog.sqlite"


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """`pg_subscription`'s counterpart."""

    name: str
    enabled: bool
    incarnation: str | None
    epoch: int
    slot_name: str | None
    slot_state: str | None
    system_identifier: str | None
    skip_lsn: Lsn | None
    state: str
    received_lsn: Lsn
    apply_error_count: int
    sync_error_count: int

    @property
    def txn_app_id(self) -> str:
        """Delta's application id for what the subscription commits: it is never used again after a new start."""
        return f"pgbridge/{self.system_identifier}/{self.name}/{self.incarnation}"


@dataclass(frozen=True, slots=True)
class RelRow:
    """`pg_subscription_rel`'s counterpart: a table's state and the LSN that goes with it."""

    namespace: str
    name: str
    state: str
    lsn: Lsn
    path: str

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class BatchIntent:
    """What a batch is about to apply: the transactions that end in (start_lsn, end_lsn].

    Each commit of the batch names the same range in Delta's history, which is where an undo finds the version
    before it; reading every table's version ahead of each batch would cost more than a small batch itself.
    """

    start_lsn: Lsn
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A prepared transaction whose changes lie in `state_dir/spool/<subscription>/<file>`."""

    file: str
    gid: str
    xid: int
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The last error; kept until a later transaction was applied."""

    message: str
    finish_lsn: Lsn | None
    relation: str | None
    time_s: float


class Catalog:
    """The open catalog. Methods may be called from any thread; each is one transaction.

    Attributes:
        state_dir: The folder it lies in.

    Raises:
        StateError: On opening, when the file cannot be used or was written by a later version.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self.state_dir = path.parent
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, error) from error
        try:
            _use_wal(self._db)
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            self._migrate()
        except sqlite3.Error as error:
            self._db.close()
            raise _unusable(path, error) from error
        except StateError:
            self._db.close()
            raise

    def _migrate(self) -> None:
        with self._transaction() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise StateError(f"the state catalog was written by a later version of pgbridge (schema {version})")
            for since, statements in ((1, _SCHEMA), (2, _SINCE_2)):
                for statement in statements if version < since else ():
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()  # nothing to do where SQLite itself has rolled back, as on a full disk
                raise

    def _rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, parameters).fetchall()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    # --- subscription -------------------------------------------------------------------------------------

    def register(self, name: str, *, enabled: bool) -> None:
        """Make the subscription's row if it is new; a changed `enabled` of the file takes effect."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO subscription (name, enabled, configured_enabled) VALUES (?1, ?2, ?2) "
                "ON CONFLICT (name) DO UPDATE SET enabled = ?2, configured_enabled = ?2 "
                "WHERE configured_enabled <> ?2",
                (name, int(enabled)),
            )

    def subscription(self, name: str) -> SubscriptionRow | None:
        """The subscription's row; None before the first `register`."""
        rows = self._rows(
            "SELECT name, enabled, incarnation, epoch, slot_name, slot_state, system_identifier, skip_lsn, state, "
            "received_lsn, apply_error_count, sync_error_count FROM subscription WHERE name = ?",
            name,
        )
        if not rows:
            return None
        _, enabled, incarnation, epoch, slot_name, slot_state, system, skip_lsn, state, received_lsn, *counts = rows[0]
        skip_lsn = None if skip_lsn is None else Lsn(skip_lsn)
        return SubscriptionRow(
            name,
            bool(enabled),
            incarnation,
            epoch,
            slot_name,
            slot_state,
            system,
            skip_lsn,
            state,
            Lsn(received_lsn),
            *counts,
        )

    def set_enabled(self, name: str, *, enabled: bool) -> None:
        """ALTER SUBSCRIPTION … ENABLE / DISABLE."""
        with self._transaction() as db:
            db.execute("UPDATE subscription SET enabled = ? WHERE name = ?", (int(enabled), name))

    def set_slot(self, name: str, *, slot_name: str, slot_state: str, system_identifier: str) -> None:
        """Record a slot before it is made (`creating`) or once it is known to be ours (`ready`)."""
        with self._transaction() as db:
            db.execute(
                "UPDATE subscription SET slot_name = ?, slot_state = ?, system_identifier = ? WHERE name = ?",
                (slot_name, slot_state, system_identifier, name),
            )

    def set_state(self, name: str, state: str, *, received_lsn: Lsn | None = None) -> None:
        """What `status` shows of a running daemon; not needed for recovery."""
        with self._transaction() as db:
            db.execute(
                "UPDATE subscription SET state = ?, received_lsn = max(received_lsn, ?) WHERE name = ?",
                (state, received_lsn or 0, name),
            )

    # --- origin and batches ----------------------------------------------------------------------------------

    def create_origin(self, name: str, remote_lsn: Lsn, incarnation: str, tables: list[RelRow]) -> None:
        """The slot is ready: where to start from, and the tables as they stand, in one transaction."""
        with self._transaction() as db:
            db.execute("INSERT INTO origin (subscription, remote_lsn) VALUES (?, ?)", (name, remote_lsn))
            db.execute(
                "UPDATE subscription SET incarnation = ?, slot_state = 'ready' WHERE name = ?",
                (incarnation, name),
            )
            self._put_rels(db, name, tables)

    def remote_lsn(self, name: str) -> Lsn | None:
        """The origin's LSN; None before the slot is ready."""
        rows = self._rows("SELECT remote_lsn FROM origin WHERE subscription = ?", name)
        return Lsn(rows[0][0]) if rows else None

    def advance_origin(self, name: str, remote_lsn: Lsn) -> None:
        """Move past WAL that holds nothing for us. Never moves back, nor while a batch is under way."""
        with self._transaction() as db:
            db.execute(
                "UPDATE origin SET remote_lsn = ?2 WHERE subscription = ?1 AND remote_lsn < ?2 "
                "AND NOT EXISTS (SELECT 1 FROM batch WHERE subscription = ?1)",
                (name, remote_lsn),
            )
            self._ready_rels(db, name)

    def begin_batch(self, name: str, intent: BatchIntent) -> None:
        """Record the batch's intent, before its first commit to Delta."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO batch (subscription, start_lsn, end_lsn) VALUES (?, ?, ?)",
                (name, intent.start_lsn, intent.end_lsn),
            )

    def batch(self, name: str) -> BatchIntent | None:
        """The intent of a batch that was begun and not finished."""
        rows = self._rows("SELECT start_lsn, end_lsn FROM batch WHERE subscription = ?", name)
        return BatchIntent(Lsn(rows[0][0]), Lsn(rows[0][1])) if rows else None

    def finish_batch(
        self, name: str, end_lsn: Lsn, prepared: Iterable[PreparedRow] = (), ended: Iterable[str] = ()
    ) -> None:
        """All of the batch is durable: move the origin, drop the intent, forget the last error. One transaction.

        Args:
            name: The subscription.
            end_lsn: The batch's end.
            prepared: Transactions that were prepared within it.
            ended: Files of prepared transactions that were committed or rolled back within it.
        """
        with self._transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO prepared (subscription, file, gid, xid, end_lsn) VALUES (?, ?, ?, ?, ?)",
                [(name, row.file, row.gid, row.xid, row.end_lsn) for row in prepared],
            )
            db.executemany("DELETE FROM prepared WHERE subscription = ? AND file = ?", [(name, file) for file in ended])
            db.execute("UPDATE origin SET remote_lsn = max(remote_lsn, ?) WHERE subscription = ?", (end_lsn, name))
            db.execute("DELETE FROM batch WHERE subscription = ?", (name,))
            db.execute("DELETE FROM error WHERE subscription = ?", (name,))
            self._ready_rels(db, name)

    def prepared(self, name: str) -> list[PreparedRow]:
        """Prepared transactions that have not ended, by the LSN of their end."""
        rows = self._rows("SELECT file, gid, xid, end_lsn FROM prepared WHERE subscription = ? ORDER BY end_lsn", name)
        return [PreparedRow(file, gid, xid, Lsn(end_lsn)) for file, gid, xid, end_lsn in rows]

    # --- tables ------------------------------------------------------------------------------------------------

    def rels(self, name: str) -> list[RelRow]:
        """All tables of the subscription, by name."""
        rows = self._rows(
            "SELECT namespace, name, state, lsn, path FROM subscription_rel WHERE subscription = ? "
            "ORDER BY namespace, name",
            name,
        )
        return [RelRow(row[0], row[1], row[2], Lsn(row[3]), row[4]) for row in rows]

    def put_rel(self, subscription: str, rel: RelRow) -> None:
        """Write one table's row."""
        with self._transaction() as db:
            self._put_rels(db, subscription, [rel])

    def owner_of(self, path: str, *, but: str) -> str | None:
        """Another subscription that writes to the Delta table at `path`."""
        rows = self._rows("SELECT subscription FROM subscription_rel WHERE path = ? AND subscription <> ?", path, but)
        return str(rows[0][0]) if rows else None

    @staticmethod
    def _put_rels(db: sqlite3.Connection, subscription: str, rels: list[RelRow]) -> None:
        db.executemany(
            "INSERT OR REPLACE INTO subscription_rel (subscription, namespace, name, state, lsn, path) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(subscription, rel.namespace, rel.name, rel.state, rel.lsn, rel.path) for rel in rels],
        )

    @staticmethod
    def _ready_rels(db: sqlite3.Connection, name: str) -> None:
        """A synchronised table is ready once the origin has passed its copy's snapshot."""
        db.execute(
            "UPDATE subscription_rel SET state = 'r' WHERE subscription = ?1 AND state = 's' "
            "AND lsn <= (SELECT remote_lsn FROM origin WHERE subscription = ?1)",
            (name,),
        )

    # --- errors ------------------------------------------------------------------------------------------------

    def record_error(
        self,
        name: str,
        message: str,
        *,
        counter: str | None,
        finish_lsn: Lsn | None = None,
        relation: str | None = None,
    ) -> None:
        """Keep an error as the last one, and count it.

        `counter` is `apply`, `sync`, or None: a server that cannot be reached counts as neither, as in
        pg_stat_subscription_stats.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO error (subscription, message, finish_lsn, relation, time) "
                "VALUES (?, ?, ?, ?, ?)",
                (name, message, finish_lsn, relation, time.time()),
            )
            if counter is not None:
                column = f"{counter}_error_count"
                db.execute(f"UPDATE subscription SET {column} = {column} + 1 WHERE name = ?", (name,))

    def last_error(self, name: str) -> ErrorRow | None:
        """The error that stands."""
        rows = self._rows("SELECT message, finish_lsn, relation, time FROM error WHERE subscription = ?", name)
        if not rows:
            return None
        message, finish_lsn, relation, time_s = rows[0]
        return ErrorRow(message, None if finish_lsn is None else Lsn(finish_lsn), relation, time_s)


def _use_wal(db: sqlite3.Connection) -> None:
    """Set the journal mode; the busy timeout does not cover two processes that make the file at the same time."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _unusable(path: Path, error: Exception) -> StateError:
    return StateError(
        f"state catalog {path} cannot be opened: {error}",
        hint="state_dir must be a folder on a local disk that this user may write",
    )

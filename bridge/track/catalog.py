"""The subscriber's catalog: what pg_subscription, pg_subscription_rel and the origin's status are to PostgreSQL.

One SQLite file, `state_dir/catalog.sqlite`, in WAL mode with synchronous = FULL: what a call has returned from
survives a power cut. The daemon and the command line open it at the same time.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import astuple
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bridge.errors import StateError
from bridge.track.database import Database
from bridge.track.rows import BatchIntent, ColumnRow, CopyRow, ErrorRow, PreparedRow, RelRow, SubscriptionRow
from bridge.track.schema import migrate
from protocol.lsn import Lsn

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def catalog_path(state_dir: Path) -> Path:
    """Where a state directory's catalog lies."""
    return state_dir / "catalog.sqlite"


def _boot_id() -> str:
    """What the kernel drew at the machine's start (random(4)): another one after a power cut."""
    return _BOOT_ID.read_text().strip()


class Catalog:
    """The open catalog. Methods may be called from any thread; each is one transaction.

    Attributes:
        state_dir: The folder it lies in.

    Raises:
        StateError: On opening, when the file cannot be used or was written by a later version. From each method, when
            it cannot be read or written now: with `retry` where the disk is full, or another process holds the lock.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self.state_dir = path.parent
        self._database = Database(path)
        try:
            with self._transaction() as db:
                migrate(db)
        except StateError:
            self._database.close()
            raise

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database.transaction() as db:
            yield db

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Several statements as one transaction, for the modules beside this one that know its tables."""
        return self._transaction()

    def _rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with self._lock, self._database.using() as db:
            return db.execute(sql, parameters).fetchall()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

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

    def set_skip_lsn(self, name: str, skip_lsn: Lsn | None) -> None:
        """ALTER SUBSCRIPTION … SKIP."""
        with self._transaction() as db:
            db.execute("UPDATE subscription SET skip_lsn = ? WHERE name = ?", (skip_lsn, name))

    def skip_lsn(self, name: str) -> Lsn | None:
        """The finish LSN of the transaction to skip."""
        rows = self._rows("SELECT skip_lsn FROM subscription WHERE name = ? AND skip_lsn IS NOT NULL", name)
        return Lsn(rows[0][0]) if rows else None

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

    def advance_origin(self, name: str, remote_lsn: Lsn) -> bool:
        """Move past WAL that holds nothing for us. Never moves back, nor while a batch is under way.

        Returns:
            Whether the origin moved: only then may `remote_lsn` be confirmed.
        """
        with self._transaction() as db:
            moved = db.execute(
                "UPDATE origin SET remote_lsn = ?2 WHERE subscription = ?1 AND remote_lsn < ?2 "
                "AND NOT EXISTS (SELECT 1 FROM batch WHERE subscription = ?1)",
                (name, remote_lsn),
            )
            self._ready_rels(db, name)
        return moved.rowcount > 0

    def set_origin(self, name: str, remote_lsn: Lsn) -> None:
        """pg_replication_origin_advance, by hand, without going back or leaving a batch half done.

        Raises:
            StateError: There is no origin yet, it is further, or a batch is under way.
        """
        with self._transaction() as db:
            found = db.execute("SELECT remote_lsn FROM origin WHERE subscription = ?", (name,)).fetchone()
            begun = db.execute("SELECT end_lsn FROM batch WHERE subscription = ?", (name,)).fetchone()
            if found is None:
                raise StateError(f'subscription "{name}" has no origin yet: it never ran')
            if begun is not None:
                raise StateError(
                    f"a batch up to {Lsn(begun[0])} was begun and not finished",
                    hint="run the daemon until that batch is applied or undone, and stop it again",
                )
            if remote_lsn < found[0]:
                raise StateError(
                    f"the origin is at {Lsn(found[0])} already: going back to {remote_lsn} would apply again "
                    "what is in the tables"
                )
            db.execute("UPDATE origin SET remote_lsn = ? WHERE subscription = ?", (remote_lsn, name))
            self._ready_rels(db, name)

    def begin_batch(self, name: str, intent: BatchIntent) -> None:
        """Record the batch's intent, before its first commit to Delta; once more, when the batch is applied again.

        Raises:
            StateError: Another batch was begun and not finished, or this one is being taken back.
        """
        with self._transaction() as db:
            standing = self.batch(name)
            if standing is not None and standing != intent:
                raise StateError(
                    f"a batch from {standing.start_lsn} to {standing.end_lsn} was begun and not finished: "
                    f"one from {intent.start_lsn} to {intent.end_lsn} would be applied on top of it",
                    hint="nothing of it is in the tables; the next start finishes the first batch, or takes it back",
                )
            db.execute(
                "INSERT OR IGNORE INTO batch (subscription, start_lsn, end_lsn, undoing, alters, boot_id) "
                "VALUES (?, ?, ?, 0, ?, ?)",
                (name, intent.start_lsn, intent.end_lsn, int(intent.alters), _boot_id()),
            )

    def batch(self, name: str) -> BatchIntent | None:
        """The intent of a batch that was begun and not finished."""
        rows = self._rows("SELECT start_lsn, end_lsn, undoing, alters, boot_id FROM batch WHERE subscription = ?", name)
        if not rows:
            return None
        start_lsn, end_lsn, undoing, alters, boot_id = rows[0]
        rebooted = boot_id is not None and boot_id != _boot_id()
        return BatchIntent(Lsn(start_lsn), Lsn(end_lsn), bool(undoing), bool(alters), rebooted)

    def begin_undo(self, name: str) -> None:
        """Record that the commits of the batch under way are about to be taken back."""
        with self._transaction() as db:
            db.execute("UPDATE batch SET undoing = 1 WHERE subscription = ?", (name,))

    def finish_undo(self, name: str) -> None:
        """All of them are taken back: drop the intent, and move the epoch on. One transaction."""
        with self._transaction() as db:
            db.execute("UPDATE subscription SET epoch = epoch + 1 WHERE name = ?", (name,))
            db.execute("DELETE FROM batch WHERE subscription = ?", (name,))

    def finish_batch(
        self,
        name: str,
        end_lsn: Lsn,
        prepared: Iterable[PreparedRow] = (),
        ended: Iterable[str] = (),
        *,
        clear_skip_lsn: Lsn | None = None,
        columns: Mapping[int, Iterable[ColumnRow]] = MappingProxyType({}),
        relids: Mapping[int, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        """All of the batch is durable: move the origin, drop the intent, forget the last error. One transaction.

        Args:
            name: The subscription.
            end_lsn: The batch's end.
            prepared: Transactions that were prepared within it.
            ended: Files of prepared transactions that were committed or rolled back within it.
            clear_skip_lsn: The skip LSN that has done what it can; another one that was set meanwhile stays.
            columns: Of published tables, by relid, where the batch came to know others than before.
            relids: Names of tables of the subscription that have another relid now, by that.
        """
        with self._transaction() as db:
            db.executemany(
                "UPDATE subscription_rel SET relid = ? WHERE subscription = ? AND namespace = ? AND name = ?",
                [(relid, name, *table) for relid, table in relids.items()],
            )
            for relid, rows in columns.items():
                self._put_columns(db, name, relid, rows)
            db.executemany(
                "INSERT OR REPLACE INTO prepared (subscription, file, gid, xid, end_lsn) VALUES (?, ?, ?, ?, ?)",
                [(name, row.file, row.gid, row.xid, row.end_lsn) for row in prepared],
            )
            db.executemany("DELETE FROM prepared WHERE subscription = ? AND file = ?", [(name, file) for file in ended])
            db.execute("UPDATE origin SET remote_lsn = max(remote_lsn, ?) WHERE subscription = ?", (end_lsn, name))
            db.execute("DELETE FROM batch WHERE subscription = ?", (name,))
            db.execute("DELETE FROM error WHERE subscription = ?", (name,))
            if clear_skip_lsn is not None:
                db.execute(
                    "UPDATE subscription SET skip_lsn = NULL WHERE name = ? AND skip_lsn = ?", (name, clear_skip_lsn)
                )
            self._ready_rels(db, name)

    def prepared(self, name: str) -> list[PreparedRow]:
        """Prepared transactions that have not ended, by the LSN of their end."""
        rows = self._rows("SELECT file, gid, xid, end_lsn FROM prepared WHERE subscription = ? ORDER BY end_lsn", name)
        return [PreparedRow(file, gid, xid, Lsn(end_lsn)) for file, gid, xid, end_lsn in rows]

    # --- tables ------------------------------------------------------------------------------------------------

    def rels(self, name: str) -> list[RelRow]:
        """All tables of the subscription, by name."""
        rows = self._rows(
            "SELECT namespace, name, state, lsn, path, relid FROM subscription_rel WHERE subscription = ? "
            "ORDER BY namespace, name",
            name,
        )
        return [RelRow(row[0], row[1], row[2], Lsn(row[3]), *row[4:]) for row in rows]

    def put_rel(self, subscription: str, rel: RelRow) -> None:
        """Write one table's row."""
        with self._transaction() as db:
            self._put_rels(db, subscription, [rel])

    def columns(self, name: str) -> dict[int, tuple[ColumnRow, ...]]:
        """The columns of published tables as of the origin's LSN, by relid, in the order of attnum."""
        rows = self._rows(
            "SELECT relid, attnum, name, type_oid, typmod, state FROM rel_column WHERE subscription = ? "
            "ORDER BY relid, attnum",
            name,
        )
        return {relid: tuple(ColumnRow(*row[1:]) for row in of) for relid, of in groupby(rows, itemgetter(0))}

    def put_columns(self, name: str, relid: int, columns: Iterable[ColumnRow]) -> None:
        """Write down a published table's columns, in the place of what was there."""
        with self._transaction() as db:
            self._put_columns(db, name, relid, columns)

    @staticmethod
    def _put_columns(db: sqlite3.Connection, name: str, relid: int, columns: Iterable[ColumnRow]) -> None:
        db.execute("DELETE FROM rel_column WHERE subscription = ? AND relid = ?", (name, relid))
        db.executemany(
            "INSERT INTO rel_column (subscription, relid, attnum, name, type_oid, typmod, state) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(name, relid, row.attnum, row.name, row.type_oid, row.typmod, row.state) for row in columns],
        )

    def owner_of(self, path: str, *, but: str) -> str | None:
        """Another subscription that writes to the Delta table at `path`."""
        rows = self._rows("SELECT subscription FROM subscription_rel WHERE path = ? AND subscription <> ?", path, but)
        return str(rows[0][0]) if rows else None

    @staticmethod
    def _put_rels(db: sqlite3.Connection, subscription: str, rels: list[RelRow]) -> None:
        db.executemany(
            "INSERT OR REPLACE INTO subscription_rel (subscription, namespace, name, state, lsn, path, relid) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(subscription, *astuple(rel)) for rel in rels],
        )

    @staticmethod
    def _ready_rels(db: sqlite3.Connection, name: str) -> None:
        """A synchronised table is ready once the origin has passed its copy's snapshot."""
        db.execute(
            "UPDATE subscription_rel SET state = 'r' WHERE subscription = ?1 AND state = 's' "
            "AND lsn <= (SELECT remote_lsn FROM origin WHERE subscription = ?1)",
            (name,),
        )

    def put_copies(self, name: str, copies: Iterable[CopyRow]) -> None:
        """How far all copies of a subscription are that are under way."""
        with self._transaction() as db:
            db.execute("DELETE FROM copy_progress WHERE subscription = ?", (name,))
            rows = [(name, *astuple(copy)) for copy in copies]
            db.executemany("INSERT INTO copy_progress VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def copies(self, name: str) -> list[CopyRow]:
        """What was put last."""
        columns = "namespace, name, rows, bytes, total_bytes_estimate, rows_per_s, seconds_left"
        return [
            CopyRow(*row)
            for row in self._rows(f"SELECT {columns} FROM copy_progress WHERE subscription = ? ORDER BY 1, 2", name)
        ]

    # --- errors ------------------------------------------------------------------------------------------------

    def record_error(
        self,
        name: str,
        message: str,
        *,
        counter: str | None,
        finish_lsn: Lsn | None = None,
        relation: str | None = None,
        at_lsn: Lsn | None = None,
    ) -> None:
        """Keep an error as the last one, and count it.

        `counter` is `apply`, `sync`, or None: a server that cannot be reached counts as neither, as in
        pg_stat_subscription_stats. With `at_lsn`, where the origin was when it happened, an error that a later
        transaction has overtaken is only counted.
        """
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO error (subscription, message, finish_lsn, relation, time) "
                "SELECT ?1, ?2, ?3, ?4, ?5 "
                "WHERE NOT EXISTS (SELECT 1 FROM origin WHERE subscription = ?1 AND remote_lsn > ?6)",
                (name, message, finish_lsn, relation, time.time(), at_lsn),
            )
            if counter is not None:
                column = f"{counter}_error_count"
                db.execute(f"UPDATE subscription SET {column} = {column} + 1 WHERE name = ?", (name,))

    def count_conflicts(self, name: str, counts: Mapping[str, int]) -> None:
        """Add to the counters."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO conflict (subscription, conflict, count) VALUES (?1, ?2, ?3) "
                "ON CONFLICT (subscription, conflict) DO UPDATE SET count = count + ?3",
                [(name, conflict, count) for conflict, count in counts.items()],
            )

    def conflicts(self, name: str) -> dict[str, int]:
        """The counters by the conflicts' names; those that are 0 are not there."""
        rows = self._rows("SELECT conflict, count FROM conflict WHERE subscription = ? ORDER BY conflict", name)
        return dict(rows)

    def last_error(self, name: str) -> ErrorRow | None:
        """The error that stands."""
        rows = self._rows("SELECT message, finish_lsn, relation, time FROM error WHERE subscription = ?", name)
        if not rows:
            return None
        message, finish_lsn, relation, time_s = rows[0]
        return ErrorRow(message, None if finish_lsn is None else Lsn(finish_lsn), relation, time_s)

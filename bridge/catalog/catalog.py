"""The subscriber's catalog: the counterpart of pg_subscription, pg_subscription_rel and pg_replication_origin_status.

It is one SQLite file, `state_dir/catalog.sqlite`, in WAL mode with synchronous = FULL: when a call returns, its change
survives a power cut (`set_state` excepted). The daemon and the command line open it at the same time. Other modules of
this package keep further tables in it, with functions that take the catalog: `refresh`, `reload`, `notes`, `left_out`,
`held`.
"""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pgbridge.bridge.catalog import catalog_rows, commits, schema
from pgbridge.bridge.catalog.catalog_rows import (
    AHEAD_OF_2,
    REL_COLUMNS,
    REL_VALUES,
    SUBSCRIPTION_COLUMNS,
    BatchIntent,
    ColumnRow,
    PreparedRow,
    RelRow,
)
from pgbridge.bridge.catalog.database import Database
from pgbridge.bridge.runtime.errors import StateError
from pgbridge.bridge.runtime.threads import Together
from pgbridge.protocol.lsn import Lsn

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping

_TIMELINE = "(SELECT timeline FROM origin WHERE subscription = ?1)"
"""The timeline of what a subscription's stream has sent (see `held.note_timeline`)."""

_COMMIT_DELAY_S = 0.05
"""How long a transaction waits for other origins to advance, if the one before had several: PostgreSQL's commit_delay,
and its commit_siblings."""

_LOOK_S = 0.5

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def catalog_path(state_dir: Path) -> Path:
    """The path of a state directory's catalog."""
    return state_dir / "catalog.sqlite"


def boot_id() -> str:
    """The kernel's random id of this boot (random(4)): it differs after a power cut."""
    return _BOOT_ID.read_text().strip()


def _prepared(row: PreparedRow) -> tuple[Any, ...]:
    return row.file, row.gid, row.xid, row.end_lsn, None if row.relids is None else json.dumps(row.relids)


class Catalog:
    """The open catalog. Methods may be called from any thread; each is one transaction.

    Raises:
        StateError: On opening, if the file cannot be used or was written by a later version. From each method, if
            it cannot be read or written now; with `retry` if the disk is full or another process holds the lock.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self.state_dir = path.parent
        self._database = Database(path)
        self._writer: int | None = None  # the thread that has a transaction
        self._written, self._looked_s, self._seen = 0, -math.inf, 0
        self._claims: dict[str, str] = {}
        # each transaction waits for the disk; hundreds of idle subscriptions advance about once a second
        self._advances = Together(self._advance_all, delay_s=_COMMIT_DELAY_S)
        try:
            with self._database.using() as db:
                is_current = schema.is_current(db)
            if not is_current:  # a command that shows the state does not wait for who writes it
                with self._transaction() as db:
                    schema.migrate(db)
            # a connection of its own: the threads that only read do not wait for the disk
            self._reading, self._reader = threading.Lock(), Database(path)
        except StateError:
            self._database.close()
            raise

    @contextmanager
    def _transaction(self, *, flush: bool = True) -> Iterator[sqlite3.Connection]:
        if self._writer == threading.get_ident():  # it is a part of the one that this thread has begun
            with self._database.using() as db:
                yield db
            return
        with self._lock:
            try:
                with self._database.transaction(flush=flush) as db:
                    self._writer = threading.get_ident()
                    try:
                        yield db
                    finally:
                        self._writer = None
            finally:
                self._written += 1  # after the COMMIT: who sees it reads what was committed

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Several statements as one transaction, for the modules of this package that keep tables of their own."""
        return self._transaction()

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The result of a query, for the same modules; within a transaction, of what it has written, too."""
        if self._writer == threading.get_ident():
            with self._database.using() as db:
                return db.execute(sql, parameters).fetchall()
        with self._reading, self._reader.using() as db:
            return db.execute(sql, parameters).fetchall()

    def version(self) -> tuple[int, int]:
        """Another value once the catalog may have other rows: at once after a change of this process.

        What other processes do is seen within half a second. So hundreds of threads which ask every second ask SQLite
        for nothing while nothing changes.
        """
        with self._reading:
            if time.monotonic() >= self._looked_s + _LOOK_S:
                self._looked_s, self._seen = time.monotonic(), self._reader.data_version()
            return self._written, self._seen

    def close(self) -> None:
        """Close the file."""
        with self._lock, self._reading:
            self._reader.close()
            self._database.close()

    # --- subscription -------------------------------------------------------------------------------------

    def register(self, name: str, *, enabled: bool) -> None:
        """Create the subscription's row if it is new; take over `enabled` if it changed in the configuration file."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO subscription (name, enabled, configured_enabled) VALUES (?1, ?2, ?2) "
                "ON CONFLICT (name) DO UPDATE SET enabled = ?2, configured_enabled = ?2 "
                "WHERE configured_enabled <> ?2",
                (name, int(enabled)),
            )

    def subscription(self, name: str) -> catalog_rows.SubscriptionRow | None:
        """The subscription's row; None before the first `register`."""
        rows = self.rows(f"SELECT {SUBSCRIPTION_COLUMNS} FROM subscription WHERE name = ?", name)
        return catalog_rows.SubscriptionRow.of(rows[0]) if rows else None

    def subscriptions(self) -> dict[str, catalog_rows.SubscriptionRow]:
        """The rows of all subscriptions, and of their tablesync workers, by name."""
        rows = map(catalog_rows.SubscriptionRow.of, self.rows(f"SELECT {SUBSCRIPTION_COLUMNS} FROM subscription"))
        return {row.name: row for row in rows}

    def set_enabled(self, name: str, *, enabled: bool) -> None:
        """ALTER SUBSCRIPTION … ENABLE / DISABLE."""
        with self._transaction() as db:
            db.execute("UPDATE subscription SET enabled = ? WHERE name = ?", (int(enabled), name))

    def set_slot(
        self, name: str, *, slot_name: str, slot_state: str, system_identifier: str, incarnation: str | None = None
    ) -> None:
        """Record a slot before it is created (`creating`) or once it is known to be ours (`ready`).

        Args:
            incarnation: Of the life that begins with it; None for the one that is known.
        """
        with self._transaction() as db:
            db.execute(
                "UPDATE subscription SET slot_name = ?, slot_state = ?, system_identifier = ?, "
                "incarnation = coalesce(?, incarnation) WHERE name = ?",
                (slot_name, slot_state, system_identifier, incarnation, name),
            )

    def forget_slot(self, name: str) -> None:
        """Record that the slot that was to be created does not exist."""
        with self._transaction() as db:
            db.execute("UPDATE subscription SET slot_name = NULL, slot_state = NULL WHERE name = ?", (name,))

    def slot_owner(self, slot_name: str, system_identifier: str, *, but: str, exists: bool) -> str | None:
        """Another subscription that streams from a slot of a server, or is creating it; None for none.

        Args:
            exists: Whether the server has the slot.
        """
        rows = self.rows(
            "SELECT name FROM subscription WHERE slot_name = ? AND system_identifier = ? AND name <> ? "
            "AND (? OR slot_state = 'creating')",
            *(slot_name, system_identifier, but, exists),
        )
        return str(rows[0][0]) if rows else None

    def set_state(self, name: str, state: str, *, received_lsn: Lsn | None = None) -> None:
        """Record the state that `status` shows of a running daemon. Recovery does not need it: it is not flushed.

        Args:
            received_lsn: The stream's; None for the one that is known. One that begins has received its start LSN: the
                server may have lost what was received before.
        """
        with self._transaction(flush=False) as db:
            db.execute(
                "UPDATE subscription SET state = ?, received_lsn = coalesce(?, received_lsn) WHERE name = ?",
                (state, received_lsn, name),
            )

    def set_skip_lsn(self, name: str, skip_lsn: Lsn | None) -> None:
        """ALTER SUBSCRIPTION … SKIP. The LSN is on the timeline that the origin is on now."""
        with self._transaction() as db:
            db.execute(
                "UPDATE subscription SET skip_lsn = ?1, "
                "skip_timeline = (SELECT timeline FROM origin WHERE subscription = ?2) WHERE name = ?2",
                (skip_lsn, name),
            )

    def skip_lsn(self, name: str) -> Lsn | None:
        """The finish LSN of the transaction to skip."""
        rows = self.rows("SELECT skip_lsn FROM subscription WHERE name = ? AND skip_lsn IS NOT NULL", name)
        return Lsn(rows[0][0]) if rows else None

    # --- origin and batches ----------------------------------------------------------------------------------

    def create_origin(
        self, name: str, remote_lsn: Lsn, incarnation: str, tables: list[RelRow], timeline: int | None = None
    ) -> None:
        """Record that the slot is ready, the LSN to start from, and the tables' states, in one transaction."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO origin (subscription, remote_lsn, timeline) VALUES (?, ?, ?)", (name, remote_lsn, timeline)
            )
            db.execute(
                "UPDATE subscription SET incarnation = ?, slot_state = 'ready' WHERE name = ?",
                (incarnation, name),
            )
            self._put_rels(db, name, tables)

    def remote_lsn(self, name: str) -> Lsn | None:
        """The origin's LSN; None before the slot is ready."""
        rows = self.rows("SELECT remote_lsn FROM origin WHERE subscription = ?", name)
        return Lsn(rows[0][0]) if rows else None

    def advance_origin(self, name: str, remote_lsn: Lsn) -> bool:
        """Move the origin past WAL without changes for us; never back, and not while a batch is being applied.

        Returns whether the origin moved: only then may `remote_lsn` be confirmed.
        """
        return self._advances.do((name, remote_lsn))

    def _advance_all(self, group: Iterable[tuple[str, Lsn]]) -> list[bool]:
        with self._transaction() as db:
            return [self._advance(db, *each) for each in group]

    def _advance(self, db: sqlite3.Connection, name: str, remote_lsn: Lsn) -> bool:
        moved = db.execute(
            "UPDATE origin SET remote_lsn = ?2 WHERE subscription = ?1 AND remote_lsn < ?2 "
            "AND NOT EXISTS (SELECT 1 FROM batch WHERE subscription = ?1)",
            (name, remote_lsn),
        )
        self._ready_rels(db, name)
        return moved.rowcount > 0

    def set_origin(self, name: str, remote_lsn: Lsn) -> None:
        """Set the origin by hand, as pg_replication_origin_advance does, but never back, and not within a batch.

        Raises:
            StateError: The origin does not exist yet, it is further, or a batch was begun and not finished.
        """
        with self._transaction() as db:
            row = db.execute("SELECT remote_lsn FROM origin WHERE subscription = ?", (name,)).fetchone()
            begun = db.execute("SELECT end_lsn FROM batch WHERE subscription = ?", (name,)).fetchone()
            if row is None:
                raise StateError(f'subscription "{name}" has no origin yet: it has never run')
            if begun is not None:
                raise StateError(
                    f"a batch up to {Lsn(begun[0])} was begun and not finished",
                    hint="run the daemon until the batch is applied or undone, then stop it again",
                )
            if remote_lsn < row[0]:
                raise StateError(
                    f"the origin is already at {Lsn(row[0])}: going back to {remote_lsn} would apply changes again "
                    "that are in the tables"
                )
            ahead = f"SELECT max(position) FROM subscription_rel WHERE subscription = ?1 AND {AHEAD_OF_2}"
            (kept_lsn,) = db.execute(ahead, (name, row[0])).fetchone()
            if kept_lsn is not None:
                raise StateError(
                    f"tables have changes up to {Lsn(kept_lsn)}, of a batch that was cut short",
                    hint="run the daemon until the origin has passed that, then stop it again",
                )
            db.execute("UPDATE origin SET remote_lsn = ? WHERE subscription = ?", (remote_lsn, name))
            self._ready_rels(db, name)

    def begin_batch(self, name: str, intent: BatchIntent, *, forget_positions: bool = False) -> None:
        """Record the batch's intent before its first commit to Delta; raise a StateError if one is not finished.

        With `forget_positions` its tables are to be brought back to its start, and are read from their logs again.
        """
        with self._transaction() as db:
            standing = self.batch(name)
            if standing is not None:
                raise StateError(
                    f"a batch from {standing.start_lsn} to {standing.end_lsn} was begun and not finished: "
                    f"one from {intent.start_lsn} to {intent.end_lsn} would be applied on top of it",
                    hint="nothing of the new batch is in the tables; the next start settles the first one",
                )
            db.execute(
                "INSERT INTO batch "
                "(subscription, start_lsn, end_lsn, undoing, alters, boot_id, messages_path, tables, timeline) "
                f"VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, {_TIMELINE})",
                (
                    *(name, intent.start_lsn, intent.end_lsn, int(intent.alters), boot_id(), intent.messages_path),
                    None if intent.tables is None else json.dumps(intent.tables),
                ),
            )
            if forget_positions:
                db.executemany(
                    "UPDATE subscription_rel SET position = 0 WHERE subscription = ? AND path = ?",
                    [(name, path) for path in intent.tables or ()],
                )

    def batch(self, name: str) -> BatchIntent | None:
        """The intent of the batch that was begun and not finished, if there is one."""
        rows = self.rows(
            "SELECT start_lsn, end_lsn, undoing, alters, flushing, boot_id, messages_path, tables, timeline FROM batch "
            "WHERE subscription = ?",
            name,
        )
        if not rows:
            return None
        start_lsn, end_lsn, undoing, alters, flushing, booted, messages_path, paths, timeline = rows[0]
        rebooted = booted is not None and booted != boot_id()
        lsns, tables = (Lsn(start_lsn), Lsn(end_lsn)), None if paths is None else tuple(json.loads(paths))
        return BatchIntent(
            *lsns, bool(undoing), bool(alters), bool(flushing), rebooted, messages_path, tables, timeline
        )

    def begin_flush(self, name: str) -> None:
        """Record that what the unfinished batch has committed is about to be flushed: until it ends, it may fail."""
        with self._transaction() as db:
            db.execute("UPDATE batch SET flushing = 1 WHERE subscription = ?", (name,))

    def begin_undo(self, name: str) -> None:
        """Record that the commits of the unfinished batch are about to be undone."""
        with self._transaction() as db:
            db.execute("UPDATE batch SET undoing = 1 WHERE subscription = ?", (name,))

    def drop_batch(self, name: str) -> None:
        """Drop the intent of a batch whose commits are undone, or kept, and advance the epoch. One transaction."""
        with self._transaction() as db:
            db.execute("UPDATE subscription SET epoch = epoch + 1 WHERE name = ?", (name,))
            db.execute("DELETE FROM batch WHERE subscription = ?", (name,))

    def raise_epoch(self, name: str, epoch: int) -> None:
        """Have batches use this epoch at least: a table's log has commits that it was given up after."""
        with self._transaction() as db:
            db.execute("UPDATE subscription SET epoch = ?2 WHERE name = ?1 AND epoch < ?2", (name, epoch))

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
        applied: catalog_rows.AppliedBatch | None = None,
    ) -> None:
        """The whole batch is durable: move the origin, drop the intent, delete an earlier error. One transaction.

        Args:
            prepared: Transactions that were prepared within it.
            ended: Files of prepared transactions that were committed or rolled back within it.
            clear_skip_lsn: The skip LSN to clear; another one that was set meanwhile stays.
            columns: The columns of published tables that changed in the batch, by relid.
            relids: The tables of the subscription whose relid changed, by their new relid.
            applied: What it has committed, and what is recorded of it (see `commits`); None for nothing.
        """
        with self._transaction() as db:
            self._commit(db, name, end_lsn, applied.committed if applied is not None else (), columns, relids)
            if applied is not None:
                commits.put(db, name, applied, end_lsn)
            db.executemany(
                "INSERT OR REPLACE INTO prepared (subscription, file, gid, xid, end_lsn, relids) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(name, *_prepared(row)) for row in prepared],
            )
            db.executemany("DELETE FROM prepared WHERE subscription = ? AND file = ?", [(name, file) for file in ended])
            db.execute("UPDATE origin SET remote_lsn = max(remote_lsn, ?) WHERE subscription = ?", (end_lsn, name))
            db.execute("DELETE FROM error WHERE subscription = ?1 AND coalesce(finish_lsn < ?2, true)", (name, end_lsn))
            self._end_batch(db, name, clear_skip_lsn)
            self._ready_rels(db, name)

    def hold_batch(
        self,
        name: str,
        end_lsn: Lsn,
        committed: Iterable[str],
        *,
        clear_skip_lsn: Lsn | None = None,
        columns: Mapping[int, Iterable[ColumnRow]] = MappingProxyType({}),
        relids: Mapping[int, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        """The batch is durable in its tables, but the origin stays: a table is further. One transaction."""
        with self._transaction() as db:
            self._commit(db, name, end_lsn, committed, columns, relids)
            self._end_batch(db, name, clear_skip_lsn)

    @staticmethod
    def _end_batch(db: sqlite3.Connection, name: str, clear_skip_lsn: Lsn | None) -> None:
        db.execute("DELETE FROM batch WHERE subscription = ?", (name,))
        if clear_skip_lsn is not None:
            db.execute(
                "UPDATE subscription SET skip_lsn = NULL WHERE name = ? AND skip_lsn = ?", (name, clear_skip_lsn)
            )

    def _commit(
        self,
        db: sqlite3.Connection,
        name: str,
        end_lsn: Lsn,
        committed: Iterable[str],
        columns: Mapping[int, Iterable[ColumnRow]],
        relids: Mapping[int, tuple[str, str]],
    ) -> None:
        """The logs of these tables have the batch's end as their position, and follow what it planned."""
        db.executemany(
            f"UPDATE subscription_rel SET position = ?2, timeline = {_TIMELINE} "
            "WHERE subscription = ?1 AND path = ?3 AND position < ?2",
            [(name, end_lsn, path) for path in committed],
        )
        db.executemany(
            "UPDATE subscription_rel SET relid = ? WHERE subscription = ? AND namespace = ? AND name = ?",
            [(relid, name, *table) for relid, table in relids.items()],
        )
        for relid, rows in columns.items():
            self._put_columns(db, name, relid, rows)

    def prepared(self, name: str) -> list[PreparedRow]:
        """Prepared transactions that have not ended, ordered by their end LSN."""
        rows = self.rows(
            "SELECT file, gid, xid, end_lsn, relids FROM prepared WHERE subscription = ? ORDER BY end_lsn", name
        )
        return [
            PreparedRow(file, gid, xid, Lsn(end_lsn), None if relids is None else tuple(json.loads(relids)))
            for file, gid, xid, end_lsn, relids in rows
        ]

    # --- tables ------------------------------------------------------------------------------------------------

    def rels(self, *owners: str, path: str | None = None) -> list[RelRow]:
        """All tables of a subscription, or of these, ordered by name; with a path, the one that is there."""
        return [rel for _, rel in self.owned_rels(*owners, path=path)]

    def owned_rels(self, *owners: str, path: str | None = None) -> list[tuple[str, RelRow]]:
        """As `rels`, each with its owner. All are of one moment: tables move between a subscription and its worker."""
        rows = self.rows(
            f"SELECT subscription, {REL_COLUMNS} FROM subscription_rel "
            f"WHERE subscription IN ({', '.join('?' * len(owners))}) AND path = coalesce(?, path) "
            "ORDER BY namespace, name",
            *owners,
            path,
        )
        return [
            (
                owner,
                RelRow(space, name, state, Lsn(lsn), at, relid, Lsn(position), line, why, since_s, Lsn(first), shape),
            )
            for owner, space, name, state, lsn, at, relid, position, line, why, since_s, first, shape in rows
        ]

    def rels_by_name(self, *owners: str) -> dict[tuple[str, str], RelRow]:
        """As `rels`, by (namespace, name)."""
        return {(rel.namespace, rel.name): rel for rel in self.rels(*owners)}

    def put_rel(self, subscription: str, rel: RelRow) -> None:
        """Write one table's row."""
        with self._transaction() as db:
            self._put_rels(db, subscription, [rel])

    def columns(self, name: str) -> dict[int, tuple[ColumnRow, ...]]:
        """The columns of published tables as of the origin's LSN, by relid, in the order of attnum."""
        rows = self.rows(
            "SELECT relid, attnum, name, type_oid, typmod, state FROM rel_column WHERE subscription = ? "
            "ORDER BY relid, attnum",
            name,
        )
        return {relid: tuple(ColumnRow(*row[1:]) for row in of) for relid, of in groupby(rows, itemgetter(0))}

    def put_columns(self, name: str, relid: int, columns: Iterable[ColumnRow]) -> None:
        """Replace the recorded columns of a published table."""
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

    def taken(self, name: str, real: Callable[[str], str]) -> dict[str, str]:
        """Return which other subscription writes to each Delta table, or has claimed a path, by the path.

        A subscription and its tablesync worker are one here: tables move between them.

        Args:
            name: The subscription's name, or its worker's.
            real: Gives all paths of one table the same form.
        """
        with self._lock:
            rows = self.rows("SELECT path, subscription FROM subscription_rel")
            known = [*self._claims.items(), *((real(path), owner) for path, owner in rows)]
        return {path: owner for path, owner in known if catalog_rows.owner_of(owner) != catalog_rows.owner_of(name)}

    def claim(
        self, name: str, paths: Iterable[str], real: Callable[[str], str] = lambda path: path
    ) -> tuple[str, str] | None:
        """Reserve Delta tables, or a slot, for a subscription that is about to begin with them; in this process only.

        Args:
            paths: The tables' paths; the slot's is made up.
            real: As for `taken`.

        Returns:
            A path that is another subscription's, and that subscription: then nothing is reserved. None if none is.
        """
        with self._lock:
            taken = self.taken(name, real)
            wanted = {real(path): path for path in paths}
            for key, path in wanted.items():
                if key in taken:
                    return path, taken[key]
            self._claims.update(dict.fromkeys(wanted, name))
        return None

    def release(self, name: str) -> None:
        """End the claims of a subscription."""
        with self._lock:
            self._claims = {path: owner for path, owner in self._claims.items() if owner != name}

    @staticmethod
    def _put_rels(db: sqlite3.Connection, subscription: str, rels: list[RelRow]) -> None:
        db.executemany(
            f"INSERT OR REPLACE INTO subscription_rel (subscription, {REL_COLUMNS}) VALUES (?, {REL_VALUES})",
            [(subscription, *astuple(rel)) for rel in rels],
        )

    @staticmethod
    def _ready_rels(db: sqlite3.Connection, name: str) -> None:
        """Make synchronised tables ready once the origin has passed their position."""
        passed = "subscription = ?1 AND max(lsn, position) <= (SELECT remote_lsn FROM origin WHERE subscription = ?1)"
        db.execute(f"UPDATE subscription_rel SET state = 'r' WHERE {passed} AND state = 's'", (name,))
        # after a recovery a table may be r that is to become s
        ended = f"{passed} AND state = 'r' AND first_lsn > 0"
        ranges = f"(namespace, name) IN (SELECT namespace, name FROM subscription_rel WHERE {ended})"
        db.execute(f"DELETE FROM copied_range WHERE subscription = ?1 AND {ranges}", (name,))
        db.execute(f"UPDATE subscription_rel SET first_lsn = 0 WHERE {ended}", (name,))

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

        Args:
            counter: `apply`, `sync`, or None: a server that cannot be reached counts as neither, as in
                pg_stat_subscription_stats.
            finish_lsn: The finish LSN of the transaction that failed.
            relation: `namespace.name` of the target.
            at_lsn: The origin's LSN when the error happened. If the origin has moved since, a later transaction was
                applied, and the error is only counted.
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

    def end_error(self, name: str) -> None:
        """Forget the last error, unless it is one of applying, or of what the publisher's stream has at its position.

        Those stay until a later transaction was applied. One of the start, the connection or a copy is over once the
        stream has begun.
        """
        with self._transaction() as db:
            db.execute(
                "DELETE FROM error WHERE subscription = ? AND finish_lsn IS NULL "
                "AND instr(message, 'CONTEXT:  processing remote data') = 0 "
                "AND instr(message, 'the publisher ended the stream') <> 1",
                (name,),
            )

    def last_error(self, name: str) -> catalog_rows.ErrorRow | None:
        """The last error, if no later transaction was applied since, and what failed has not succeeded since."""
        rows = self.rows("SELECT message, finish_lsn, relation, time FROM error WHERE subscription = ?", name)
        if not rows:
            return None
        message, finish_lsn, relation, time_s = rows[0]
        return catalog_rows.ErrorRow(message, None if finish_lsn is None else Lsn(finish_lsn), relation, time_s)

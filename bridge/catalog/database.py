"""The catalog's SQLite file: opening it, transactions, and SQLite's errors as StateError."""

from __future__ import annotations

import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

BUSY_TIMEOUT_S = 30.0
"""How long to wait for the write lock, which the command line and the daemon hold for milliseconds."""

_HELD_TIMEOUT_S = 0.1
"""How long to wait once another process has held the lock for all of BUSY_TIMEOUT_S: the daemon's many threads would
wait one after the other, and it must stop within seconds."""


class Transactions(Protocol):
    """What the modules of this package need of `bridge.catalog.catalog.Catalog`, which imports some of them."""

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Several statements as one transaction."""

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The result of a query."""


class Database:
    """An open SQLite file, in WAL mode with synchronous = FULL.

    Raises:
        StateError: On opening, when the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = False
        self._flushes = True
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)  # error messages have values; SQLite's other files get the same mode
            self.connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, error) from error
        try:
            _use_wal(self.connection)
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as error:
            self.connection.close()
            raise _unusable(path, error) from error

    @contextmanager
    def transaction(self, *, flush: bool = True) -> Iterator[sqlite3.Connection]:
        """A write transaction: all of the block becomes durable, or none of it.

        Args:
            flush: Wait for the disk. Without, a power cut may take the transaction back, but none that is flushed.

        Raises:
            StateError: As in `using`.
        """
        with self.using() as db:
            if flush is not self._flushes:
                db.execute(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")
                self._flushes = flush
            db.execute("BEGIN IMMEDIATE")
            self._set_held(held=False)
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                db.rollback()  # a no-op if SQLite itself has rolled back, as on a full disk
                raise

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """The connection, with SQLite's errors as StateError.

        Raises:
            StateError: The file cannot be read or written now; with `retry` if that may end without any change to the
                file: the disk is full, or another process holds the write lock.
        """
        try:
            yield self.connection
            self._set_held(held=False)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                self._set_held(held=True)
            raise _failed(self._path, error) from error
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # a bug of pgbridge
        except sqlite3.DatabaseError as error:
            raise _damaged(self._path, error) from error

    def data_version(self) -> int:
        """A number that is another one once another connection has changed the file (PRAGMA data_version)."""
        with self.using() as db:
            return int(db.execute("PRAGMA data_version").fetchone()[0])

    def _set_held(self, *, held: bool) -> None:
        if held is not self._held:
            self._held = held
            timeout_s = _HELD_TIMEOUT_S if held else BUSY_TIMEOUT_S
            self.connection.execute(f"PRAGMA busy_timeout = {round(timeout_s * 1000)}")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


def _use_wal(db: sqlite3.Connection) -> None:
    """Set the journal mode; the busy timeout does not cover two processes that create the file at the same time."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _damaged(path: Path, error: Exception) -> StateError:
    return StateError(
        f"state catalog {path} is damaged: {error}",
        hint=f"move it away, and make the state anew from the tables and the slots: {remedies.recover()}",
    )


def _unusable(path: Path, error: Exception) -> StateError:
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return _damaged(path, error)
    return StateError(
        f"state catalog {path} cannot be opened: {error}",
        hint="state_dir must be a folder on a local disk that this user may write",
    )


def _failed(path: Path, error: sqlite3.OperationalError) -> StateError:
    match error.sqlite_errorcode & 0xFF:
        case sqlite3.SQLITE_FULL:
            hint = "make room on the disk of state_dir; pgbridge then goes on by itself"
        case sqlite3.SQLITE_BUSY:
            hint = "another process holds its write lock; when that process ends its transaction, pgbridge goes on"
        case _:
            hint = "state_dir must be a folder on a local disk that this user may write"
    return StateError(f"state catalog {path} cannot be used: {error}", hint=hint, retry=True)

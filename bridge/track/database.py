"""The catalog's SQLite file: how it is opened, and what the errors of SQLite mean for who works with it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bridge.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY_TIMEOUT_S = 30.0
"""The command line and the daemon hold the write lock for milliseconds."""

_HELD_TIMEOUT_S = 0.1
"""Once somebody has held it for all of that, the next ones do not wait as long again: a daemon has many threads, which
come one after the other, and wants to be stopped within seconds."""


class Database:
    """An open SQLite file, in WAL mode with synchronous = FULL.

    Raises:
        StateError: On opening, when the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
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
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: all of the block is durable, or nothing of it.

        Raises:
            StateError: As `using` says.
        """
        with self.using() as db:
            db.execute("BEGIN IMMEDIATE")
            self._set_held(held=False)
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                db.rollback()  # nothing to do where SQLite itself has rolled back, as on a full disk
                raise

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection]:
        """The connection.

        Raises:
            StateError: The file cannot be read or written now. With `retry`, where nobody has to mend the file for it
                to be well again: the disk is full, or another process holds the write lock.
        """
        try:
            yield self.connection
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                self._set_held(held=True)
            raise _failed(self._path, error) from error
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise  # a mistake of ours
        except sqlite3.DatabaseError as error:
            raise StateError(
                f"state catalog {self._path} is damaged: {error}",
                hint="restore it from a backup, or remove the state and copy the tables again",
            ) from error

    def _set_held(self, *, held: bool) -> None:
        if held is not self._held:
            self._held = held
            timeout_s = _HELD_TIMEOUT_S if held else BUSY_TIMEOUT_S
            self.connection.execute(f"PRAGMA busy_timeout = {round(timeout_s * 1000)}")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


def _use_wal(db: sqlite3.Connection) -> None:
    """Set the journal mode; the busy timeout does not cover two processes that make the file at the same time."""
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


def _unusable(path: Path, error: Exception) -> StateError:
    return StateError(
        f"state catalog {path} cannot be opened: {error}",
        hint="state_dir must be a folder on a local disk that this user may write",
    )


def _failed(path: Path, error: sqlite3.OperationalError) -> StateError:
    match error.sqlite_errorcode & 0xFF:
        case sqlite3.SQLITE_FULL:
            hint = "make room on the disk of state_dir: it goes on by itself"
        case sqlite3.SQLITE_BUSY:
            hint = "another process holds its write lock: when that ends its transaction, it goes on by itself"
        case _:
            hint = "state_dir must be a folder on a local disk that this user may write"
    return StateError(f"state catalog {path} cannot be used: {error}", hint=hint, retry=True)

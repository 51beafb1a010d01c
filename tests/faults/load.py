"""A load that outlives its server: what it changes next it asks the database, so an unknown outcome does not matter."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

    Connection = psycopg.Connection[tuple[object, ...]]

SCHEMA = """
CREATE TABLE docs (id int PRIMARY KEY, title text, body text, price numeric(12, 2), at timestamptz DEFAULT now());
CREATE TABLE lines (doc int, line int, note text, amount float8, PRIMARY KEY (doc, line));
CREATE TABLE events (serial bigint, kind text, payload jsonb);
ALTER TABLE events REPLICA IDENTITY FULL;
CREATE TABLE extra (id int PRIMARY KEY, v text);
CREATE TABLE poison (id int PRIMARY KEY, at timestamp);
CREATE SEQUENCE serial;
CREATE PUBLICATION pub FOR TABLE docs, lines, events, extra, poison;
"""
TABLES = ("docs", "lines", "events", "extra")

_STATEMENTS = {
    "insert": "INSERT INTO docs (id, title, body, price) "
    "SELECT n, 't' || n, repeat(md5(n::text), 1 + n % 200), n / 7.0 "
    "FROM (SELECT floor(random() * 20000)::int AS n FROM generate_series(1, 20)) AS s ON CONFLICT DO NOTHING",
    "update": "UPDATE docs SET title = title || 'x', price = price + 1 WHERE id IN "
    "(SELECT id FROM docs TABLESAMPLE BERNOULLI (1) LIMIT 30)",
    "delete": "DELETE FROM docs WHERE id IN (SELECT id FROM docs TABLESAMPLE BERNOULLI (1) LIMIT 10)",
    "move": "UPDATE docs SET id = id + 100000 WHERE id IN (SELECT id FROM docs WHERE id < 100000 ORDER BY id LIMIT 2) "
    "AND id + 100000 NOT IN (SELECT id FROM docs)",
    "lines": "INSERT INTO lines SELECT floor(random() * 500)::int, n, 'l', random() FROM generate_series(1, 5) AS n "
    "ON CONFLICT (doc, line) DO UPDATE SET note = lines.note || '!', amount = excluded.amount",
    "events": "INSERT INTO events SELECT nextval('serial'), 'k' || n % 3, jsonb_build_object('n', n) "
    "FROM generate_series(1, 30) AS n",
    "forget": "DELETE FROM events WHERE serial < (SELECT max(serial) - 20000 FROM events)",
    "extra": "INSERT INTO extra SELECT floor(random() * 3000)::int, 'v' "
    "ON CONFLICT (id) DO UPDATE SET v = extra.v || '.'",
}
_RARELY = {
    "burst": "INSERT INTO events SELECT nextval('serial'), 'burst', NULL FROM generate_series(1, 20000)",
    "large": "INSERT INTO events SELECT nextval('serial'), repeat(md5(n::text), 20), jsonb_build_object('n', n) "
    "FROM generate_series(1, 60000) AS n",
    "truncate": "TRUNCATE lines",
    "column": "ALTER TABLE lines ADD COLUMN {name} int DEFAULT {number}",
}

_PREPARED = 0.02
"""Of the transactions; one at a time."""

_ENDED = 0.1
"""After each of those that follow."""

_MOST_FAILURES = 60
"""After the end of the load, to end what is prepared."""


class Beside(ABC):
    """What goes on in a thread of its own until it is stopped."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Go on until `_stop` is set."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after what is under way."""
        self._stop.set()
        self._thread.join()


class Load(Beside):
    """Transactions on a database, in a thread.

    Args:
        conninfo: Returns the connection string of the server that can be written to, asked at each connection.
        seed: Decides on what is done, not on when.
        pause_s: Between two transactions.
        prepares: Whether some are prepared, and end after others, or on a standby that was promoted meanwhile. What
            waits for the locks of one is given up, and that one ends. The server needs max_prepared_transactions.

    Attributes:
        counts: How often each statement was committed, and how often a connection was lost.
    """

    def __init__(self, conninfo: Callable[[], str], seed: int, pause_s: float, *, prepares: bool = False) -> None:
        self._conninfo = conninfo
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._columns = 0
        self._gids = 0
        self._prepares = prepares
        self._prepared = False
        self.counts: Counter[str] = Counter()
        super().__init__("load")

    def _run(self) -> None:
        failures_at_end = 0
        while not self._stop.is_set() or self._prepared:
            try:
                with psycopg.connect(self._conninfo(), connect_timeout=5, options="-c lock_timeout=1s") as connection:
                    while not self._stop.is_set():
                        self._transaction_or_end(connection)
                        time.sleep(self._pause_s)
                    self._end_prepared(connection)
            except psycopg.Error:
                self.counts["connection lost"] += 1
                failures_at_end += self._stop.is_set()
                # a server that was promoted may have what was ended
                self._prepared = self._prepares and failures_at_end < _MOST_FAILURES
                time.sleep(0.5)

    def _transaction_or_end(self, connection: Connection) -> None:
        try:
            self._transaction(connection)
        except psycopg.errors.LockNotAvailable:
            connection.rollback()
            self._end_prepared(connection)
        if self._prepared and self._random.random() < _ENDED:
            self._end_prepared(connection)

    def _end_prepared(self, connection: Connection) -> None:
        """Commit or roll back what is prepared."""
        connection.autocommit = True
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'load %'"
        for (gid,) in connection.execute(query).fetchall():
            end = self._random.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            connection.execute(f"{end} PREPARED '{gid}'".encode())
            self.counts[f"{end} PREPARED".lower()] += 1
        connection.autocommit = False
        self._prepared = False

    def _transaction(self, connection: Connection) -> None:
        names = self._random.choices(list(_STATEMENTS), k=self._random.choice((1, 1, 2, 4)))
        if self._random.random() < 0.003:
            names.append(self._random.choice(list(_RARELY)))
        for name in names:
            connection.execute(self._text(name).encode())
        if self._random.random() < 0.05:
            connection.rollback()
            self.counts["rollback"] += 1
            return
        if self._prepares and not self._prepared and self._random.random() < _PREPARED:
            self._gids += 1
            self._prepared = True
            connection.execute(f"PREPARE TRANSACTION 'load {self._gids}'".encode())
            connection.commit()
            self.counts["prepare"] += 1
            return
        connection.commit()
        self.counts["commit"] += 1
        self.counts.update(names)

    def _text(self, name: str) -> str:
        if name != "column":
            return {**_STATEMENTS, **_RARELY}[name]
        self._columns += 1
        return _RARELY[name].format(name=f"c{self._columns}", number=self._columns)

"""A seeded random workload on four tables: the same seed makes the same transactions, whatever the server.

All choices and values come from one generator, and a model of the keys that exist stands in for questions to
the server. The tables differ in what identifies a row: a bigint, two columns, a text, nothing.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import json
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Connection = psycopg.Connection[tuple[Any, ...]]
    Key = tuple[Any, ...]

SCHEMA: Final = """
CREATE TABLE public.docs (
    id bigint PRIMARY KEY,
    title text,
    body text,
    version int NOT NULL,
    score double precision,
    changed_at timestamptz
);
ALTER TABLE public.docs ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE public.lines (
    order_id int,
    line_no smallint,
    quantity int NOT NULL,
    price numeric(12,2),
    shipped_on date,
    PRIMARY KEY (order_id, line_no)
);
CREATE TABLE public.labels (
    code text PRIMARY KEY,
    active boolean,
    colour bytea,
    details jsonb
);
CREATE TABLE public.events (
    serial bigint NOT NULL,
    happened_at timestamp,
    kind text,
    amount real
);
"""

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "docs": ("id",),
    "lines": ("order_id", "line_no"),
    "labels": ("code",),
}
"""The tables whose rows can change, and what identifies a row."""

TABLES: Final = (*KEYS, "events")

# 8 kB pages keep a value in its row up to about 2 kB (TOAST_TUPLE_THRESHOLD); longer ones go out of line
_TOASTED_CHARACTERS = (2500, 9000)
_PREFIXES: Final = ("audit", "", "ä 'x'")
_EPOCH: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_LETTERS: Final = "abcdefghij ABC019'\"\\,;\t\näßΩ漢字🐘"


@dataclass(frozen=True)
class Operation:
    """Something a transaction can do; `weight` is its share among all operations."""

    name: str
    weight: int
    run: Callable[[Workload, Connection], None]


class Emitted(NamedTuple):
    """A logical message as it was emitted; its content never comes twice."""

    transactional: bool
    prefix: str
    content: str


class Workload:
    """The load on one database; a context manager that closes its connection.

    Args:
        conninfo: The publisher's database.
        seed: Decides on everything.
        operations: What transactions are made of.

    Attributes:
        counts: How often each operation and each outcome of a (sub)transaction occurred.
        messages: The logical messages that a subscriber gets: of what was rolled back, the non-transactional ones.
    """

    def __init__(self, conninfo: str, seed: int, operations: Sequence[Operation] | None = None) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.messages: list[Emitted] = []
        self.random = random.Random(seed)
        self._operations = tuple(operations or OPERATIONS)
        self._weights = [operation.weight for operation in self._operations]
        self._keys: dict[str, list[Key]] = {table: [] for table in KEYS}
        self._touched: dict[str, set[Key]] = {table: set() for table in KEYS}  # by the transaction that is open
        self._locked: dict[str, set[Key]] = {table: set() for table in KEYS}  # by others
        self._serial = 0
        self._connection: Connection = psycopg.connect(conninfo, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def create_tables(self) -> None:
        """Make the four empty tables."""
        self._connection.execute(SCHEMA.encode())

    def publication(self, name: str = "workload") -> str:
        """Publish the four tables; returns the publication's name."""
        self._connection.execute(
            sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
                sql.Identifier(name), sql.SQL(", ").join(sql.Identifier("public", table) for table in TABLES)
            )
        )
        return name

    def step(self, n_transactions: int) -> None:
        """Run so many transactions, one after the other; `counts` tells what they did."""
        for _ in range(n_transactions):
            self._transaction()

    def change(self, connection: Connection) -> None:
        """Do one operation, in the transaction that is open."""
        (operation,) = self.random.choices(self._operations, self._weights)
        self.counts[operation.name] += 1
        operation.run(self, connection)

    def _transaction(self) -> None:
        self._attempt("commit", "rollback", 0.1, self._changes)

    def _changes(self, n_operations: int | None = None) -> None:
        """Some operations: most transactions are small, a few make a batch of their own."""
        for _ in range(n_operations or self.random.choice((1, 1, 2, 3, 5, 8, 40))):
            self.change(self._connection)

    def _attempt(self, success: str, failure: str, failure_share: float, run: Callable[[], None]) -> None:
        """Run something in a (sub)transaction, and take all back in a share of the cases."""
        fails = self.random.random() < failure_share
        keys = copy.deepcopy(self._keys) if fails else {}
        n_messages = len(self.messages)
        with self._connection.transaction(force_rollback=fails):
            run()
        if fails:
            self._keys = keys
            self._take_messages(n_messages)
        self.counts[failure if fails else success] += 1

    def _take_messages(self, first: int) -> list[Emitted]:
        """Take back the transactional messages from a position on; the others were sent when they were emitted."""
        emitted = self.messages[first:]
        self.messages[first:] = [message for message in emitted if not message.transactional]
        return [message for message in emitted if message.transactional]

    def _subtransaction(self, connection: Connection) -> None:
        del connection
        changes = functools.partial(self._changes, self.random.randint(1, 4))
        self._attempt("release savepoint", "rollback to savepoint", 0.5, changes)

    def _nested(self, connection: Connection, depth: int = 3) -> None:
        """Savepoints in savepoints, each with changes around those in it and an end of its own."""

        def run() -> None:
            self._changes(1)
            for _ in range(self.random.randint(1, 2) if depth > 1 else 0):
                self._nested(connection, depth - 1)
                self._changes(1)

        self._attempt("release savepoint", "rollback to savepoint", 0.4, run)

    def _emit(self, connection: Connection, *, transactional: bool) -> None:
        self._serial += 1
        message = Emitted(transactional, self.random.choice(_PREFIXES), f"{self._serial} {self._text(0, 30)}")
        connection.execute("SELECT pg_logical_emit_message(%s, %s, %s::text)", message)
        self.messages.append(message)

    def _insert(self, connection: Connection) -> None:
        table = self.random.choice(TABLES)
        if table == "events":
            self._insert_row(connection, table, self._event())
            return
        key = self._new_key(table)
        self._insert_row(connection, table, self._identify(table, key) | self._values(table))
        self._keys[table].append(key)

    def _update(self, connection: Connection) -> None:
        """Change some columns of a row; `body` often stays, so that a toasted one is sent as unchanged."""
        picked = self._pick()
        if picked is None:
            return
        table, key = picked
        values = self._values(table)
        names = self.random.sample(sorted(values), self.random.randint(1, len(values)))
        if self.random.random() < 0.5:
            names = [name for name in names if name != "body"] or ["version"]
        self._update_row(connection, table, key, {name: values[name] for name in names})

    def _change_key(self, connection: Connection) -> None:
        picked = self._pick()
        if picked is None:
            return
        table, key = picked
        new_key = self._new_key(table)
        self._update_row(connection, table, key, self._identify(table, new_key))
        self._keys[table][self._keys[table].index(key)] = new_key

    def _delete(self, connection: Connection) -> None:
        picked = self._pick()
        if picked is None:
            return
        table, key = picked
        self._delete_row(connection, table, key)
        self._keys[table].remove(key)

    def _replace(self, connection: Connection) -> None:
        """Delete a row and insert another with its key: one key, two changes, often in one batch."""
        picked = self._pick()
        if picked is None:
            return
        table, key = picked
        self._delete_row(connection, table, key)
        self._insert_row(connection, table, self._identify(table, key) | self._values(table))

    def _insert_many(self, connection: Connection) -> None:
        """Make a burst of events by one statement each, as an application would."""
        for _ in range(self.random.randint(5, 50)):
            self._insert_row(connection, "events", self._event())

    def _pick(self) -> tuple[str, Key] | None:
        """A row that exists, None while there is none."""
        tables = [table for table, keys in self._keys.items() if keys]
        if not tables:
            return None
        table = self.random.choice(tables)
        key = self.random.choice(self._keys[table])
        self._touched[table].add(key)
        return table, key

    def _new_key(self, table: str) -> Key:
        """A key that is free; low numbers, so that keys come back after a delete."""
        taken = self._locked[table].union(self._keys[table])
        while True:
            # the room grows with the table, so that a free key is found soon
            number = self.random.randint(1, 2 * len(taken) + 50)
            key: Key = {
                "docs": (number,),
                "lines": (number // 4, number % 4),
                "labels": (f"{self.random.choice(_LETTERS.strip())}{number}",),
            }[table]
            if key not in taken:
                self._touched[table].add(key)
                return key

    @staticmethod
    def _identify(table: str, key: Key) -> dict[str, Any]:
        return dict(zip(KEYS[table], key, strict=True))

    def _values(self, table: str) -> dict[str, Any]:
        """Values for the columns outside the key; where the table allows it, one in eight is NULL."""
        values = {
            "docs": lambda: {
                "title": self._text(0, 20),
                "body": self._text(*_TOASTED_CHARACTERS),
                "score": self.random.uniform(-1e6, 1e6),
                "changed_at": self._time(),
            },
            "lines": lambda: {
                "price": f"{self.random.randint(-(10**9), 10**9)}.{self.random.randint(0, 99):02}",
                "shipped_on": self._time().date(),
            },
            "labels": lambda: {
                "active": self.random.random() < 0.5,
                "colour": self.random.randbytes(self.random.randint(0, 6)),
                "details": json.dumps({"n": self.random.randint(0, 9), "t": self._text(0, 5)}),
            },
        }[table]()
        for name in values:
            if self.random.random() < 0.125:
                values[name] = None
        number = self.random.randint(-(2**31), 2**31 - 1)
        return values | {"docs": {"version": number}, "lines": {"quantity": number}, "labels": {}}[table]

    def _event(self) -> dict[str, Any]:
        """An event; its serial number never comes twice, so that an event applied twice is seen."""
        self._serial += 1
        return {
            "serial": self._serial,
            "happened_at": self._time().replace(tzinfo=None),
            "kind": self.random.choice(("view", "click", "", None)),
            "amount": self.random.choice((0.0, -1.5, 1e30, None)),
        }

    def _text(self, shortest: int, longest: int) -> str:
        return "".join(self.random.choices(_LETTERS, k=self.random.randint(shortest, longest)))

    def _time(self) -> dt.datetime:
        return _EPOCH + dt.timedelta(microseconds=self.random.randint(0, 10**14))

    @staticmethod
    def _insert_row(connection: Connection, table: str, row: dict[str, Any]) -> None:
        connection.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier("public", table),
                sql.SQL(", ").join(map(sql.Identifier, row)),
                sql.SQL(", ").join(sql.Placeholder() * len(row)),
            ),
            list(row.values()),
        )

    @staticmethod
    def _update_row(connection: Connection, table: str, key: Key, values: dict[str, Any]) -> None:
        cursor = connection.execute(
            sql.SQL("UPDATE {} SET {} WHERE {}").format(
                sql.Identifier("public", table), _pairs(values, ", "), _pairs(KEYS[table], " AND ")
            ),
            [*values.values(), *key],
        )
        assert cursor.rowcount == 1, (table, key)

    @staticmethod
    def _delete_row(connection: Connection, table: str, key: Key) -> None:
        cursor = connection.execute(
            sql.SQL("DELETE FROM {} WHERE {}").format(sql.Identifier("public", table), _pairs(KEYS[table], " AND ")),
            key,
        )
        assert cursor.rowcount == 1, (table, key)


def _pairs(names: Any, between: str) -> sql.Composed:
    """`"a" = %s` for each name."""
    return sql.SQL(between).join(sql.SQL("{} = {}").format(sql.Identifier(n), sql.Placeholder()) for n in names)


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("insert", 40, Workload._insert),
    Operation("update", 30, Workload._update),
    Operation("delete", 12, Workload._delete),
    Operation("key change", 8, Workload._change_key),
    Operation("replace", 4, Workload._replace),
    Operation("insert many", 3, Workload._insert_many),
    Operation("savepoint", 3, Workload._subtransaction),
    Operation("nested savepoints", 2, Workload._nested),
    Operation("message", 2, functools.partial(Workload._emit, transactional=True)),
    Operation("non-transactional message", 2, functools.partial(Workload._emit, transactional=False)),
)
"""What the transactions are made of. A table of one's own may leave some out, or add others."""

"""Histories of rows and catalog events from a seed: the publisher's transactions, and what the operator does meanwhile.

A history is made on a real server: each statement is proposed by what the catalog has at that moment, and one that
PostgreSQL refuses is left out. So the same seed makes the same history on servers of one version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg

from tests.oracle.catalog_events.publication import ServerPublication
from tests.oracle.catalog_events.tables import TYPE_DEFINITIONS, Statement, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.fix_postgres import Publisher

TYPES: Final = ("int", "bigint", "text", "numeric(10,2)", "date", "a.mood", "a.score", "a.pair")
WIDER: Final = {
    "integer": ("bigint", "numeric(30,0)", "text"),
    "bigint": ("numeric(30,0)", "int", "text"),
    "numeric(10,2)": ("numeric(16,4)", "numeric(10,0)"),
    "date": ("timestamp",),
    "text": ("varchar(9)",),
    "a.mood": ("text",),
    "a.score": ("int", "bigint"),
}
NAMES: Final = ("c", "d", "e", "F")
_TRIES: Final = 4
"""Of a kind of statement, until PostgreSQL accepts one."""


@dataclass(frozen=True)
class Transaction:
    """Statements in one transaction, all of which PostgreSQL accepts.

    Attributes:
        statements: Those that count.
        taken_back: What a subtransaction after them does that is rolled back.
    """

    statements: tuple[Statement, ...]
    taken_back: tuple[Statement, ...] = ()

    @property
    def text(self) -> str:
        """For the publisher."""
        lines = [statement.text for statement in self.statements]
        if self.taken_back:
            lines += ["SAVEPOINT before", *(undone.text for undone in self.taken_back), "ROLLBACK TO before"]
        return ";\n".join(["BEGIN", *lines, "COMMIT"] if len(lines) > 1 else lines)


class CatchUp(NamedTuple):
    """The bridge is started, catches up, and ends."""


class Run(NamedTuple):
    """The bridge is started, and runs until it is to catch up."""


class Refresh(NamedTuple):
    """The operator refreshes both subscriptions, whatever waits."""


Step = Transaction | CatchUp | Run | Refresh


class Generator(ServerPublication):
    """Proposes the statements of a history.

    Args:
        publisher: The server on which they are tried; it must then execute those of each transaction.
        seed: Decides on everything.
    """

    def __init__(self, publisher: Publisher, seed: int) -> None:
        super().__init__(publisher, seed)
        self._serial = 0
        self._enum_values = 0

    # --- rows ---------------------------------------------------------------------------------------------------------

    def row_change(self) -> Statement | None:
        """INSERT, UPDATE, DELETE or TRUNCATE, by a root or by a partition."""
        table = self.random.choice(self.tables()).name
        columns = self.columns(table)
        others = [name for name in columns if name != "id"]
        kind = self.random.choice(("insert",) * 8 + ("update",) * 6 + ("key", "key", "delete", "delete", "truncate"))
        ids = [n for (n,) in self._publisher.query(f"SELECT DISTINCT id FROM {table} ORDER BY id")]
        if kind == "truncate" and self.random.random() < 0.3:
            return Statement(f"TRUNCATE {table}", changes_rows=True)
        if kind == "insert" or not ids or (kind == "update" and not others):
            named = others if self.random.random() < 0.6 else self.random.sample(others, len(others) // 2)
            self._serial += 1
            values = [self._id(table), *(self.value(columns[name]) for name in named)]
            return Statement(
                f"INSERT INTO {table} ({', '.join(['id', *named])}) VALUES ({', '.join(values)})", (), True
            )
        row = f"id = {self.random.choice(ids)}"
        if kind == "update":
            name = self.random.choice(others)
            return Statement(f"UPDATE {table} SET {name} = {self.value(columns[name])} WHERE {row}", (), True)
        if kind == "key":
            self._serial += 1
            return Statement(f"UPDATE {table} SET id = {self._id(table)} WHERE {row}", (), True)
        return Statement(f"DELETE FROM {table} WHERE {row}", (), True)

    def _id(self, table: str) -> str:
        """A row's id: mostly one that no table has had, so that rows of different tables can come together."""
        if self.random.random() < 0.1:
            return str(self.random.randrange(1, self._serial + 1))
        return str(self._serial + 100 * self.random.randrange(3) + 1000 * table.startswith("b."))

    # --- catalog events -----------------------------------------------------------------------------------------------

    def catalog_event(self) -> Callable[[], Statement | None]:
        """A kind of event, most of which no message announces, or not at once."""
        return self.random.choice(
            [
                *[self.add_column] * 4,
                *[self.drop_column] * 2,
                *[self.rename_column] * 2,
                *[self.alter_type] * 3,
                *[self.default] * 1,
                *[self.attach] * 4,
                *[self.detach] * 3,
                *[self.create] * 2,
                *[self.rename_table] * 1,
                *[self.set_schema] * 1,
                *[self.identity] * 3,
                *[self.enum_or_composite] * 2,
                *[self.domain] * 1,
                *[self.alter_publication] * 6,
                *[self.drop_table] * 1,
            ]
        )

    def _alter(self, action: str, subscriber: str | None = None, table: Table | None = None) -> Statement | None:
        """ALTER TABLE of a table that is no partition, and of the subscriber's whole tree."""
        table = table or self.some(partition=False)
        if table is None:
            return None
        there = [f"ALTER TABLE {name} {subscriber or action}" for name in self.tree(table.name)]
        return Statement(f"ALTER TABLE {table.name} {action}", tuple(there))

    def add_column(self) -> Statement | None:
        """A column: with a constant default, a volatile one, or none; the names come back."""
        type_ = self.random.choice(TYPES)
        name = self.random.choice(NAMES)
        name = f'"{name}"' if name.isupper() else name
        plain = f"ADD COLUMN {name} {type_}"
        kind = self.random.choice(("", "", "constant", "constant", "volatile"))
        if kind == "volatile" and type_ in {"int", "text"}:
            return self._alter(f"{plain} DEFAULT (random() * 1e6)::int", plain)
        if kind == "constant":
            return self._alter(f"{plain} DEFAULT {self.value(type_)}::{type_}")
        return self._alter(plain)

    def _altered_column(self) -> tuple[Table, str, str] | None:
        table = self.some(partition=False)
        columns = list(self.columns(table.name).items())[1:] if table else []
        return (table, *self.random.choice(columns)) if table and columns else None

    def drop_column(self) -> Statement | None:
        """A column goes, on the subscriber too."""
        chosen = self._altered_column()
        return self._alter(f"DROP COLUMN {chosen[1]}", None, chosen[0]) if chosen else None

    def rename_column(self) -> Statement | None:
        """A column has another name."""
        chosen = self._altered_column()
        return (
            self._alter(f"RENAME COLUMN {chosen[1]} TO {self.random.choice(NAMES[:3])}", None, chosen[0])
            if chosen
            else None
        )

    def alter_type(self) -> Statement | None:
        """Another type: most of them keep every value."""
        chosen = self._altered_column()
        if chosen is None or chosen[2] not in WIDER:
            return None
        table, name, type_ = chosen
        to = self.random.choice(WIDER[type_])
        using = f" USING {name} + 1" if type_ == "integer" and to == "bigint" and self.random.random() < 0.2 else ""
        using = f" USING {name}::text::{to}" if to == "text" else using
        return self._alter(f"ALTER COLUMN {name} DROP DEFAULT, ALTER COLUMN {name} TYPE {to}{using}", None, table)

    def default(self) -> Statement | None:
        """Another default for rows to come."""
        chosen = self._altered_column()
        if chosen is None:
            return None
        table, name, type_ = chosen
        return self._alter(f"ALTER COLUMN {name} SET DEFAULT {self.value(type_)}", None, table)

    def attach(self) -> Statement | None:
        """A table becomes a partition, of a root or of a partition."""
        root = self.some("p")
        fitting = [
            table.name
            for table in self.tables()
            if root and not table.parent and table.name != root.name
            if self.columns(table.name).items() == self.columns(root.name).items()
        ]
        if root is None or not fitting:
            return None
        leaf = self.random.choice(fitting)
        keys = [f"SELECT add_key('{name}')" for name in self.tree(leaf)] if self.key(root.name) else []
        return Statement(f"ALTER TABLE {root.name} ATTACH PARTITION {leaf} {self._bounds()}", tuple(keys))

    def _bounds(self) -> str:
        begin = self.random.randrange(4) * 100
        end = self.random.choice((begin + 100, 10000))
        return self.random.choice((f"FOR VALUES FROM ({begin}) TO ({end})", "DEFAULT"))

    def detach(self) -> Statement | None:
        """A partition becomes a table of its own."""
        leaf = self.some(partition=True)
        return Statement(f"ALTER TABLE {leaf.parent} DETACH PARTITION {leaf.name}") if leaf else None

    def create(self) -> Statement | None:
        """A new table like another one, or a new partition."""
        self._serial += 1
        name, root = f"{self.random.choice('aab')}.n{self._serial}", self.some("p")
        if root is not None and self.random.random() < 0.7:
            there = f"CREATE TABLE {name} (LIKE {root.name} INCLUDING ALL)"
            return Statement(f"CREATE TABLE {name} PARTITION OF {root.name} {self._bounds()}", (there,))
        like = self.some()
        return _everywhere(f"CREATE TABLE {name} (LIKE {like.name} INCLUDING ALL)") if like else None

    def rename_table(self) -> Statement | None:
        """A table has another name."""
        table = self.some()
        self._serial += 1
        return _everywhere(f"ALTER TABLE {table.name} RENAME TO m{self._serial}") if table else None

    def set_schema(self) -> Statement | None:
        """A table has another schema."""
        table = self.some()
        return (
            _everywhere(f"ALTER TABLE {table.name} SET SCHEMA {'a' if table.name[0] == 'b' else 'b'}")
            if table
            else None
        )

    def drop_table(self) -> Statement | None:
        """A table goes, and one of its name comes; the subscriber's stays as it is."""
        table = self.some("r", partition=False)
        if table is None:
            return None
        like = f"CREATE TABLE {table.name}_like (LIKE {table.name} INCLUDING ALL)"
        short = table.name.partition(".")[2]
        again = f"ALTER TABLE {table.name}_like RENAME TO {short}"
        return Statement(f"{like};\nDROP TABLE {table.name};\n{again}")

    def identity(self) -> Statement | None:
        """Another replica identity, or a primary key that comes or goes."""
        table = self.some()
        if table is None:
            return None
        choice = self.random.choice(("FULL", "FULL", "DEFAULT", "key", "key", "NOTHING"))
        if choice != "key":
            return Statement(f"ALTER TABLE {table.name} REPLICA IDENTITY {choice}")
        key = self.key(table.name)
        self._serial += 1
        action = f"DROP CONSTRAINT {key}" if key else f"ADD CONSTRAINT k{self._serial} PRIMARY KEY (id)"
        there = [f"SELECT {'drop' if key else 'add'}_key('{name}')" for name in self.tree(table.name)]
        return Statement(f"ALTER TABLE {table.name} {action}", tuple(there))

    def enum_or_composite(self) -> Statement | None:
        """A label or an attribute is added or renamed."""
        self._serial += 1
        labels = [label for (label,) in self._publisher.query("SELECT unnest(enum_range(NULL::a.mood))::text")]
        return _everywhere(
            self.random.choice(
                (
                    f"ALTER TYPE a.mood ADD VALUE 'l{self._serial}'",
                    f"ALTER TYPE a.mood RENAME VALUE '{self.random.choice(labels)}' TO 'l{self._serial}'",
                    f"ALTER TYPE a.pair ADD ATTRIBUTE x{self._serial} int",
                )
            )
        )

    def domain(self) -> Statement | None:
        """A domain's constraint comes or goes, or its default changes."""
        return _everywhere(
            self.random.choice(
                (
                    "ALTER DOMAIN a.score DROP CONSTRAINT low",
                    "ALTER DOMAIN a.score ADD CONSTRAINT low CHECK (VALUE < 100000)",
                    f"ALTER DOMAIN a.score SET DEFAULT {self.random.randrange(50)}",
                )
            )
        )

    # --- transactions -------------------------------------------------------------------------------------------------

    def schema(self) -> list[str]:
        """Two to four tables, one partitioned, with rows."""
        keys = self.random.choice(("PRIMARY KEY", "PRIMARY KEY", ""))
        made = [
            TYPE_DEFINITIONS,
            f"CREATE TABLE a.t (id int {keys}, c int, d text, e a.mood)",
            f"CREATE TABLE a.p (id int {keys}, c int, d text) PARTITION BY RANGE (id)",
            "CREATE TABLE a.p0 PARTITION OF a.p FOR VALUES FROM (0) TO (100)",
            "CREATE TABLE a.p1 PARTITION OF a.p FOR VALUES FROM (100) TO (400)",
        ]
        if self.random.random() < 0.4:
            made.append("CREATE TABLE a.q (LIKE a.p INCLUDING ALL) PARTITION BY RANGE (id)")
        if self.random.random() < 0.4:
            made.append("CREATE TABLE b.u (id int PRIMARY KEY, c a.score, d a.pair)")
        if self.random.random() < 0.3:
            made += ["CREATE TABLE a.p2 PARTITION OF a.p DEFAULT PARTITION BY RANGE (id)"]
        if not keys:
            made += [f"ALTER TABLE a.{name} REPLICA IDENTITY FULL" for name in ("t", "p", "p0", "p1")]
        return made

    def transaction(self, n_statements: int, *, rows_only: bool = False) -> Transaction | None:
        """Try statements in a transaction, and take it back; None if PostgreSQL refuses all."""
        accepted: list[Statement] = []
        taken_back: list[Statement] = []
        via_root = self.via_root
        self._publisher.execute("BEGIN")
        for _ in range(n_statements):
            self._propose(accepted, rows_only=rows_only)
        if accepted and n_statements > 2 and self.random.random() < 0.15:
            counted = self.via_root
            self._propose(taken_back)
            self.via_root = counted
        self._publisher.execute("ROLLBACK")
        if not accepted:
            self.via_root = via_root
            return None
        return Transaction(tuple(accepted), tuple(taken_back))

    def _propose(self, accepted: list[Statement], *, rows_only: bool = False) -> None:
        propose = self.row_change if rows_only or self.random.random() < 0.65 else self.catalog_event()
        for _ in range(_TRIES):
            via_root = self.via_root
            self._publisher.execute("SAVEPOINT proposed")
            try:
                if (statement := propose()) is not None:
                    self._publisher.execute(statement.text)
                    accepted.append(statement)
                    return
            except psycopg.Error:
                self._publisher.execute("ROLLBACK TO proposed")
                self.via_root = via_root

    def closing(self) -> Sequence[Statement]:
        """A row for each table that has the last definition: the stream has one only with a row."""
        made = []
        for table in self.tables():
            self._serial += 1
            made.append(Statement(f"INSERT INTO {table.name} (id) VALUES ({self._id(table.name)})", (), True))
        return made


def _everywhere(text: str) -> Statement:
    """The same on both sides."""
    return Statement(text, (text,))

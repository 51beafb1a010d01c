"""Histories of rows and catalog events from a seed: the publisher's transactions, and what the operator does meanwhile.

    .venv/bin/python -m tests.oracle.catalog_events --seeds 200      # each beside a native subscriber
    .venv/bin/python -m tests.oracle.catalog_events --seed 17        # with its statements and all that was said

A history is made on a real server: each statement is proposed by what the catalog has at that moment, and one that
PostgreSQL refuses is left out. So the same seed makes the same history on servers of one version.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg

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
NAMES: Final = ("c", "d", "e", "f", "F")
_TRIES: Final = 4
"""Of a kind of statement, until PostgreSQL accepts one."""
TYPE_DEFINITIONS: Final = """
CREATE SCHEMA a; CREATE SCHEMA b;
CREATE TYPE a.mood AS ENUM ('ok', 'sad'); CREATE TYPE a.pair AS (x int, y text);
CREATE DOMAIN a.score AS int CONSTRAINT low CHECK (VALUE < 100000);
"""
FILTERS: Final = ("id % 3 <> 0", "id > 4", "id < 1000", "id % 2 = 0 OR id > 30")


@dataclass(frozen=True)
class Statement:
    """A statement, and what the operator does on a native subscriber for it.

    Attributes:
        text: For the publisher.
        subscriber: For the subscriber, where all tables are plain ones.
        changes_rows: Whether it is an INSERT, an UPDATE, a DELETE or a TRUNCATE.
    """

    text: str
    subscriber: tuple[str, ...] = ()
    changes_rows: bool = False


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


class Table(NamedTuple):
    """A table in the server's catalog; `parent` is empty for one that is no partition."""

    name: str
    kind: str
    parent: str
    identity: str


class Generator:
    """Proposes the statements of a history.

    Args:
        publisher: The server on which they are tried; it must then execute those of each transaction.
        seed: Decides on everything.
    """

    def __init__(self, publisher: Publisher, seed: int) -> None:
        self.random = random.Random(seed)
        self._publisher = publisher
        self._serial = 0
        self._enum_values = 0
        self.via_root = self.random.random() < 0.5
        self.scope = self.random.choice(("table", "table", "table", "schema", "all"))

    # --- what there is ------------------------------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        """All tables, by name."""
        rows = self._publisher.query(
            "SELECT c.oid::regclass::text, c.relkind::text, coalesce(i.inhparent::regclass::text, ''),"
            " c.relreplident::text FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
            " WHERE c.relnamespace IN ('a'::regnamespace, 'b'::regnamespace) AND c.relkind IN ('r', 'p')"
            " ORDER BY c.relname, c.relnamespace::regnamespace::text"
        )
        return [Table(*row) for row in rows]

    def tree(self, table: str) -> list[str]:
        """A table and its partitions at all levels."""
        query = "SELECT relid::regclass::text FROM pg_partition_tree(%s) ORDER BY 1"
        return [name for (name,) in self._publisher.query(query, (table,))] or [table]

    def columns(self, table: str) -> dict[str, str]:
        """A table's columns with their types, `id` first."""
        query = (
            "SELECT quote_ident(attname), format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname <> 'id', attnum"
        )
        return dict(self._publisher.query(query, (table,)))

    def value(self, type_: str) -> str:
        """A literal of a type."""
        number = self.random.randrange(1, 99)
        if self.random.random() < 0.1:
            return "NULL"
        if type_ == "a.mood":
            labels = self._publisher.query("SELECT unnest(enum_range(NULL::a.mood))::text")
            return f"'{self.random.choice(labels)[0]}'"
        if type_ == "a.pair":
            query = (
                "SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 'a.pair'::regclass AND attnum > 0"
            )
            fields = [self.value_of(number, field) for (field,) in self._publisher.query(query)]
            return f"ROW({', '.join(fields)})"
        return self.value_of(number, type_)

    @staticmethod
    def value_of(number: int, type_: str) -> str:
        """A literal that stands for a number."""
        if type_.startswith(("text", "character")):
            return f"'v{number}'"
        if type_ == "date" or type_.startswith("timestamp"):
            return f"DATE '2024-01-01' + {number}"
        return f"{number}.25" if type_.startswith("numeric") else str(number)

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
            named = self.random.sample(others, self.random.randrange(len(others) + 1))
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

    def _some(self, kinds: str = "rp", *, partition: bool | None = None) -> Table | None:
        chosen = [
            table
            for table in self.tables()
            if table.kind in kinds and (partition is None or bool(table.parent) is partition)
        ]
        return self.random.choice(chosen) if chosen else None

    def _alter(self, action: str, subscriber: str | None = None, table: Table | None = None) -> Statement | None:
        """ALTER TABLE of a table that is no partition, and of the subscriber's whole tree."""
        table = table or self._some(partition=False)
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
        table = self._some(partition=False)
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
        root = self._some("p")
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

    def key(self, table: str) -> str:
        """The name of a table's primary key; empty if it has none."""
        query = "SELECT quote_ident(conname) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'"
        rows = self._publisher.query(query, (table,))
        return str(rows[0][0]) if rows else ""

    def _bounds(self) -> str:
        begin = self.random.randrange(4) * 100
        end = self.random.choice((begin + 100, 10000))
        return self.random.choice((f"FOR VALUES FROM ({begin}) TO ({end})", "DEFAULT"))

    def detach(self) -> Statement | None:
        """A partition becomes a table of its own."""
        leaf = self._some(partition=True)
        return Statement(f"ALTER TABLE {leaf.parent} DETACH PARTITION {leaf.name}") if leaf else None

    def create(self) -> Statement | None:
        """A new table like another one, or a new partition."""
        self._serial += 1
        name, root = f"{self.random.choice('aab')}.n{self._serial}", self._some("p")
        if root is not None and self.random.random() < 0.7:
            there = f"CREATE TABLE {name} (LIKE {root.name} INCLUDING ALL)"
            return Statement(f"CREATE TABLE {name} PARTITION OF {root.name} {self._bounds()}", (there,))
        like = self._some()
        return _everywhere(f"CREATE TABLE {name} (LIKE {like.name} INCLUDING ALL)") if like else None

    def rename_table(self) -> Statement | None:
        """A table has another name."""
        table = self._some()
        self._serial += 1
        return _everywhere(f"ALTER TABLE {table.name} RENAME TO m{self._serial}") if table else None

    def set_schema(self) -> Statement | None:
        """A table has another schema."""
        table = self._some()
        return (
            _everywhere(f"ALTER TABLE {table.name} SET SCHEMA {'a' if table.name[0] == 'b' else 'b'}")
            if table
            else None
        )

    def drop_table(self) -> Statement | None:
        """A table goes, and one of its name comes; the subscriber's stays as it is."""
        table = self._some("r", partition=False)
        if table is None:
            return None
        like = f"CREATE TABLE {table.name}_like (LIKE {table.name} INCLUDING ALL)"
        short = table.name.partition(".")[2]
        again = f"ALTER TABLE {table.name}_like RENAME TO {short}"
        return Statement(f"{like};\nDROP TABLE {table.name};\n{again}")

    def identity(self) -> Statement | None:
        """Another replica identity, or a primary key that comes or goes."""
        table = self._some()
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

    # --- publications -------------------------------------------------------------------------------------------------

    def publication(self) -> str:
        """CREATE PUBLICATION."""
        target = {"all": "ALL TABLES", "schema": "TABLES IN SCHEMA a"}.get(self.scope) or self._listed()
        return f"CREATE PUBLICATION pub FOR {target} WITH (publish_via_partition_root = {self.via_root})"

    def _listed(self) -> str:
        tables = [table for table in self.tables() if not table.parent]
        chosen = [table for table in tables if self.random.random() < 0.8] or tables[:1]
        return "TABLE " + ", ".join(map(self._entry, chosen))

    def _entry(self, chosen: Table) -> str:
        """A table in a publication: whole, or with a column list, a row filter, or both."""
        table, listed = chosen.name, ""
        if self.random.random() < 0.25 and (self.via_root or chosen.kind == "r"):
            columns = list(self.columns(table))
            listed = f" ({', '.join(name for name in columns if name == 'id' or self.random.random() < 0.7)})"
        filtered = self.random.random() < 0.3 and (self.via_root or chosen.kind == "r")
        return table + listed + (f" WHERE ({self.random.choice(FILTERS)})" if filtered else "")

    def alter_publication(self) -> Statement | None:
        """Tables, lists, filters, actions and the root option change; or the publication is dropped and made again."""
        table = self._some()
        publish = self.random.choice(
            ("insert, update, delete, truncate", "insert, update, delete, truncate", "insert, delete")
        )
        kind = self.random.choice(("tables", "tables", "tables", "publish", "root", "again"))
        if kind == "publish":
            return Statement(f"ALTER PUBLICATION pub SET (publish = '{publish}')")
        if kind == "root":
            self.via_root = not self.via_root
            return Statement(f"ALTER PUBLICATION pub SET (publish_via_partition_root = {self.via_root})")
        if kind == "again":
            return Statement(f"DROP PUBLICATION pub;\n{self.publication()}")
        if self.scope == "schema":
            return Statement(
                f"ALTER PUBLICATION pub {self.random.choice(('SET', 'ADD', 'DROP'))} TABLES IN SCHEMA {self.random.choice('aab')}"
            )
        if table is None or self.scope == "all":
            return None
        action = self.random.choice(
            (f"ADD TABLE {self._entry(table)}", f"DROP TABLE {table.name}", f"SET {self._listed()}")
        )
        return Statement(f"ALTER PUBLICATION pub {action}")

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


def main() -> None:
    """Run seeds beside a native subscriber, on a server and in a Spark session of their own."""
    import argparse
    import tempfile
    import time
    from pathlib import Path

    from bridge import session
    from bridge.demo.server import EmbeddedPostgres
    from tests.fix_postgres import TEST_SETTINGS, Server
    from tests.fix_spark import YOUNG_JVM
    from tests.oracle.catalog_events_bridge import Beside

    parser = argparse.ArgumentParser(prog="python -m tests.oracle.catalog_events", description=main.__doc__)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, action="append", help="this one, and print all of it; may be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(settings=TEST_SETTINGS, fsync=False) as embedded:
        server = Server(str(embedded.folder), embedded.port, embedded.user, None, embedded)
        folder = Path(name)
        spark = session.start("local[2]", {**YOUNG_JVM, "spark.sql.warehouse.dir": str(folder / "warehouse")})
        failed = []
        for seed in options.seed or range(options.first, options.first + options.seeds):
            begin_s = time.monotonic()
            beside = Beside(spark, server, folder, seed)
            try:
                outcome = beside.run()
            finally:
                beside.close()
            if outcome.failures:
                failed.append(seed)
            text = str(outcome) if outcome.failures or options.seed else f"seed {seed}:"
            print(text, dict(outcome.kinds), f"{time.monotonic() - begin_s:.1f} s", flush=True)
        print(f"{len(failed)} failed: {failed}")
        spark.stop()


if __name__ == "__main__":
    main()

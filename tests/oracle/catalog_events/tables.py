"""What a history of catalog events has on its server: its tables, their columns and values for them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.fix_postgres import Publisher

TYPE_DEFINITIONS: Final = """
CREATE SCHEMA a; CREATE SCHEMA b;
CREATE TYPE a.mood AS ENUM ('ok', 'sad'); CREATE TYPE a.pair AS (x int, y text);
CREATE DOMAIN a.score AS int CONSTRAINT low CHECK (VALUE < 100000);
"""


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


class Table(NamedTuple):
    """A table in the server's catalog; `parent` is empty for one that is no partition."""

    name: str
    kind: str
    parent: str
    identity: str


class ServerTables:
    """The tables of the schemas `a` and `b`; `random` decides on values."""

    def __init__(self, publisher: Publisher, seed: int) -> None:
        self.random = random.Random(seed)
        self._publisher = publisher

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

    def key(self, table: str) -> str:
        """The name of a table's primary key; empty if it has none."""
        query = "SELECT quote_ident(conname) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'"
        rows = self._publisher.query(query, (table,))
        return str(rows[0][0]) if rows else ""

    def some(self, kinds: str = "rp", *, partition: bool | None = None) -> Table | None:
        chosen = [
            table
            for table in self.tables()
            if table.kind in kinds and (partition is None or bool(table.parent) is partition)
        ]
        return self.random.choice(chosen) if chosen else None

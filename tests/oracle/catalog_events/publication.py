"""The publication of a history of catalog events, and how it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.oracle.catalog_events.tables import ServerTables, Statement, Table

if TYPE_CHECKING:
    from tests.fix_postgres import Publisher

FILTERS: Final = ("id % 3 <> 0", "id > 4", "id < 1000", "id % 2 = 0 OR id > 30")


class ServerPublication(ServerTables):
    """The publication `pub`: of tables, of a schema's, or of all; with lists, filters and roots, or without."""

    def __init__(self, publisher: Publisher, seed: int) -> None:
        super().__init__(publisher, seed)
        self.via_root = self.random.random() < 0.5
        self.scope = self.random.choice(("table", "table", "table", "schema", "all"))

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
        table = self.some()
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
            action, schema = self.random.choice(("SET", "ADD", "DROP")), self.random.choice("aab")
            return Statement(f"ALTER PUBLICATION pub {action} TABLES IN SCHEMA {schema}")
        if table is None or self.scope == "all":
            return None
        action = self.random.choice(
            (f"ADD TABLE {self._entry(table)}", f"DROP TABLE {table.name}", f"SET {self._listed()}")
        )
        return Statement(f"ALTER PUBLICATION pub {action}")

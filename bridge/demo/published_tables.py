"""The published tables by pg_publication_tables: the comparison must not rely on the code that it checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_TABLES = """
SELECT p.schemaname, p.tablename, p.rowfilter,
       ARRAY(SELECT jsonb_build_array(a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid::bigint,
                                      coalesce(a.attnum = ANY (i.indkey), false))
               FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
              WHERE a.attrelid = format('%%I.%%I', p.schemaname, p.tablename)::regclass
                AND a.attname = ANY (p.attnames)
              ORDER BY a.attnum)
  FROM pg_publication_tables p
 WHERE p.pubname = %s
 ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A published column.

    Attributes:
        type: Its type in SQL, with the modifier: `numeric(12,2)`.
        in_key: Whether it belongs to the primary key.
    """

    name: str
    type: str
    type_oid: int
    in_key: bool


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication.

    Attributes:
        row_filter: An SQL expression; None if all rows are published.
    """

    namespace: str
    name: str
    columns: tuple[Column, ...]
    row_filter: str | None

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted."""
        return f"{self.namespace}.{self.name}"

    def count(self, connection: Connection) -> int:
        """Return the number of published rows."""
        row = connection.execute(sql.SQL("SELECT count(*)") + self._source()).fetchone()
        return int(row[0]) if row else 0

    def rows(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the published rows, with the columns in the order of `columns` and values as the cursor loads them."""
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.columns)
        return cursor.execute(sql.SQL("SELECT ") + names + self._source()).fetchall()

    def _source(self) -> sql.Composed:
        # the server itself wrote the text of the filter
        where = sql.SQL(f" WHERE {self.row_filter}" if self.row_filter else "")
        return sql.SQL(" FROM {}{}").format(sql.Identifier(self.namespace, self.name), where)


def published_tables(connection: Connection, publication: str) -> list[PublishedTable]:
    """Return the publication's tables, sorted by name, from a server of version 15 or later."""
    return [
        PublishedTable(
            namespace,
            name,
            tuple(Column(*column) for column in columns),
            row_filter,
        )
        for namespace, name, row_filter, columns in connection.execute(_TABLES, (publication,))
    ]

"""Publications as values: what a CREATE PUBLICATION statement says, and the statement written back.

No server in here: tables are named, not looked up. What a publication comes to on a server is `membership`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from bridge.sqltext.keywords import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable

Action = Literal["insert", "update", "delete", "truncate"]
GeneratedColumns = Literal["none", "stored"]

ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
DML: Final[tuple[Action, ...]] = ("insert", "update", "delete")
DEFAULT_SCHEMA: Final = "public"
"""Where a table named without a schema is: the search_path that a file has no way to say."""


@dataclass(frozen=True, slots=True)
class PublicationTable:
    """A table as one publication names it.

    Attributes:
        only: Without the tables that inherit from it. A partitioned table's partitions are never meant.
        columns: The column list; None without one. PostgreSQL does not keep its order.
        row_filter: The text between the parentheses of WHERE, comments and all; None without one.
        place: Where it stands, for errors: `file:line:column: `, or empty.
    """

    namespace: str
    name: str
    only: bool = False
    columns: tuple[str, ...] | None = None
    row_filter: str | None = None
    place: str = field(default="", compare=False)

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication.

    Attributes:
        all_tables: FOR ALL TABLES; `tables` and `schemas` are empty then.
        schemas: Of FOR TABLES IN SCHEMA.
        actions: What `publish` has.
        via_root: publish_via_partition_root.
        generated_columns: publish_generated_columns (PostgreSQL 18): for tables without a column list.
        place: As a table's.
    """

    name: str
    tables: tuple[PublicationTable, ...] = ()
    schemas: tuple[str, ...] = ()
    all_tables: bool = False
    actions: frozenset[Action] = frozenset(ACTIONS)
    via_root: bool = False
    generated_columns: GeneratedColumns = "none"
    place: str = field(default="", compare=False)


def render(publications: Iterable[Publication]) -> str:
    """CREATE PUBLICATION statements that `parser.parse` reads back to equal values."""
    return "\n".join(_statement(publication) for publication in publications)


def _statement(publication: Publication) -> str:
    objects = [f"TABLE {_table(table)}" for table in publication.tables]
    objects += [f"TABLES IN SCHEMA {quote_identifier(schema)}" for schema in publication.schemas]
    lines = [f"CREATE PUBLICATION {quote_identifier(publication.name)}"]
    if publication.all_tables:
        lines[0] += " FOR ALL TABLES"
    elif objects:
        lines[0] += " FOR"
        lines.append(",\n".join(f"    {item}" for item in objects))
    options = []
    if publication.actions != frozenset(ACTIONS):
        options.append(f"publish = '{', '.join(action for action in ACTIONS if action in publication.actions)}'")
    if publication.via_root:
        options.append("publish_via_partition_root = true")
    if publication.generated_columns != "none":
        options.append(f"publish_generated_columns = {publication.generated_columns}")
    if options:
        lines.append(f"    WITH ({', '.join(options)})")
    return "\n".join(lines) + ";\n"


def _table(table: PublicationTable) -> str:
    text = "ONLY " if table.only else ""
    text += f"{quote_identifier(table.namespace)}.{quote_identifier(table.name)}"
    if table.columns is not None:
        text += f" ({', '.join(map(quote_identifier, table.columns))})"
    if table.row_filter is not None:
        text += f" WHERE ({table.row_filter})"
    return text

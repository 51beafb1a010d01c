"""Publications as values: the content of a CREATE PUBLICATION statement, which can be written back.

Tables are only named; `membership` looks them up. The parameters of WITH are validated as `parse_publication_options`
does (publicationcmds.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypedDict, get_args

from pgbridge.bridge.sqltext.lexer import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Action = Literal["insert", "update", "delete", "truncate"]
GeneratedColumns = Literal["none", "stored"]

ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
DML: Final[tuple[Action, ...]] = ("insert", "update", "delete")
DEFAULT_SCHEMA: Final = "public"
"""The schema of a table named without one; a file has no search_path."""


@dataclass(frozen=True, slots=True)
class PublicationTable:
    """A table as one publication names it.

    Attributes:
        only: Whether tables that inherit from it are left out. Partitions are not members by inheritance.
        columns: The column list; None without one. Its order has no meaning.
        row_filter: The text between the parentheses of WHERE, with its comments; None without one.
        place: Where the file names it, for errors: `file:line:column: `, or empty.
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
        except_tables: Those that its EXCEPT leaves out (PostgreSQL 19); they have no column list and no row filter.
        all_sequences: FOR ALL SEQUENCES (PostgreSQL 19), also beside ALL TABLES. No stream carries a sequence.
        schemas: FOR TABLES IN SCHEMA.
        actions: `publish`.
        via_root: publish_via_partition_root.
        generated_columns: publish_generated_columns (PostgreSQL 18): for tables without a column list.
        place: Where the file has it, for errors: `file:line:column: `, or empty.
    """

    name: str
    tables: tuple[PublicationTable, ...] = ()
    schemas: tuple[str, ...] = ()
    all_tables: bool = False
    actions: frozenset[Action] = frozenset(ACTIONS)
    via_root: bool = False
    generated_columns: GeneratedColumns = "none"
    except_tables: tuple[PublicationTable, ...] = ()
    all_sequences: bool = False
    place: str = field(default="", compare=False)

    @property
    def everything(self) -> tuple[str, ...]:
        """The clauses that include whatever exists: ALL TABLES, ALL SEQUENCES, or both."""
        kinds = {"ALL TABLES": self.all_tables, "ALL SEQUENCES": self.all_sequences}
        return tuple(kind for kind, has in kinds.items() if has)


def render(publications: Iterable[Publication]) -> str:
    """CREATE PUBLICATION statements; `definitions.parse` reads them back as equal values."""
    return "\n".join(_statement(publication) for publication in publications)


def _statement(publication: Publication) -> str:
    objects = [f"TABLE {_table(table)}" for table in publication.tables]
    objects += [f"TABLES IN SCHEMA {quote_identifier(schema)}" for schema in publication.schemas]
    lines = [f"CREATE PUBLICATION {quote_identifier(publication.name)}"]
    if publication.everything:
        first, *second = publication.everything
        if publication.except_tables:
            excepted = ",\n".join(f"        TABLE {_table(table)}" for table in publication.except_tables)
            first += f" EXCEPT (\n{excepted})"
        lines[0] += f" FOR {', '.join([first, *second])}"
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


class Options(TypedDict, total=False):
    """`Publication`'s fields."""

    actions: frozenset[Action]
    via_root: bool
    generated_columns: GeneratedColumns


class OptionError(Exception):
    """A parameter is refused; has PostgreSQL's message and DETAIL."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


def options_of(given: Mapping[str, str | None]) -> Options:
    """Read parameters.

    Args:
        given: Values by name; None for a parameter without a value.

    Raises:
        OptionError: A name or value that PostgreSQL does not know.
    """
    options = Options()
    for name, value in given.items():
        match name:
            case "publish":
                options["actions"] = _actions(value)
            case "publish_via_partition_root":
                options["via_root"] = _boolean(name, value)
            case "publish_generated_columns":
                options["generated_columns"] = _generated(name, value)
            case _:
                raise OptionError(
                    f'unrecognized publication parameter: "{name}"',
                    "The parameters are publish, publish_via_partition_root and publish_generated_columns.",
                )
    return options


def _actions(value: str | None) -> frozenset[Action]:
    if value is None:
        raise OptionError("publish requires a parameter")
    words = [word.strip() for word in value.split(",")] if value.strip() else []
    if any(not re.fullmatch(r'"[^"]+"|[^\s",]+', word) for word in words):
        raise OptionError('invalid list syntax in parameter "publish"')
    names = [word[1:-1] if word[0] == '"' else word.lower() for word in words]
    if unknown := [name for name in names if name not in ACTIONS]:
        raise OptionError(
            f'unrecognized value for publication option "publish": "{unknown[0]}"',
            f"The values are {', '.join(ACTIONS)}.",
        )
    return frozenset(action for action in ACTIONS if action in names)


def _boolean(name: str, value: str | None) -> bool:
    """`defGetBoolean`: no value means true."""
    known = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
    if value is None:
        return True
    if value.lower() not in known:
        raise OptionError(f"{name} requires a Boolean value")
    return known[value.lower()]


def _generated(name: str, value: str | None) -> GeneratedColumns:
    match (value or "").lower():
        case "none":
            return "none"
        case "stored":
            return "stored"
    raise OptionError(
        f'invalid value for publication parameter "{name}": "{value or ""}"',
        'Valid values are "none" and "stored".',
    )

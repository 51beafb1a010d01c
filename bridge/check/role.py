"""The script that makes the least-privileged role, `sql/role.psql`, filled in for a subscription. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.receive.publisher import quoted_name, quoted_table

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class RoleNames:
    """The names that the script has.

    Attributes:
        role_exists: Whether the server knows the role: then it is altered, not created.
        missing_publications: Publications that the database does not have.
        tables: (schema, name) of each published table; none if they are not known.
    """

    role: str
    database: str
    role_exists: bool = False
    missing_publications: Sequence[str] = ()
    tables: Sequence[tuple[str, str]] = ()


def filled_in(script: str, names: RoleNames) -> str:
    """Return the script with names in the places of psql's variables, and without the header's usage by hand.

    Unknown tables are written as `public.…`, for an operator to fill in.
    """
    tables = [quoted_table(*table) for table in names.tables] or ["public.…"]
    schemas = list(dict.fromkeys(quoted_name(schema) for schema, _ in names.tables)) or ["public"]
    values = {':"role"': quoted_name(names.role), ':"database"': quoted_name(names.database)}
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("--") and ("psql -v" in line or "pgbridge check --sql" in line):
            continue
        text = line
        if names.role_exists:
            text = text.replace("CREATE ROLE", "ALTER ROLE")
        for variable, value in values.items():
            text = text.replace(variable, value)
        if line.startswith("--"):
            lines.append(text)
        elif ':"publication"' in text:
            lines += [
                text.replace(':"publication"', quoted_name(name)).replace(':"schema".:"table"', ", ".join(tables))
                for name in names.missing_publications
            ]
        elif ':"table"' in text:
            lines += [text.replace(':"schema".:"table"', table) for table in tables]
        elif ':"schema"' in text:
            lines += [text.replace(':"schema"', schema) for schema in schemas]
        else:
            lines.append(text)
    while lines[-1].startswith("--"):  # what it would be about is there already
        lines.pop()
    return "\n".join(lines) + "\n"

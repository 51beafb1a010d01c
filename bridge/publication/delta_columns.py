"""Names that Delta or a catalog does not support, and the published tables that are left out because of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.sqltext.keywords import quote_identifier
from bridge.warehouse import unsupported_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bridge.publication.published_table import PublishedTable

_RESERVED: Final = {
    # ParquetFileFormat.ROW_INDEX_TEMPORARY_COLUMN_NAME
    "_tmp_metadata_row_index": "Spark's Parquet reader",
    # DeltaParquetFileFormat.IS_ROW_DELETED_COLUMN_NAME
    "__delta_internal_is_row_deleted": "Delta's reader of deletion vectors",
    # MergeIntoCommandBase and MergeOutputGeneration: the names of columns beside the table's
    **dict.fromkeys(
        ("_file_name_", "_row_dropped_", "_row_id_", "_source_row_present_", "_target_row_present_"), "Delta's MERGE"
    ),
}
"""Names, in lower case, of columns that Spark and Delta add to a table's while they read or change it. They do not look
whether the table has one, and then cannot read the table, or not tell both apart. Of all names in their sources these
are those with which a way to commit fails; pgbridge's own columns carry positions, not names."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why Delta cannot hold a table.

    Attributes:
        reason: One sentence.
        hint: What to change on the server; then a refresh subscribes to the table.
    """

    reason: str
    hint: str


def unsupported(namespace: str, table: str, names: Sequence[str], warehouse: str = "") -> Unsupported | None:
    """Why Delta, or a warehouse's catalog, cannot hold a table with columns of these names; None if it can."""
    relation = f"{namespace}.{table}"
    if (why := unsupported_name(warehouse, namespace, table)) is not None:
        return Unsupported(
            f'table "{relation}" cannot be in {warehouse}: {why}', "rename it, or configure a path as the warehouse"
        )
    if not names:
        return Unsupported(
            f'table "{relation}" has no published column, and a Delta table needs one',
            f"add one: ALTER TABLE {quote_identifier(namespace)}.{quote_identifier(table)} ADD COLUMN …",
        )
    for name in names:
        if (user := _RESERVED.get(name.lower())) is not None:
            return Unsupported(
                f'column "{name}" of table "{relation}" has a name that {user} uses itself',
                "rename it, or publish the table with a column list that leaves it out",
            )
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(folded(name), name)
        if other != name:
            return Unsupported(
                f'columns "{other}" and "{name}" of table "{relation}" differ only in case, '
                "which a Delta table cannot hold",
                "rename one of them, or publish the table with a column list that leaves one out",
            )
    return None


def unsupported_table(table: PublishedTable, warehouse: str = "") -> Unsupported | None:
    """As `unsupported`, of a published table."""
    return unsupported(table.namespace, table.name, [column.name for column in table.columns], warehouse)


def unsupported_tables(
    tables: Mapping[tuple[str, str], PublishedTable], subscribed: Iterable[tuple[str, str]], warehouse: str = ""
) -> dict[tuple[str, str], Unsupported]:
    """The published tables that cannot be held, without those that are subscribed: they have their target."""
    found = {}
    for name in sorted(tables.keys() - set(subscribed)):
        why = unsupported_table(tables[name], warehouse)
        if why is not None:
            found[name] = why
    return found


def folded(name: str) -> str:
    """A name with its case folded as Java's `equalsIgnoreCase` does, by which Spark compares names.

    Unlike `lower()` it unites letters with the same capital, as the two small sigmas, and leaves a letter alone whose
    capital is two letters (ß).
    """
    upper = (c.upper() if len(c.upper()) == 1 else c for c in name)
    return "".join(c.lower()[0] for c in upper)

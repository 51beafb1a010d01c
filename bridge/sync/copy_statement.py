"""The statements that read a published table: SELECT with its row filters, and COPY of a range of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.sql import Identifier

from protocol.copy import copy_expression
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.publication.published_table import PublishedTable
    from bridge.sync.block_ranges import BlockRange
    from protocol.values.types import TypeInfo


def select_statement(table: PublishedTable, expressions: Sequence[str] | None = None) -> str:
    """Return `SELECT … FROM …` for a published table, without a WHERE clause.

    It has ONLY, because children of an inheritance parent are published as tables of their own; but not for a
    partitioned table, whose rows are all in its partitions (`fetch_remote_table_info`, tablesync.c).

    Args:
        table: The table.
        expressions: What to select; None for the published columns.
    """
    if expressions is None:
        expressions = [Identifier(column.name).as_string() for column in table.columns]
    only = "" if table.relkind == "p" else "ONLY "
    return f"SELECT {', '.join(expressions)} FROM {only}{Identifier(table.namespace, table.name).as_string()}"


def where_clause(row_filters: Sequence[str], blocks: BlockRange | None = None, also: str = "") -> str:
    """Return ` WHERE …`, true for rows that pass one of the filters, lie in the blocks, and meet one more condition.

    It is empty if all rows do.
    """
    filtered = " OR ".join(f"({text})" for text in row_filters)
    conditions = [*(blocks.conditions if blocks is not None else []), *([also] if also else [])]
    if filtered:
        conditions = [f"({filtered})" if conditions else filtered, *conditions]
    return " WHERE " + " AND ".join(conditions) if conditions else ""


def copy_select(table: PublishedTable, types: Mapping[int, TypeInfo]) -> str:
    """Return the SELECT for COPY: each published column in the form in which the decoder reads its type."""
    resolved = {column.name: resolve(column.type_oid, column.typmod, types) for column in table.columns}
    return select_statement(table, [copy_expression(name, type_) for name, type_ in resolved.items()])


def copy_statement(select: str, row_filters: Sequence[str], blocks: BlockRange, also: str = "") -> str:
    """Return the COPY statement that reads a range of a table; the server computes filters and a further condition."""
    return f"COPY ({select}{where_clause(row_filters, blocks, also)}) TO STDOUT (FORMAT binary)"

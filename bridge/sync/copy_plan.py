"""The statements that read a published table: SELECT with its row filters, and COPY of a range of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from psycopg.sql import Identifier

from protocol.bulk.copy import copy_expression
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.publication.published_table import PublishedTable
    from protocol.values.pg_type import TypeInfo


RANGE_BYTES = 128 << 20
"""Size of a range on the server's disk: some seconds of work, and a Parquet file of the size that Delta aims at."""

_MOST_RANGES = 4096
_LEAST_BLOCKS = 64  # of the largest relation: less is not worth a statement over all partitions


@dataclass(frozen=True, slots=True)
class BlockRange:
    """A range of blocks of a table; for a partitioned table, the same range of each partition.

    PostgreSQL reads it without reading the rest of the table (a TID range scan, from version 14 on). A row keeps its
    ctid as long as the table is not rewritten, for which `bridge.sync.table_lock` cares.

    `end` is the number of the first block after the range; None for no end.
    """

    first: int = 0
    end: int | None = None

    @property
    def conditions(self) -> list[str]:
        """SQL conditions on the ctid of a row in the range; none if the range is the whole table."""
        lower = [f"ctid >= '({self.first},0)'::tid"] if self.first else []
        return lower if self.end is None else [*lower, f"ctid < '({self.end},0)'::tid"]


def block_ranges(blocks: Sequence[int], block_bytes: int) -> list[BlockRange]:
    """Divide a table into ranges of about RANGE_BYTES, which several connections copy under one snapshot.

    A partitioned table is read by its own name, as PostgreSQL's subscriber reads it, so that no privileges on the
    partitions are needed. A range then covers the same block numbers of all partitions, and is chosen so that all
    ranges have about the same total size.

    Args:
        blocks: The number of blocks of the table, or of each of its partitions. The last range has no end, because
            blocks may be added later.

    Returns:
        Adjacent ranges that together cover the table.
    """
    total = sum(blocks)
    largest = max(blocks, default=0)
    count = min(-(-total * block_bytes // RANGE_BYTES), largest // _LEAST_BLOCKS, _MOST_RANGES)
    if count <= 1:
        return [BlockRange()]
    # below[i]: blocks of all relations with a number less than ends[i]; linear in between
    ends = np.unique([0, *blocks])
    below = np.minimum.outer(ends, np.array(blocks)).sum(axis=1)
    inner = np.interp(np.arange(1, count) * total / count, below, ends).astype(np.int64)
    bounds = [0, *np.unique(inner[inner > 0]).tolist()]
    return [BlockRange(first, end) for first, end in zip(bounds, [*bounds[1:], None], strict=True)]


def select_statement(table: PublishedTable, expressions: Sequence[str] | None = None) -> str:
    """Return `SELECT … FROM …` for a published table's columns, or for expressions; without a WHERE clause.

    It has ONLY, because children of an inheritance parent are published as tables of their own; but not for a
    partitioned table, whose rows are all in its partitions (`fetch_remote_table_info`, tablesync.c).
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

"""Divides a large table into ranges of blocks, which several connections copy under one snapshot.

PostgreSQL reads a range of blocks without reading the rest of the table (a TID range scan, from version 14 on). A row
keeps its ctid as long as the table is not rewritten, for which `bridge.sync.table_lock` cares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

RANGE_BYTES = 128 << 20
"""Size of a range on the server's disk: some seconds of work, and a Parquet file of the size that Delta aims at."""

_MOST_RANGES = 4096
_LEAST_BLOCKS = 64  # of the largest relation: less is not worth a statement over all partitions


@dataclass(frozen=True, slots=True)
class BlockRange:
    """A range of blocks of a table; for a partitioned table, the same range of each partition.

    Attributes:
        first: The first block's number.
        end: The number of the first block after the range; None for no end.
    """

    first: int = 0
    end: int | None = None

    @property
    def conditions(self) -> list[str]:
        """SQL conditions on the ctid of a row in the range; none if the range is the whole table."""
        lower = [f"ctid >= '({self.first},0)'::tid"] if self.first else []
        return lower if self.end is None else [*lower, f"ctid < '({self.end},0)'::tid"]


def block_ranges(blocks: Sequence[int], block_bytes: int) -> list[BlockRange]:
    """Divide a table into ranges of about RANGE_BYTES.

    A partitioned table is read by its own name, as PostgreSQL's subscriber reads it, so that no privileges on the
    partitions are needed. A range then covers the same block numbers of all partitions, and is chosen so that all
    ranges have about the same total size.

    Args:
        blocks: The number of blocks of the table, or of each of its partitions. The last range has no end, because
            blocks may be added later.
        block_bytes: The size of a block.

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

"""Ranges of ctid: how a large table's copy is divided, so that several connections read it under one snapshot.

PostgreSQL reads a range of blocks without the rest of the table (a TID range scan, from version 14 on). While the
table is not rewritten, and it is not while somebody has a lock on it, a row stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

RANGE_BYTES = 128 << 20
"""Of the table as stored: some seconds of work, and a Parquet file of the size that Delta aims at."""

_MOST_RANGES = 4096
_LEAST_BLOCKS = 64  # of one relation: fewer are not worth planning a statement over all partitions


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks of a relation, of each leaf if it is a partitioned one.

    Attributes:
        first: The first block's number.
        end: The number of the first block behind them; None when they go on to the end.
    """

    first: int = 0
    end: int | None = None

    @property
    def conditions(self) -> list[str]:
        """What the ctid of a row in these blocks is, in SQL; nothing where it is any row's."""
        lower = [f"ctid >= '({self.first},0)'::tid"] if self.first else []
        return lower if self.end is None else [*lower, f"ctid < '({self.end},0)'::tid"]


def block_ranges(blocks: Sequence[int], block_bytes: int) -> list[BlockRange]:
    """Divide relations that are read by one statement into ranges of about RANGE_BYTES.

    A partitioned table is read by its own name, as PostgreSQL's subscriber does, which takes no privilege on the
    partitions; a range then is of all of its partitions, so that small and large ones divide into even parts.

    Args:
        blocks: How many each relation has. More may have been added meanwhile: the last range has no end.
        block_bytes: The size of a block.

    Returns:
        Ranges one after another, together everything.
    """
    total = sum(blocks)
    largest = max(blocks, default=0)
    count = min(-(-total * block_bytes // RANGE_BYTES), largest // _LEAST_BLOCKS, _MOST_RANGES)
    if count <= 1:
        return [BlockRange()]
    # below the n-th block of each relation lie so many of all: straight lines from one relation's end to the next's
    ends = np.unique([0, *blocks])
    below = np.minimum.outer(ends, np.array(blocks)).sum(axis=1)
    inner = np.interp(np.arange(1, count) * total / count, below, ends).astype(np.int64)
    bounds = [0, *np.unique(inner[inner > 0]).tolist()]
    return [BlockRange(first, end) for first, end in zip(bounds, [*bounds[1:], None], strict=True)]

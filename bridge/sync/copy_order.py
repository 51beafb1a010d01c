"""By which column a copy sorts the rows of a large table before it writes them.

A commit looks rows up by their key. If files have ranges of it, and are sorted by it, only pages are read that may have
one of the keys (`bridge.apply.delta.key_condition`); keys that come in the order of time, as those of a sequence do,
leave files so anyhow. Others have to be sorted, for which Spark needs the ranges before it has the rows. ANALYZE of the
server has found them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.errors import PublisherError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bridge.receive.publisher import Publisher
    from bridge.sync.table_lock import TableLock
    from bridge.table_layout import Layout

LEAST_BYTES: Final = 256 << 20
MOST_BYTES: Final = 64 << 30
"""Sizes on the server's disk of the tables that are sorted. Smaller ones are read quickly, whatever their order. For
larger ones Spark's scratch folders may lack the room, as it writes all rows there first."""

_SORTED: Final = 0.9
"""From this correlation on, by its amount, the server's blocks are about in the column's order."""

_PREFIX_BYTES: Final = 64  # of texts, by which they are divided


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """How rows are divided for sorting; each part is sorted by itself.

    `bounds` are the least value of each part but the first, in the order of Arrow and Spark; at least one.
    """

    column: str
    bounds: tuple[int, ...] | tuple[bytes, ...]

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self.bounds) + 1

    def part_of(self, values: pa.Array) -> pa.Array:
        """The number of each value's part, as int32."""
        plain: np.typing.NDArray[np.void | np.int64]
        if pa.types.is_string(values.type):
            padding = pa.scalar(bytes(_PREFIX_BYTES), pa.binary())
            padded = pc.binary_join_element_wise(values.cast(pa.binary()), padding, b"")
            prefixes = pc.binary_slice(padded, 0, _PREFIX_BYTES).cast(pa.binary(_PREFIX_BYTES))
            plain = np.frombuffer(prefixes.buffers()[1], f"S{_PREFIX_BYTES}", len(prefixes), 0)
        else:
            plain = values.to_numpy(zero_copy_only=False)
        return pa.array(np.searchsorted(np.array(self.bounds), plain, side="right"), pa.int32())


def copy_order(
    publisher: Publisher, relid: int, key: Mapping[str, pa.DataType], *, table_bytes: int | None, parts: int
) -> CopyOrder | None:
    """The order in which a copy writes a table; None if it writes rows as they come.

    Args:
        key: Its key's columns, with their types in the target.
        table_bytes: Its size on the server's disk; None if it is not known.
        parts: In how many parts rows are to be sorted, at most.
    """
    if len(key) != 1 or table_bytes is None or not LEAST_BYTES < table_bytes <= MOST_BYTES:
        return None
    ((column, kind),) = key.items()
    if not (pa.types.is_string(kind) or pa.types.is_signed_integer(kind)):
        return None
    with suppress(PublisherError):  # a server on which nobody sees statistics
        for row in publisher.rows("key_statistics", {"relid": relid, "key_column": column}):
            correlation, values = row["correlation"], row["bounds"]
            if correlation is not None and abs(correlation) < _SORTED and values:
                bounds = _bounds(values, parts, texts=pa.types.is_string(kind))
                return CopyOrder(column, bounds) if bounds else None
    return None


def mirror_order(
    publisher: Publisher, relid: int, key: Sequence[str], schema: pa.Schema, lock: TableLock, layout: Layout
) -> CopyOrder | None:
    """The order in which the rows of a mirror are written, unless the user has chosen another layout."""
    if layout.partition_by or layout.cluster_by not in {(), tuple(key)}:
        return None
    types = {field.name: field.type for field in schema if field.name in key}
    parts = round(lock.size.rows / lock.rows_per_file)
    return copy_order(publisher, relid, types, table_bytes=lock.table_bytes, parts=parts)


def _bounds(values: Sequence[str], parts: int, *, texts: bool) -> tuple[int, ...] | tuple[bytes, ...]:
    """The least values of parts with about as many rows each, given values at even distances."""
    ordered = sorted({text.encode()[:_PREFIX_BYTES] for text in values} if texts else {int(text) for text in values})
    at = np.linspace(0, len(ordered) - 1, min(parts, len(ordered)) + 1).round().astype(int)[1:-1]
    return tuple(ordered[i] for i in np.unique(at[at > 0]))

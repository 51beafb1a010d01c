"""How a copy divides the rows of a large table by a column of its key.

A commit looks rows up by their key. If files have ranges of it, and are sorted by it, only pages are read that may have
one of the keys (`bridge.lake.commit.key_condition`). Rows whose keys come in the order of time, as those of a sequence
do, lie in that order on the server: they are read range by range, by an index, and a copy that is cut short goes on
with the ranges that it lacks. Others have to be sorted, for which Spark needs the ranges before it has the rows.
ANALYZE of the server has found them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import psycopg
import pyarrow as pa

from pgbridge.bridge.batch.range_cut import PREFIX_BYTES, Bounds, RangeCut, range_of
from pgbridge.bridge.catalog.copied_ranges import CopiedRange, RangedCopy
from pgbridge.bridge.runtime import errors
from pgbridge.bridge.sync.table_reading import RANGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.bridge.runtime import warehouse
    from pgbridge.bridge.sync.table_reading import TableLock

LEAST_BYTES: Final = 256 << 20
MOST_BYTES: Final = 64 << 30
"""Sizes on the server's disk of the tables that are sorted. Smaller ones are read quickly, whatever their order. For
larger ones Spark's scratch folders may lack the room, as it writes all rows there first."""

LEAST_RANGED_BYTES: Final = 1 << 30
"""From this size on a copy takes minutes."""

_LEAST_RANGE_BYTES: Final = 32 << 20
_RANGES: Final = 64, 1000
"""A copy that is cut short loses the ranges that are being read, so there are many; each is a Spark job."""

_SORTED: Final = 0.9
"""From this correlation on, by its amount, the server's blocks are about in the column's order."""

_UUID: Final = 2950


# --- Rows that have to be sorted ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """How rows are divided for sorting; each part is sorted by itself.

    `bounds` are the least value of each part but the first, in the order of Arrow and Spark; at least one.
    """

    column: str
    bounds: Bounds

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self.bounds) + 1

    def part_of(self, values: pa.Array) -> pa.Array:
        """The number of each value's part, as int32."""
        return pa.array(range_of(values, self.bounds), pa.int32())


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
    for row in _statistics(publisher, relid, column):
        if abs(row["correlation"]) < _SORTED:
            bounds = _bounds(row["bounds"], parts, texts=pa.types.is_string(kind))
            return CopyOrder(column, bounds) if bounds else None
    return None


def mirror_order(
    publisher: Publisher, relid: int, key: Sequence[str], schema: pa.Schema, lock: TableLock, layout: warehouse.Layout
) -> CopyOrder | None:
    """The order in which the rows of a mirror are written, unless the user has chosen another layout."""
    if layout.partition_by or layout.cluster_by not in {(), tuple(key)}:
        return None
    types = {field.name: field.type for field in schema if field.name in key}
    parts = round(lock.size.rows / lock.rows_per_file)
    return copy_order(publisher, relid, types, table_bytes=lock.table_bytes, parts=parts)


# --- Rows that lie in order -----------------------------------------------------------------------------------------


def is_large(lock: TableLock) -> bool:
    """Whether the copy of a table is worth the ranges."""
    return lock.table_bytes is not None and lock.table_bytes >= LEAST_RANGED_BYTES


def ranged_copy(
    publisher: Publisher,
    table: PublishedTable,
    key: Sequence[str],
    schema: pa.Schema,
    lock: TableLock,
    source: str,
) -> RangedCopy | None:
    """The ranges in which a mirror's copy reads a large table; None if its rows do not lie in the key's order.

    Args:
        key: The columns by which changes will find rows.
        schema: The columns in the target.
        source: What is copied to what, in short.
    """
    size_bytes = lock.table_bytes or 0
    least, most = _RANGES
    range_bytes = min(max(size_bytes // least, _LEAST_RANGE_BYTES), RANGE_BYTES)
    parts = key_parts(publisher, table, key, schema, min(size_bytes // range_bytes, most))
    if parts is None:
        return None
    pairs = enumerate(pairwise([None, *parts.bounds, None]))
    ranges = tuple(CopiedRange(number, lower, upper) for number, (lower, upper) in pairs)
    return RangedCopy(parts.column, source, ranges)


class KeyParts(NamedTuple):
    """Parts of a table of about as many rows each: the least value of each but the first, as text, in order.

    `texts`: Delta has texts, in whose order these are.
    """

    column: str
    bounds: tuple[str, ...]
    texts: bool


def key_parts(
    publisher: Publisher, table: PublishedTable, key: Sequence[str], schema: pa.Schema, parts: int
) -> KeyParts | None:
    """Divide a table by a column of its key in whose order its rows lie; None if there is none, or only one part.

    Args:
        key: The columns by which changes find rows.
        schema: The columns in the target.
        parts: Into how many parts, at most.
    """
    for column in table.columns:
        if column.name not in key:
            continue
        kind = schema.field(column.name).type
        texts = column.type_oid == _UUID and pa.types.is_string(kind)
        if not (texts or pa.types.is_signed_integer(kind)):
            continue
        for row in _statistics(publisher, table.relid, column.name):
            if row["leads_index"] and abs(row["correlation"]) >= _SORTED:
                bounds = _bounds(row["bounds"], parts, texts=texts)
                texts_of = (each.decode() if isinstance(each, bytes) else str(each) for each in bounds)
                return KeyParts(column.name, tuple(texts_of), texts) if bounds else None
    return None


def range_condition(column: str, lower: str | None, upper: str | None) -> str:
    """The SQL condition of a range's rows; the server knows the type of what is quoted."""
    name = psycopg.sql.Identifier(column).as_string()
    ends = ((">=", lower), ("<", upper))
    return " AND ".join(f"{name} {than} {psycopg.sql.quote(end)}" for than, end in ends if end is not None)


def condition_of(copy: RangedCopy, number: int) -> str:
    """The SQL condition of the rows of one of its ranges."""
    each = copy.ranges[number]
    return range_condition(copy.key_column, each.lower, each.upper)


def range_cut(copy: RangedCopy, rel: RelRow) -> RangeCut:
    """What a copied table has, by range, with what it has got since."""
    lowers = [each.lower for each in copy.ranges if each.lower is not None]
    numbers = all(lower.removeprefix("-").isdigit() for lower in lowers)
    bounds: Bounds = tuple(map(int, lowers)) if numbers else tuple(lower.encode() for lower in lowers)
    lsns = tuple(max(each.lsn, rel.position) for each in copy.ranges if each.lsn is not None)
    return RangeCut(copy.key_column, bounds, lsns)


def _statistics(publisher: Publisher, relid: int, column: str) -> Iterable[Mapping[str, Any]]:
    """What ANALYZE has found of a column; nothing on a server on which nobody sees statistics."""
    with suppress(errors.PublisherError):
        rows = list(publisher.rows("key_statistics", {"relid": relid, "key_column": column}))
        return [row for row in rows if row["correlation"] is not None and row["bounds"]]
    return []


def _bounds(values: Sequence[str], parts: int, *, texts: bool) -> Bounds:
    """The least values of parts with about as many rows each, given values at even distances."""
    if texts:
        ordered = sorted({text.encode()[:PREFIX_BYTES] for text in values})
        at = np.linspace(0, len(ordered) - 1, min(parts, len(ordered)) + 1).round().astype(int)[1:-1]
        return tuple(ordered[i] for i in np.unique(at[at > 0]))
    numbers = sorted({int(text) for text in values})
    last, between = len(numbers) - 1, set[int]()
    for part in range(1, parts):  # in whole numbers: a float does not hold all of 64 bits
        number, rest = divmod(part * last, parts)
        step = numbers[min(number + 1, last)] - numbers[number]
        between.add(numbers[number] + step * rest // parts)
    return tuple(sorted(between - {numbers[0]}))

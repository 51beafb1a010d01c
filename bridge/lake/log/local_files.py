"""Reads data files of a Delta table in a local folder, which its log names: that costs no job of Spark's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_VERSION: Final = b"org.apache.spark.version"
_OTHER_CALENDAR: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Spark's marks in a file. Without the first one, before version 3 and with the others, days before 1582 may be others
than Arrow reads (`DataSourceUtils.datetimeRebaseSpec`)."""

_AT_ONCE_BYTES: Final = 16 << 20

_LEAST_SHARE: Final = 4
"""What a file takes without compression is at most so many times what its values take in memory."""


def columns_of(
    folder: Path, add: Mapping[str, Any], names: Sequence[str], *, most: tuple[int, int] | None = None
) -> pa.Table | None:
    """Columns of a data file, in the types that it has, with the rows that a deletion vector marks.

    Args:
        folder: The table's.
        add: The file's action in the log.
        names: The columns' names in the file.
        most: The most rows, and bytes of memory, that the columns may have; None for any.

    Returns:
        None if they have more, or are not to be had here. Then Spark says what it is: the file is damaged, has no such
        column, or not the rows that the log says; or its days may be of another calendar.
    """
    try:
        with pq.ParquetFile(folder / unquote(add["path"]), page_checksum_verification=True) as content:
            if _has_days(content.schema_arrow) and not _of_this_calendar(content.metadata.metadata or {}):
                return None
            if most is None:
                values = content.read(columns=list(names), use_threads=False)
            else:
                values = _few(content, names, *most)
    except (OSError, pa.ArrowException):
        return None
    if values is None or sorted(values.column_names) != sorted(names):
        return None
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    return values.select(names) if len(values) == rows else None


def _few(content: pq.ParquetFile, names: Sequence[str], most_rows: int, most_bytes: int) -> pa.Table | None:
    """Columns that take so much; None if they take more: a small file may hold a large value for many rows."""
    metadata, schema = content.metadata, content.schema_arrow
    # a row's values are among the distinct ones of its row group, but in an array one may come any number of times
    value_bytes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    if metadata.num_rows > most_rows or sum(value_bytes) > _LEAST_SHARE * most_bytes:
        return None
    nested = any(pa.types.is_nested(field.type) for field in schema)
    rows_at_once = 1 if nested else _AT_ONCE_BYTES // (max(value_bytes, default=0) + 1) + 1
    size_bytes, batches = 0, list[pa.RecordBatch]()
    for batch in content.iter_batches(batch_size=rows_at_once, columns=list(names), use_threads=False):
        size_bytes += batch.nbytes
        if size_bytes > most_bytes:
            return None
        batches.append(batch)
    read = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in schema.names if name in names]))
    return read.combine_chunks()


def _of_this_calendar(marks: Mapping[bytes, bytes]) -> bool:
    major = marks.get(_VERSION, b"").partition(b".")[0]
    return major.isdigit() and int(major) >= 3 and not any(mark in marks for mark in _OTHER_CALENDAR)


def _has_days(type_: pa.Schema | pa.DataType) -> bool:
    if isinstance(type_, pa.Schema):
        return any(_has_days(field.type) for field in type_)
    if pa.types.is_nested(type_):
        return any(_has_days(type_.field(number).type) for number in range(type_.num_fields))
    return bool(pa.types.is_temporal(type_))

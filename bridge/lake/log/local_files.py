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

_OF_SPARK: Final = b"org.apache.spark.version"
_OTHER_CALENDAR: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Spark's marks in a file. By the second ones, days before 1582 are others than Arrow reads."""


def columns_of(
    folder: Path, add: Mapping[str, Any], names: Sequence[str], *, most_bytes: int | None = None
) -> pa.Table | None:
    """Columns of a data file, in the types that it has, with the rows that a deletion vector marks.

    Args:
        folder: The table's.
        add: The file's action in the log.
        names: The columns' names in the file.
        most_bytes: The file is not read if its rows might take more memory: it may hold one large value for many rows.

    Returns:
        None if they are not to be had here. Then Spark says what it is: the file cannot be read, has no such column, or
        not the rows that the log says; or it is of a writer that may have used another calendar.
    """
    try:
        with pq.ParquetFile(folder / unquote(add["path"])) as content:
            marks = content.metadata.metadata or {}
            if _OF_SPARK not in marks or any(mark in marks for mark in _OTHER_CALENDAR):
                return None
            if most_bytes is not None and _bytes_at_most(content.metadata) > most_bytes:
                return None
            values = content.read(columns=list(names), use_threads=False)
    except (OSError, pa.ArrowException):
        return None
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    return values.select(names) if sorted(values.column_names) == sorted(names) and len(values) == rows else None


def _bytes_at_most(metadata: pq.FileMetaData) -> int:
    """A bound of what all rows take in memory: each as much as all distinct values of its row group do."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    return sum(group.num_rows * group.total_byte_size for group in groups)

"""The rows of a small table, kept while they are copied: its first commit needs them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_BYTES: Final = 64 << 10


class SmallRows:
    """Keeps the rows that pass by, if they are few."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] | None = None

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; `table` has them once all are taken."""
        kept, size_bytes = list[pa.RecordBatch](), 0
        self._batches = None
        for batch in batches:
            size_bytes += batch.nbytes
            if size_bytes <= _MOST_BYTES:
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        self._batches = kept if size_bytes <= _MOST_BYTES else None

    def table(self, schema: pa.Schema) -> pa.Table | None:
        """All rows; None if they are not few, or have not passed.

        Args:
            schema: The schema of the batches.
        """
        return None if self._batches is None else pa.Table.from_batches(self._batches, schema).combine_chunks()

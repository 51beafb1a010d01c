"""The rows of tables that are written as a whole, so that no commit has to read them first."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

A_WHILE_S: Final = 60.0

_ALL_BYTES: Final = 128 << 20
"""Of all tables together."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A table's rows.

    Attributes:
        version: The version that has them.
        file: What identifies that version's log entry: another table at the path may have the number, too.
        rows: The rows, under the target's column names.
    """

    version: int
    file: tuple[int, int]
    rows: pa.Table


@dataclass(slots=True)
class KeptRows:
    """The kept rows of all tables, for threads that commit to different tables.

    No table drives out another that is in use: if there are more than memory holds, each would be read for each commit.
    """

    _tables: dict[str, tuple[Kept, float]] = field(default_factory=dict)  # the one put last is the last
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _bytes: int = 0

    def take(self, path: str) -> Kept | None:
        """A table's rows, which are not kept any longer: a commit replaces them."""
        with self._lock:
            return self._drop(path)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much can be kept besides; for that, rows that nobody used for a while are dropped."""
        with self._lock:
            return self._has_room(size_bytes)

    def put(self, path: str, kept: Kept) -> bool:
        """Keep a table's rows in place of earlier ones; returns whether there is room for them."""
        with self._lock:
            self._drop(path)
            if not self._has_room(kept.rows.nbytes):
                return False
            self._tables[path] = kept, time.monotonic()
            self._bytes += kept.rows.nbytes
            return True

    def _has_room(self, size_bytes: int) -> bool:
        while self._tables and self._bytes + size_bytes > _ALL_BYTES:
            path, (_, put_s) = next(iter(self._tables.items()))
            if time.monotonic() - put_s < A_WHILE_S:
                return False
            self._drop(path)
        return self._bytes + size_bytes <= _ALL_BYTES

    def _drop(self, path: str) -> Kept | None:
        kept, _ = self._tables.pop(path, (None, 0.0))
        if kept is not None:
            self._bytes -= kept.rows.nbytes
        return kept

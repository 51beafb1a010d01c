"""What is kept of tables at a version of theirs, so that the next commit need not read it.

What the writer knows after a commit of its own is so as long as nobody else commits, and Delta's transaction tells the
version that it replaces.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

Entry: TypeAlias = tuple[int | str, ...]
"""What tells a version's entry in the log from another one under its number."""


class TableVersion(NamedTuple):
    """A version of a Delta table.

    Attributes:
        table_id: The table's own id: another table at its path has another one.
        version: The version's number.
        entry: Its entry in the log: a table that is put back from a backup may have the number once more. None if that
            is not known: nothing is kept of the version then.
    """

    table_id: str
    version: int
    entry: Entry | None

    def by(self, column: str) -> TableVersion:
        """The same version, of what is kept by a key's column: without a commit, another one may become the key."""
        return self._replace(table_id=f"{self.table_id} {column}")

    def follows(self, other: TableVersion) -> bool:
        """Whether no other commit is between the two: Delta may have put one before ours."""
        return self.version == other.version + 1


class Kept(Generic[T]):
    """What is kept of tables, for threads that commit to different ones.

    Args:
        most_bytes: Of all tables together; those that were used least recently are dropped.

    Attributes:
        too_many: Ids of tables of which nothing is kept, because it would be too much, or is not known.
    """

    def __init__(self, most_bytes: int) -> None:
        self.too_many = set[str]()
        self._most_bytes = most_bytes
        self._tables = OrderedDict[str, tuple[TableVersion, T, int]]()
        self._lock = threading.Lock()
        self._size_bytes = 0

    def get(self, version: TableVersion) -> T | None:
        """What is kept of this version; None for nothing."""
        with self._lock:
            kept, value, _ = self._tables.get(version.table_id, (None, None, 0))
            return value if kept == version and version.entry is not None else None

    def put(self, version: TableVersion, value: T, size_bytes: int) -> None:
        """Keep something of a version in place of what was kept of the table's earlier ones."""
        with self._lock:
            self._size_bytes += size_bytes - self._tables.pop(version.table_id, (None, None, 0))[2]
            self._tables[version.table_id] = version, value, size_bytes
            while self._size_bytes > self._most_bytes:
                _, (*_, dropped_bytes) = self._tables.popitem(last=False)
                self._size_bytes -= dropped_bytes

"""The oldest transaction that was received and is not durable, without a record of each. Pure: no clock, no lock."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from protocol.lsn import Lsn

_RESOLUTION_S: Final = 0.1
_MOST: Final = 10_000
"""Entries kept: with more, neighbours are merged, and the answer may be too old by twice as much as before."""


class Outstanding:
    """Commit times of transactions on their way, those within a tenth of a second as one entry.

    An entry has the oldest commit time of its transactions and the end of the last, so the answer is never too young.
    """

    def __init__(self) -> None:
        self._entries: deque[tuple[float, Lsn]] = deque()
        self._resolution_s = _RESOLUTION_S
        self._durable_lsn: Lsn | None = None

    def stream_begins(self, start_lsn: Lsn) -> None:
        """A stream begins: it sends again what is not durable.

        Where it begins at another LSN than the last one reached, its LSNs may be another server's: nothing is kept.
        """
        if start_lsn != self._durable_lsn:
            self._entries.clear()
        self._durable_lsn = start_lsn

    def received(self, commit_s: float, end_lsn: Lsn) -> None:
        """A transaction was received; nothing is done with one that is known already."""
        known_lsn = self._entries[-1][1] if self._entries else self._durable_lsn
        if known_lsn is not None and end_lsn <= known_lsn:
            return
        if self._entries and commit_s - self._entries[-1][0] < self._resolution_s:
            self._entries[-1] = min(commit_s, self._entries[-1][0]), end_lsn
            return
        self._entries.append((commit_s, end_lsn))
        if len(self._entries) > _MOST:
            self._merge()

    def durable(self, lsn: Lsn) -> None:
        """Everything that ends at or before an LSN is durable."""
        self._durable_lsn = lsn
        while self._entries and self._entries[0][1] <= lsn:
            self._entries.popleft()
        if not self._entries:
            self._resolution_s = _RESOLUTION_S

    @property
    def oldest_s(self) -> float | None:
        """The oldest commit time; None if nothing is outstanding."""
        return self._entries[0][0] if self._entries else None

    def _merge(self) -> None:
        """Make one entry of each two."""
        entries = list(self._entries)
        pairs = zip(entries[::2], [*entries[1::2], entries[-1]], strict=False)
        self._entries = deque((min(one[0], other[0]), other[1]) for one, other in pairs)
        self._resolution_s *= 2

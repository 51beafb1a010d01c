"""Decides when a subscription's tables are optimized and vacuumed, between batches.

A commit leaves at least one file, and a MERGE reads all that may hold its keys. So commits are counted, in memory;
only after some of them is the table's debt measured, and a table with few files is left alone. What the stream's lag
allows depends on the debt: a small one waits until the stream is idle, a great one is what makes the lag.

A failure is a warning: the table is tried again after as many commits more.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from bridge.track import maintenance as track
from bridge.track.maintenance import MaintainedRow, OptimizeIntent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from bridge.track.catalog import Catalog

FILE_BYTES: Final = 64 << 20
"""The size that OPTIMIZE makes files of. Delta's own 1 GiB would have a MERGE of one row rewrite 1 GiB."""

_EXCESS_FILES: Final = 32
"""A table with so many files more than its size needs is optimized when the stream is idle."""

_LAG_S: Final = 10.0
_OVERDUE, _URGENT = 4, 32
"""With so many times that number, it is optimized while the lag is at most `_LAG_S`, or whatever the lag is."""

_VACUUM_EVERY_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Debt:
    """A table as DESCRIBE DETAIL has it.

    Attributes:
        version: Its version.
        files: The number of its data files.
        size_bytes: Their size.
        own: pgbridge created the table.
    """

    version: int
    files: int
    size_bytes: int
    own: bool

    @property
    def excess(self) -> int:
        """How many files it has more than its size needs."""
        return self.files - max(1, math.ceil(self.size_bytes / FILE_BYTES))


class Tables(Protocol):
    """Spark's part (`bridge.apply.delta.maintain`). Each call may raise whatever Spark does."""

    def measure(self, path: str) -> Debt:
        """Measure a table."""

    def optimize(self, path: str) -> None:
        """Compact a table's small files; its rows stay."""

    def vacuum(self, path: str, retention_h: float) -> None:
        """Delete files that no version within the retention has."""

    def undo(self, intent: OptimizeIntent) -> None:
        """Restore a table to the version before an OPTIMIZE, if it has one since."""

    def flush(self, path: str) -> None:
        """Flush a local table."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says.

    Attributes:
        optimize: Optimize tables.
        retention_h: VACUUM's retention, in hours; 0 for no VACUUM.
        adopted: Maintain also tables that pgbridge did not create.
    """

    optimize: bool
    retention_h: float
    adopted: bool


@dataclass(slots=True)
class Maintenance:
    """Maintains one subscription's tables, one command at a time. All methods are called by its worker's thread.

    Attributes:
        catalog: Has what was done, and the OPTIMIZE under way.
        subscription: The subscription's name.
        tables: Spark's part.
        policy: What is wanted.
        log: The subscription's logger.
        now_s: The time, in seconds since 1970.
    """

    catalog: Catalog
    subscription: str
    tables: Tables
    policy: Policy
    log: FilteringBoundLogger
    now_s: Callable[[], float]
    _commits: Counter[str] = field(default_factory=Counter)  # since the table was last looked at
    _wanted: dict[str, int] = field(default_factory=dict)  # commits before the next look; without a key, the least
    _never: set[str] = field(default_factory=set)  # tables that are not ours to maintain

    def committed(self, paths: Iterable[str]) -> None:
        """A batch that committed to these tables is durable."""
        self._commits.update(path for path in paths if path not in self._never)

    def recover(self) -> None:
        """Undo an OPTIMIZE that may not be on disk; called before the first batch, whose own undo comes later.

        Raises:
            PySparkException, Py4JError: The table cannot be restored; nothing may be applied on top of it.
            StateError: The catalog cannot be read or written, or the table cannot be flushed.
        """
        intent = track.standing(self.catalog, self.subscription)
        if intent is None:
            return
        self.log.info("undoing an OPTIMIZE that was cut short", path=intent.path, version=intent.version)
        self.tables.undo(intent)
        self.tables.flush(intent.path)
        track.end(self.catalog, self.subscription)

    def run_one(self, behind_s: float | None) -> bool:
        """Maintain the table that needs it most, if one does and the lag allows it; no batch may be under way.

        Args:
            behind_s: The stream's lag; None if it is idle.

        Returns:
            Whether a table was looked at.

        Raises:
            PySparkException, Py4JError, StateError: An OPTIMIZE failed, and so did its undo (see `recover`).
        """
        if not self.policy.optimize and not self.policy.retention_h:
            return False
        times = 1 if behind_s is None else _OVERDUE if behind_s <= _LAG_S else _URGENT
        due = [path for path in self._commits if self._commits[path] >= times * self._wanted.get(path, _EXCESS_FILES)]
        if not due or self.catalog.batch(self.subscription) is not None:
            return False
        path = max(due, key=lambda one: self._commits[one])
        before = track.rows(self.catalog, self.subscription).get(path, MaintainedRow())
        try:
            found = self._maintain(path, before, times * _EXCESS_FILES)
        except Exception as error:  # noqa: BLE001 - whatever it was, the subscription goes on without
            if track.standing(self.catalog, self.subscription) is not None:
                self.recover()
            self.log.warning("maintenance failed; the table is as before", path=path, error=str(error))
            self._wanted[path] = 2 * self._wanted.get(path, _EXCESS_FILES)
            found = replace(before, error=str(error).partition("\n")[0])
        self._commits.pop(path, None)
        track.put(self.catalog, self.subscription, path, found)
        return True

    def _maintain(self, path: str, before: MaintainedRow, least: int) -> MaintainedRow:
        debt = self.tables.measure(path)
        if not (debt.own or self.policy.adopted):
            self._never.add(path)
            return replace(before, files=debt.files, error=None)
        optimized_s, vacuumed_s = before.optimized_s, before.vacuumed_s
        if self.policy.optimize and debt.excess >= least:
            intent = OptimizeIntent(path, debt.version)
            if not track.begin(self.catalog, self.subscription, intent):
                return before
            self.tables.optimize(path)
            self.tables.flush(path)
            track.end(self.catalog, self.subscription)
            optimized_s, files = self.now_s(), debt.files
            debt = self.tables.measure(path)
            self.log.info("optimized", path=path, files_before=files, files=debt.files)
        elif self.policy.retention_h and self.now_s() - (vacuumed_s or 0.0) >= _VACUUM_EVERY_S:
            self.tables.vacuum(path, self.policy.retention_h)
            vacuumed_s = self.now_s()
            self.log.info("vacuumed", path=path, retention_h=self.policy.retention_h)
        # what OPTIMIZE leaves over, as the files of partitions, is no debt; else so many more commits make it due
        self._wanted[path] = _EXCESS_FILES if debt.excess <= 0 else max(_EXCESS_FILES - debt.excess, _EXCESS_FILES // 4)
        if optimized_s != before.optimized_s:
            self._wanted[path] = max(_EXCESS_FILES, debt.excess)
        return MaintainedRow(debt.files, optimized_s, vacuumed_s)

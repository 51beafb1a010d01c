"""Decides when a subscription's tables are optimized and vacuumed, between batches.

A commit leaves at least one file, and a MERGE reads all that may hold its keys. So commits are counted, in memory;
only after some of them is the table's debt measured, and a table with few files is left alone. What the stream's lag
allows depends on the debt: a small one waits until the stream is idle, a great one is what makes the lag.

A failure is a warning: the table is tried again after as many commits more.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from pgbridge.bridge.catalog import maintenance as track
from pgbridge.bridge.lake import table, table_facts, writes
from pgbridge.bridge.lake.log.commit_info import KEEP_ROWS, Commit
from pgbridge.bridge.runtime import errors, faults
from pgbridge.bridge.spark import outcome, session
from pgbridge.bridge.targets.location import sql_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog import Catalog
    from pgbridge.bridge.lake.log.local_tables import LocalTables

FILE_BYTES: Final = 64 << 20
"""The size that OPTIMIZE makes files of. Delta's own 1 GiB would have a MERGE of one row rewrite 1 GiB."""

_EXCESS_FILES: Final = 32
"""A table with so many files more than its size needs is optimized when the stream is idle."""

_LAG_S: Final = 10.0
_OVERDUE, _URGENT = 4, 32
"""With so many times that number, it is optimized while the lag is at most `_LAG_S`, or whatever the lag is."""

_QUICK_S: Final = 2.0
_QUICK: Final = 16
"""So many times, with such a lag, while a table's batches take less than `_QUICK_S`, for all that its files may do."""

_RECENT: Final = 8
"""The quickest of so many commits says how long they take: a checkpoint or the JVM's collector is no reason."""

_FIRST_LOOK: Final = 8
"""Commits after which a process looks at a table for the first time: an earlier one may have left some debt."""

_VACUUM_EVERY_S: Final = 24 * 3600.0
"""How often a table is vacuumed when the stream is idle; with a lag, as many times as seldom as a debt may be great."""


@dataclass(frozen=True, slots=True)
class Debt:
    """A table as DESCRIBE DETAIL has it.

    Attributes:
        files: The number of its data files.
        created: pgbridge created the table.
    """

    version: int
    files: int
    size_bytes: int
    created: bool

    @property
    def excess(self) -> int:
        """How many files it has more than its size needs."""
        return self.files - max(1, math.ceil(self.size_bytes / FILE_BYTES))


class Tables(Protocol):
    """Spark's part (`bridge.apply.maintenance`). Each call may raise whatever Spark does."""

    def measure(self, path: str) -> Debt:
        """Measure a table."""

    def optimize(self, path: str) -> None:
        """Compact a table's small files; its rows stay."""

    def vacuum(self, path: str, retention_h: float) -> None:
        """Delete files that no version within the retention has."""

    def undo(self, intent: track.OptimizeIntent) -> None:
        """Restore a table to the version before an OPTIMIZE, if it has one since."""

    def flush(self, path: str, begin: Callable[[], None]) -> None:
        """Flush a local table; `begin` is called before."""

    def interrupt(self) -> None:
        """Make a command that runs in another thread fail."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says.

    Attributes:
        tables: Which tables are maintained: those that pgbridge created, all, or none.
        retention_h: VACUUM's retention, in hours; 0 for no VACUUM.
    """

    tables: Literal["created", "all", "none"]
    retention_h: float


@dataclass(slots=True)
class Maintenance:
    """Maintains one subscription's tables, one command at a time.

    Attributes:
        stopping: Whether the process is ending: then a command that fails was interrupted.
        now_s: The time, in seconds since 1970.
    """

    catalog: Catalog
    subscription: str
    tables: Tables
    policy: Policy
    log: FilteringBoundLogger
    stopping: Callable[[], bool]
    now_s: Callable[[], float]
    _last_s: dict[str, deque[float]] = field(default_factory=dict)  # what a table's last batches took
    _commits: Counter[str] = field(default_factory=Counter)  # since the table was last looked at
    _wanted: dict[str, int] = field(default_factory=dict)  # commits before the next look
    _left: dict[str, int] = field(default_factory=dict)  # the excess files that the last OPTIMIZE left over
    _never: set[str] = field(default_factory=set)  # tables that are not ours to maintain

    def committed(self, paths: Iterable[str], commit_s: float = math.inf) -> None:
        """A batch that committed to these tables is durable.

        Args:
            commit_s: How long its commits took.
        """
        ours = [path for path in paths if path not in self._never]
        if ours and self.policy.tables != "none":
            self._commits.update(ours)
            for path in set(ours):
                self._last_s.setdefault(path, deque(maxlen=_RECENT)).append(commit_s)

    def interrupt(self) -> None:
        """End the command that runs, if one does: the process is to stop. May be called by any thread."""
        self.tables.interrupt()

    def recover(self) -> None:
        """Make an OPTIMIZE durable that an earlier process left, or undo it; called before anything is applied.

        It is not committed after this: the JVM that ran it is gone (`spark_lock`). A Spark Connect server may live on;
        what it commits late is flushed with the table's next batch.

        Raises:
            SPARK_ERRORS, TargetError: The table cannot be restored; nothing may be applied on top of it.
            StateError: The catalog cannot be read or written, or the table cannot be flushed.
        """
        intent = track.standing(self.catalog, self.subscription)
        if intent is None:
            return
        if intent.doubtful:
            self.log.info("undoing an OPTIMIZE that may not be on disk", path=intent.path, version=intent.version)
            self.tables.undo(intent)
            faults.reach("optimize_undone")
        self._end(intent.path)

    def due(self, behind_s: float | None) -> bool:
        """Whether `run_one` has something to look at, with this lag; None for an idle stream. Costs next to nothing."""
        return bool(self._due(behind_s))

    def run_one(self, behind_s: float | None) -> None:
        """Look at the table with the most commits that is due, and maintain it if it needs that.

        No batch may be under way.

        Raises:
            SPARK_ERRORS, ConnectionError: Spark is lost; an OPTIMIZE that was begun stands (see `recover`).
            SPARK_ERRORS, BridgeError: An OPTIMIZE failed, and so did its undo. The same.
            StateError: The catalog cannot be read or written.
        """
        due = self._due(behind_s)
        subscribed = {rel.path for rel in self.catalog.rels(self.subscription)}
        for path in due - subscribed:  # one that was removed, or is copied afresh
            del self._commits[path]
        if not due & subscribed or self.catalog.batch(self.subscription) is not None:
            return
        path = max(due & subscribed, key=lambda due_path: self._commits[due_path])
        before = track.rows(self.catalog, self.subscription).get(path, track.MaintainedRow(self.now_s()))
        try:
            after = self._maintain(path, before, behind_s)
        except Exception as error:  # whatever it was, the subscription goes on without
            if outcome.is_lost(error):
                raise
            if self.stopping():
                self.log.info("maintenance was cut short", path=path)
                return
            if track.standing(self.catalog, self.subscription) is not None:
                self.recover()
            self.log.warning("maintenance failed; the table's rows are as before", path=path, error=str(error))
            self._wanted[path] = 2 * self._wanted.get(path, _EXCESS_FILES)
            after = replace(before, error=str(error).partition("\n")[0])
        del self._commits[path]
        track.put(self.catalog, self.subscription, path, after)

    def _due(self, behind_s: float | None) -> set[str]:
        return {
            path
            for path, commits in self._commits.items()
            if commits >= self._times(path, behind_s) * self._wanted.get(path, _FIRST_LOOK)
        }

    def _times(self, path: str, behind_s: float | None) -> int:
        """How many times as many files as in an idle stream are a table's debt, with this lag."""
        quick = min(self._last_s.get(path, ()), default=math.inf) < _QUICK_S
        return _QUICK if quick and _times(behind_s) == _OVERDUE else _times(behind_s)

    def _maintain(self, path: str, before: track.MaintainedRow, behind_s: float | None) -> track.MaintainedRow:
        debt = self.tables.measure(path)
        if not (debt.created or self.policy.tables == "all"):
            self._never.add(path)
            return replace(before, files=debt.files, error=None)
        optimized_s, vacuumed_s = before.optimized_s, before.vacuumed_s
        # what OPTIMIZE leaves over, as the files of partitions, is no debt: else there would never be a VACUUM
        self._left[path] = min(self._left.get(path, 0), max(debt.excess, 0))
        excess = debt.excess - self._left[path]
        if excess >= self._times(path, behind_s) * _EXCESS_FILES:
            after = self._optimize(path, debt)
            if after is not None:
                debt, optimized_s = after, self.now_s()
                self._left[path] = max(debt.excess, 0)
            self._wanted[path] = max(_EXCESS_FILES, debt.excess)
        else:
            self._wanted[path] = max(_EXCESS_FILES - max(excess, 0), _EXCESS_FILES // 4)
            due_s = (vacuumed_s or before.since_s) + _times(behind_s) * _VACUUM_EVERY_S
            if self.policy.retention_h and self.now_s() >= due_s:
                self.tables.vacuum(path, self.policy.retention_h)
                vacuumed_s = self.now_s()
                self.log.info("vacuumed", path=path, retention_h=self.policy.retention_h)
        return track.MaintainedRow(before.since_s, debt.files, optimized_s, vacuumed_s)

    def _optimize(self, path: str, before: Debt) -> Debt | None:
        """Return the debt that is left; None if a batch is under way, so that nothing was done."""
        started_s = self.now_s()
        if not track.begin(self.catalog, self.subscription, track.OptimizeIntent(path, before.version)):
            return None
        faults.reach("optimize_begun")
        self.tables.optimize(path)
        faults.reach("optimized")
        self._end(path)
        after = self.tables.measure(path)
        seconds = round(self.now_s() - started_s, 2)
        self.log.info("optimized", path=path, files_before=before.files, files=after.files, seconds=seconds)
        return after

    def _end(self, path: str) -> None:
        self.tables.flush(path, lambda: track.begin_flush(self.catalog, self.subscription))
        faults.reach("optimize_flushed")
        track.end(self.catalog, self.subscription)


def _times(behind_s: float | None) -> int:
    """How much more seldom tables are maintained than in an idle stream, with this lag."""
    if behind_s is None:
        return 1
    return _OVERDUE if behind_s <= _LAG_S else _URGENT


# --- Spark's part of maintenance: measures a table's debt, and runs OPTIMIZE and VACUUM -------------------------------

_COMPANION: Final = "maintenance"
_RETENTION: Final = "delta.deletedFileRetentionDuration"

_SETTINGS: Final = {
    # files of at least a quarter of that size are left as they are
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(FILE_BYTES // 4),
    # by the entry in the log, readers of an older version know that its files are gone
    "spark.databricks.delta.vacuum.logging.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class DeltaTables:
    """Maintains Delta tables.

    Attributes:
        spark: The subscription's session; the commands run in a companion without its stamp.
        local: Flushes the tables that are local.
    """

    spark: SparkSession
    local: LocalTables

    def measure(self, path: str) -> Debt:
        """Measure a table."""
        facts = table_facts.read_facts(self.spark, path)
        return Debt(table.table_version(self.spark, path), facts.files, facts.size_bytes, facts.created)

    def optimize(self, path: str) -> None:
        """Compact small files, and files of which many rows are deleted by deletion vectors."""
        self._session.sql(f"OPTIMIZE {sql_name(path)}").collect()

    def vacuum(self, path: str, retention_h: float) -> None:
        """Delete files that no version within the retention has; a retention of the table's own goes first."""
        detail = self.spark.sql(f"DESCRIBE DETAIL {sql_name(path)}").collect()[0]
        retain = "" if _RETENTION in detail.properties else f" RETAIN {retention_h:g} HOURS"
        self._session.sql(f"VACUUM {sql_name(path)}{retain}").collect()

    def undo(self, intent: track.OptimizeIntent) -> None:
        """Restore a table to the version before an OPTIMIZE, if it has one since; one that is gone needs nothing.

        Raises:
            TargetError: Another writer has changed rows since, which would be lost.
        """
        if table.schema_of(self.spark, intent.path) is None:
            return
        later = table.table_version(self.spark, intent.path) - intent.version
        if later <= 0:
            return
        rows = table.described_history(self.spark, intent.path, later)
        commits = [Commit.of(row) for row in rows]
        if not any(commit.operation == "OPTIMIZE" for commit in commits):
            return
        if is_optimized(commits, intent):
            self._session.sql(f"RESTORE TABLE {sql_name(intent.path)} TO VERSION AS OF {intent.version}").collect()
        writes.write_checkpoint(self._session, intent.path)

    def flush(self, path: str, begin: Callable[[], None]) -> None:
        """Flush a local table; `begin` is called before."""
        self.local.flush([path], begin)

    def interrupt(self) -> None:
        """Make a command that runs in another thread fail."""
        session.interrupt(self.spark, _COMPANION)

    @property
    def _session(self) -> SparkSession:
        return session.companion(self.spark, _COMPANION, _SETTINGS)


def is_optimized(later: Sequence[Commit], intent: track.OptimizeIntent) -> bool:
    """Whether a table has an OPTIMIZE still, by its commits since, the latest first: none has undone it.

    Raises:
        TargetError: Another writer has changed rows since.
    """
    by_version = {commit.version: commit for commit in later}
    version = max(by_version)
    contained: list[Commit] = []
    while version > intent.version:
        commit = by_version[version]
        if commit.restored is None:
            contained.append(commit)
        version = version - 1 if commit.restored is None else commit.restored
    if not any(commit.operation == "OPTIMIZE" for commit in contained):
        return False
    others = (commit for commit in contained if commit.operation not in KEEP_ROWS and not commit.given_up)
    other = next(others, None)
    if other is not None:
        raise errors.TargetError(
            f"{intent.path}: the OPTIMIZE after version {intent.version} cannot be undone, because another writer "
            f"committed version {other.version} ({other.operation}) since",
            hint=f"see DESCRIBE HISTORY {sql_name(intent.path)}, then run: "
            f"RESTORE TABLE {sql_name(intent.path)} TO VERSION AS OF {intent.version}; "
            "repeat the other writer's changes afterwards",
        )
    return True

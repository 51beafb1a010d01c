"""Spark's part of maintenance: measures a table's debt, and runs OPTIMIZE and VACUUM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge import session
from bridge.apply.delta.delta_table import CREATED, described_history, forget_size, schema_of, table_version
from bridge.apply.delta.history import KEEP_ROWS, Commit
from bridge.apply.maintenance import FILE_BYTES, Debt
from bridge.apply.target.location import sql_name
from bridge.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from bridge.apply.delta.durable import LocalTables
    from bridge.track.maintenance import OptimizeIntent

_COMPANION: Final = "maintenance"
_RETENTION: Final = "delta.deletedFileRetentionDuration"

_SETTINGS: Final = {
    # files of at least a quarter of that size are left as they are
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(FILE_BYTES // 4),
    # by the entry in the log, readers of an older version know that its files are gone
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    # VACUUM lists files in so many tasks; with Spark's 10 000, an empty table takes 15 s
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
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
        detail = self.spark.sql(f"DESCRIBE DETAIL {sql_name(path)}").collect()[0]
        return Debt(
            table_version(self.spark, path),
            detail.numFiles,
            detail.sizeInBytes,
            detail.properties.get(CREATED) == "true",
        )

    def optimize(self, path: str) -> None:
        """Compact small files, and files of which many rows are deleted by deletion vectors."""
        self._session.sql(f"OPTIMIZE {sql_name(path)}").collect()
        forget_size(path)

    def vacuum(self, path: str, retention_h: float) -> None:
        """Delete files that no version within the retention has; a retention of the table's own goes first."""
        detail = self.spark.sql(f"DESCRIBE DETAIL {sql_name(path)}").collect()[0]
        retain = "" if _RETENTION in detail.properties else f" RETAIN {retention_h:g} HOURS"
        self._session.sql(f"VACUUM {sql_name(path)}{retain}").collect()

    def undo(self, intent: OptimizeIntent) -> None:
        """Restore a table to the version before an OPTIMIZE, if it has one since; one that is gone needs nothing.

        Raises:
            TargetError: Another writer has changed rows since, which would be lost.
        """
        if schema_of(self.spark, intent.path) is None:
            return
        later = table_version(self.spark, intent.path) - intent.version
        if later <= 0:
            return
        rows = described_history(self.spark, intent.path, later)
        for version in versions_to_restore([Commit.of(row) for row in rows], intent):
            self._session.sql(f"RESTORE TABLE {sql_name(intent.path)} TO VERSION AS OF {version}").collect()

    def flush(self, path: str, begin: Callable[[], None]) -> None:
        """Flush a local table; `begin` is called before."""
        self.local.flush([path], begin)

    def interrupt(self) -> None:
        """Make a command that runs in another thread fail."""
        session.interrupt_companion(self.spark, _COMPANION)

    @property
    def _session(self) -> SparkSession:
        return session.companion(self.spark, _COMPANION, _SETTINGS)


def versions_to_restore(later: Sequence[Commit], intent: OptimizeIntent) -> list[int]:
    """The versions to restore, one after the other, that undo an OPTIMIZE which may not be on disk.

    They are those of `History.doubtful_of`, and for its reasons. The later commits come the latest first.

    Raises:
        TargetError: Another writer has changed rows since.
    """
    by_version = {commit.version: commit for commit in later}
    if not any(commit.operation == "OPTIMIZE" for commit in later):
        return []
    latest = version = max(by_version)
    while version > intent.version:
        commit = by_version[version]
        if commit.restored is None and commit.operation not in KEEP_ROWS:
            raise TargetError(
                f"{intent.path}: the OPTIMIZE after version {intent.version} cannot be undone, because another writer "
                f"committed version {commit.version} ({commit.operation}) since",
                hint=f"see DESCRIBE HISTORY {sql_name(intent.path)}, then run: "
                f"RESTORE TABLE {sql_name(intent.path)} TO VERSION AS OF {intent.version}; "
                "repeat the other writer's changes afterwards",
            )
        version = version - 1 if commit.restored is None else commit.restored
    if version < intent.version:
        return []  # somebody has restored it to before
    return [*(commit.version for commit in later if commit.restored is None and commit.version < latest), version]

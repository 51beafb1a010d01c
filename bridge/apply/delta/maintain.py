"""Spark's part of maintenance: measures a table's debt, and runs OPTIMIZE and VACUUM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.apply.delta.delta_table import table_version
from bridge.apply.delta.history import KEEP_ROWS, Commit
from bridge.apply.maintenance import FILE_BYTES, Debt
from bridge.apply.target.target import quoted
from bridge.errors import TargetError
from bridge.session import companion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bridge.apply.delta.durable import LocalTables
    from bridge.track.maintenance import OptimizeIntent

OWN: Final = "pgbridge.created"
"""The property of tables that pgbridge created."""

_RETENTION: Final = "delta.deletedFileRetentionDuration"

_SETTINGS: Final = {
    # files of at least a quarter of that size are left as they are
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(FILE_BYTES // 4),
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
        detail = self.spark.sql(f"DESCRIBE DETAIL delta.{quoted(path)}").collect()[0]
        return Debt(
            table_version(self.spark, path), detail.numFiles, detail.sizeInBytes, detail.properties.get(OWN) == "true"
        )

    def optimize(self, path: str) -> None:
        """Compact small files, and files of which many rows are deleted by deletion vectors."""
        self._session.sql(f"OPTIMIZE delta.{quoted(path)}").collect()

    def vacuum(self, path: str, retention_h: float) -> None:
        """Delete files that no version within the retention has; a retention of the table's own goes first."""
        detail = self.spark.sql(f"DESCRIBE DETAIL delta.{quoted(path)}").collect()[0]
        retain = "" if _RETENTION in detail.properties else f" RETAIN {retention_h:g} HOURS"
        self._session.sql(f"VACUUM delta.{quoted(path)}{retain}").collect()

    def undo(self, intent: OptimizeIntent) -> None:
        """Restore a table to the version before an OPTIMIZE, if it was committed.

        Raises:
            TargetError: Another writer has changed rows since, which would be lost.
        """
        later = table_version(self.spark, intent.path) - intent.version
        if later <= 0:
            return
        rows = self.spark.sql(f"DESCRIBE HISTORY delta.{quoted(intent.path)} LIMIT {later}").collect()
        if is_committed([Commit.of(row) for row in rows], intent):
            self._session.sql(f"RESTORE TABLE delta.{quoted(intent.path)} TO VERSION AS OF {intent.version}").collect()

    def flush(self, path: str) -> None:
        """Flush a local table."""
        self.local.flush([path])

    @property
    def _session(self) -> SparkSession:
        return companion(self.spark, "maintenance", _SETTINGS)


def is_committed(later: Sequence[Commit], intent: OptimizeIntent) -> bool:
    """Whether an OPTIMIZE is among the commits since it was begun, and was not undone; the latest commit comes first.

    Raises:
        TargetError: It is, and another writer has changed rows since.
    """
    others: Commit | None = None
    for commit in later:
        if commit.restored == intent.version:
            return False
        if commit.operation == "OPTIMIZE":
            if others is None:
                return True
            raise TargetError(
                f"{intent.path}: the OPTIMIZE of version {commit.version} cannot be undone, because another writer "
                f"committed version {others.version} ({others.operation}) after it",
                hint=f"see DESCRIBE HISTORY delta.`{intent.path}`, then run: RESTORE TABLE delta.`{intent.path}` TO "
                f"VERSION AS OF {intent.version}; repeat the other writer's changes afterwards",
            )
        if commit.operation not in KEEP_ROWS:
            others = commit
    return False

"""Delta tables of pgbridge's own beside those of a warehouse: made when first needed, and written by a few rows."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Self

from pgbridge.bridge.lake import ddl, location, retry
from pgbridge.bridge.lake.log.local_tables import LocalTables
from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.spark.session import companion, interrupt
from pgbridge.bridge.targets.location import own_location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FEW_ROWS: Final = {
    # to generate code takes longer than to do without
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""A session's settings for a table of a few rows."""

SMALL_APPENDS: Final = {**FEW_ROWS, "spark.databricks.delta.autoCompact.enabled": "true"}
"""The same for one that gets a few rows, and so a small file, at a time."""

_making: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class OwnTable:
    """A kind of table.

    Attributes:
        rows: What it is a table of.
        columns: Its columns.
        hint: What to do if another table is in its place.
    """

    rows: str
    columns: pa.Schema
    hint: str

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Whether it is at a path.

        Raises:
            TargetError: The table there has other columns.
        """
        actual = schema_of(spark, path)
        if actual is not None and actual.simpleString() != self._schema.simpleString():
            raise TargetError(
                f"the Delta table at {path} is not a table of {self.rows}: its columns are {actual.simpleString()}",
                hint=self.hint,
            )
        return actual is not None

    def ensure(self, spark: SparkSession, path: str) -> None:
        """Create it if it is not there.

        Raises:
            TargetError: The table there has other columns.
        """

        def commit() -> None:  # two subscriptions may begin at once
            if not self.exists(spark, path):
                ddl.create_table(spark, path, self._schema)

        if not self.exists(spark, path):
            with _making:  # Delta refuses a folder where another thread has just begun to write
                retry.retry_commit(commit, path)

    @property
    def _schema(self) -> StructType:
        return spark_schema([(field.name, field.type) for field in self.columns])


@dataclass(frozen=True, slots=True)
class OwnRows:
    """The rows of such a table of a warehouse, for one session.

    Attributes:
        parent: The subscription's session; the commits are made in a companion without its stamp.
        local: Flushes the table, if it is local.
    """

    NAME: ClassVar[str]
    """The table's, and its companions'."""

    parent: SparkSession
    path: str
    local: LocalTables

    @classmethod
    def of(cls, spark: SparkSession, warehouse: str) -> Self:
        """Those of a warehouse."""
        return cls(spark, own_location(warehouse, cls.NAME), LocalTables(partial(location.place_of, spark)))

    @property
    def spark(self) -> SparkSession:
        """The companion."""
        return companion(self.parent, self.NAME, SMALL_APPENDS)

    def interrupt(self) -> None:
        """End Spark's jobs that are under way."""
        interrupt(self.parent, self.NAME)

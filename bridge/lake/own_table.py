"""Delta tables of pgbridge's own beside those of a warehouse: what it makes when it first needs one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pgbridge.bridge.lake import ddl, retry
from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.lake.table import schema_of
from pgbridge.bridge.runtime.errors import TargetError

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

        retry.retry_commit(commit, path)

    @property
    def _schema(self) -> StructType:
        return spark_schema([(field.name, field.type) for field in self.columns])

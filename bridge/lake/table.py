"""A Delta table: its columns and its versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from pgbridge.bridge.lake import forms, location
from pgbridge.bridge.runtime.errors import StoreError, TargetError
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, catalog_hint, is_lost, store_hint, summary
from pgbridge.bridge.targets.location import catalog_parts, sql_name
from pgbridge.protocol.values.types import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import Row, SparkSession

    from pgbridge.bridge.targets.target import Mode, TargetSchema

_T = TypeVar("_T")

WAYS_BACK: Final = (
    "mount its file system, put it back from a backup that has all that was durable in it (an older one is refused), "
    "or have the table copied afresh: "
)
"""For a table that is gone; the command that copies it afresh follows."""


def asked(path: str, question: Callable[[], _T]) -> _T:
    """Ask Spark about the table at a location.

    Raises:
        TargetError: There is something else than a Delta table, or Spark does not know the catalog.
        StoreError: The object store or the catalog does not answer, or refuses.
    """
    try:
        return question()
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
        if catalog_parts(path) is not None and isinstance(error, PySparkException):
            raise StoreError(f"{path} cannot be looked up: {summary(error)}", hint=catalog_hint(error)) from error
        if not (hint := store_hint(error)):
            raise
        raise StoreError(f"{path} cannot be read: {summary(error)}", hint=hint) from error


def schema_of(spark: SparkSession, path: str) -> StructType | None:
    """The Delta table's columns; None if nothing is at the location. Errors are those of `asked`."""
    return asked(path, lambda: location.find_schema(spark, path))


def existing_schema(spark: SparkSession, path: str) -> StructType:
    """The columns of a table that must exist: an overwrite would create it again.

    Raises:
        TargetError: It does not exist any more, or is not a Delta table.
    """
    schema = schema_of(spark, path)
    if schema is None:
        raise TargetError(
            f"the Delta table at {path} does not exist any more",
            hint=f"{WAYS_BACK}pgbridge refresh SUB --resync TABLE",
        )
    return schema


def read_target_schema(spark: SparkSession, path: str, mode: Mode = "mirror") -> TargetSchema | None:
    """The columns as `Target` has them; None and errors as for `schema_of`.

    Raises:
        TargetError: The table is of another mode.
    """
    schema = schema_of(spark, path)
    if schema is None:
        return None
    fields = forms.row_schema(mode, schema, path)
    if mode != "changelog":
        filled = asked(path, lambda: location.filled_of(spark, path))
        fields = tuple(field.filled_as(filled.get(field.name)) for field in fields)
    texts = mode != "changelog" and any(field.arrow == pa.string() for field in fields)
    return placed(fields, asked(path, lambda: location.partition_columns(spark, path))) if texts else fields


def written_schema(spark: SparkSession, path: str) -> StructType | None:
    """The columns of a table that a commit may write; None if nothing is at the location.

    Delta refuses those GENERATED ALWAYS AS IDENTITY.
    """
    if (schema := schema_of(spark, path)) is None:
        return None
    filled = location.filled_of(spark, path)
    return StructType([field for field in schema.fields if filled[field.name].how != "identity always"])


def placed(fields: TargetSchema, partition_by: Collection[str]) -> TargetSchema:
    """Columns of which those of text that partition the table have the place of such."""
    return tuple(
        field._replace(place=Place.PARTITION) if field.name in partition_by and field.arrow == pa.string() else field
        for field in fields
    )


def table_version(spark: SparkSession, path: str) -> int:
    """The table's latest version."""
    (row,) = described_history(spark, path, 1)
    return int(row.version)


def described_history(spark: SparkSession, path: str, latest: int) -> list[Row]:
    """The latest rows of DESCRIBE HISTORY: what says who committed what, without predicates, which may be long."""
    parameters = "map_filter(operationParameters, (name, _) -> name <> 'predicate') AS operationParameters"
    history = spark.sql(f"DESCRIBE HISTORY {sql_name(path)} LIMIT {latest}")
    return history.selectExpr("version", "timestamp", "operation", parameters, "userMetadata", "readVersion").collect()

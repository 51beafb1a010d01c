"""A Delta table at a path: its columns and its version, and how an empty one is created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from bridge.apply.delta.schema import table_properties
from bridge.apply.delta.spark_errors import summary
from bridge.apply.delta.store_errors import store_hint
from bridge.apply.delta.table_forms import row_schema
from bridge.apply.target.target import quoted
from bridge.errors import StoreError, TargetError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from bridge.apply.target.target import Mode, TargetSchema

CREATED: Final = "pgbridge.created"
"""The property, with the value true, of tables that pgbridge created."""

WAYS_BACK: Final = "restore it from a backup, mount its file system, or have the table copied afresh: "
"""For a table that is gone; the command that copies it afresh follows."""

_VECTORS: Final = "delta.enableDeletionVectors"

_PLAIN: Final = ("pgbridge.", "delta.columnMapping.", "delta.constraints.")
"""Properties that mean the same for each way to write rows."""


def schema_of(spark: SparkSession, path: str) -> StructType | None:
    """The Delta table's columns; None if nothing is at the path.

    Raises:
        TargetError: There is something else than a Delta table.
        StoreError: The object store does not answer, or refuses.
    """
    try:
        return spark.read.format("delta").load(path).schema
    except AnalysisException as error:
        condition = error.getCondition() or ""
        if condition in {"PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"}:
            return None
        if condition in {"DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_SCHEMA_NOT_SET"}:
            raise TargetError(
                f"{path} exists, but is not a Delta table",
                hint="move it away, or configure another warehouse",
            ) from error
        raise
    except Py4JJavaError as error:  # of Hadoop's client
        if not (hint := store_hint(error)):
            raise
        raise StoreError(f"{path} cannot be read: {summary(error)}", hint=hint) from error


def existing_schema(spark: SparkSession, path: str) -> StructType:
    """The columns of a table that must exist: an overwrite would create it again.

    Raises:
        TargetError: It does not exist any more, or is not a Delta table.
    """
    schema = schema_of(spark, path)
    if schema is None:
        raise TargetError(
            f"the Delta table at {path} does not exist any more",
            hint=f"{WAYS_BACK}pgbridge refresh … --resync …",
        )
    return schema


def read_target_schema(spark: SparkSession, path: str, mode: Mode = "mirror") -> TargetSchema | None:
    """The columns as `Target` has them; None and errors as for `schema_of`.

    Raises:
        TargetError: The table is of another mode.
    """
    schema = schema_of(spark, path)
    return None if schema is None else row_schema(mode, schema, path)


def create_table(spark: SparkSession, path: str, schema: StructType) -> None:
    """Create an empty Delta table."""
    columns = ", ".join(f"{quoted(field.name)} {_ddl(field.dataType)}" for field in schema.fields)
    images = [field.dataType for field in schema.fields if isinstance(field.dataType, StructType)]
    names = [*schema.fieldNames(), *(name for image in images for name in image.fieldNames())]
    properties = {CREATED: "true"} | table_properties(names)
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql(f"CREATE TABLE delta.{quoted(path)} ({columns}) USING delta TBLPROPERTIES ({listed})").collect()


def _ddl(type_: DataType) -> str:
    """A column's type in Spark SQL; `simpleString` does not quote the names of a struct's fields."""
    if not isinstance(type_, StructType):
        return type_.simpleString()
    return f"struct<{', '.join(f'{quoted(field.name)}: {_ddl(field.dataType)}' for field in type_.fields)}>"


def table_version(spark: SparkSession, path: str) -> int:
    """The table's latest version."""
    number: int = spark.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT 1").collect()[0].version
    return number


@dataclass(frozen=True, slots=True)
class TableSize:
    """How large a table is.

    Attributes:
        files: The number of its data files.
        size_bytes: Their size.
        vectors_undecided: pgbridge created the table, and no property says whether it has deletion vectors.
        plain: pgbridge created the table, and nothing tells a MERGE from rewriting it: no change data feed, no
            partitions, no row tracking.
        version: The version that has this size; None if it is not known.
    """

    files: int
    size_bytes: int
    vectors_undecided: bool = False
    plain: bool = False
    version: int | None = None


_SIZES: Final[dict[str, tuple[TableSize, int]]] = {}
_LOOK_AGAIN_AFTER: Final = 20


def table_size(spark: SparkSession, path: str) -> TableSize:
    """The size of the table, now or some calls ago: it only helps to choose a way, and asking takes Spark two jobs."""
    size, calls = _SIZES.get(path, (None, 0))
    if size is None or calls >= _LOOK_AGAIN_AFTER:
        wanted = ("numFiles", "sizeInBytes", "properties", "partitionColumns", "clusteringColumns")
        detail = spark.sql(f"DESCRIBE DETAIL delta.{quoted(path)}").select(*wanted).collect()[0]
        created = detail.properties.get(CREATED) == "true"
        plain = created and not (detail.partitionColumns or detail.clusteringColumns)
        plain = plain and all(name.startswith(_PLAIN) for name in detail.properties)
        undecided = created and _VECTORS not in detail.properties
        size, calls = TableSize(detail.numFiles, detail.sizeInBytes, undecided, plain), 0
    _SIZES[path] = size, calls + 1
    return size


def remember_size(path: str, size: TableSize) -> None:
    """Have `table_size` not ask for a while."""
    _SIZES[path] = size, 0


def forget_size(path: str) -> None:
    """Make `table_size` ask again."""
    _SIZES.pop(path, None)

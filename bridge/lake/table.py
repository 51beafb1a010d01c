"""A Delta table: its columns, its version and its size."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from bridge.lake.forms import partition_columns, row_schema
from bridge.lake.location import filled_of, find_schema
from bridge.lake.log.local_tables import checksum_of, latest_version, log_of
from bridge.runtime.errors import StoreError, TargetError
from bridge.spark.hints import catalog_hint, store_hint, summary
from bridge.spark.outcome import SPARK_ERRORS, is_lost
from bridge.targets.location import catalog_parts, sql_name
from protocol.values.types import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Row, SparkSession

    from bridge.targets.target import Mode, TargetSchema

_T = TypeVar("_T")

CREATED: Final = "pgbridge.created"
"""The property, with the value true, of tables that pgbridge created."""

WAYS_BACK: Final = (
    "mount its file system, put it back from a backup that has all that was durable in it (an older one is refused), "
    "or have the table copied afresh: "
)
"""For a table that is gone; the command that copies it afresh follows."""

_VECTORS: Final = "delta.enableDeletionVectors"
_CLUSTERING: Final = "delta.clustering"

_PLAIN: Final = ("pgbridge.", "delta.checkpointInterval", "delta.columnMapping.", "delta.constraints.")
"""Properties that mean the same for each way to write rows."""

_PROTOCOL: Final = ("delta.feature.", "delta.minReaderVersion", "delta.minWriterVersion")
"""What a table's protocol has, which SHOW TBLPROPERTIES lists among the properties."""

_SAME: Final = frozenset(
    {
        "delta.dataSkippingNumIndexedCols",
        "delta.deletedFileRetentionDuration",
        "delta.enableTypeWidening",
        "delta.logRetentionDuration",
    }
)
"""Properties that mean the same for a MERGE and for rewriting rows by their keys."""


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
    return asked(path, lambda: find_schema(spark, path))


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
    fields = row_schema(mode, schema, path)
    if mode != "changelog":
        filled = asked(path, lambda: filled_of(spark, path))
        fields = tuple(field.filled_as(filled.get(field.name)) for field in fields)
    texts = mode != "changelog" and any(field.arrow == pa.string() for field in fields)
    return placed(fields, asked(path, lambda: partition_columns(spark, path))) if texts else fields


def written_schema(spark: SparkSession, path: str) -> StructType | None:
    """The columns of a table that a commit may write; None if nothing is at the location.

    Delta refuses those GENERATED ALWAYS AS IDENTITY.
    """
    if (schema := schema_of(spark, path)) is None:
        return None
    filled = filled_of(spark, path)
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


@dataclass(frozen=True, slots=True)
class TableSize:
    """How large a table is.

    Attributes:
        files: The number of its data files.
        size_bytes: Their size.
        vectors_undecided: pgbridge created the table, and no property says whether it has deletion vectors.
        plain: pgbridge created the table, and nothing tells a MERGE from rewriting it: no change data feed, no
            partitions, no row tracking, no deletion vectors.
        vectors: The same but for deletion vectors, which it has, and clustering columns, which it may have.
    """

    files: int
    size_bytes: int
    vectors_undecided: bool = False
    plain: bool = False
    vectors: bool = False


_SIZES: Final[dict[str, tuple[TableSize, int]]] = {}
_LOOK_AGAIN_AFTER: Final = 20


def table_size(spark: SparkSession, path: str) -> TableSize:
    """The size of the table, now or some calls ago, for asking may take two jobs.

    It helps to choose a way to commit. What a commit relies on is looked at in its own transaction.
    """
    size, calls = _SIZES.get(path, (None, 0))
    if size is None or calls >= _LOOK_AGAIN_AFTER:
        size, calls = _size_in_log(path) or _described_size(spark, path), 0
    _SIZES[path] = size, calls + 1
    return size


def _described_size(spark: SparkSession, path: str) -> TableSize:
    wanted = ("numFiles", "sizeInBytes", "properties", "partitionColumns", "clusteringColumns")
    detail = spark.sql(f"DESCRIBE DETAIL {sql_name(path)}").select(*wanted).collect()[0]
    size = TableSize(detail.numFiles, detail.sizeInBytes)
    return size_with(detail.properties, size, detail.partitionColumns, clustered=bool(detail.clusteringColumns))


def _size_in_log(path: str) -> TableSize | None:
    """The size by the checksum of the latest version of a local table; None if there is none."""
    log = log_of(path)  # not of a catalog's table, which may be another one by now
    if log is None or is_remote():
        return None
    version = latest_version(log)
    found = checksum_of(log, version) if version >= 0 else None
    if found is None:
        return None
    try:
        metadata, domains = found["metadata"], found["domainMetadata"]
        size = TableSize(found["numFiles"], found["tableSizeBytes"])
        columns = [
            json.loads(domain["configuration"])["clusteringColumns"]
            for domain in domains
            if domain["domain"] == _CLUSTERING and not domain["removed"]
        ]
        return size_with(metadata["configuration"], size, metadata["partitionColumns"], clustered=any(columns))
    except (KeyError, TypeError, ValueError):  # of another writer
        return None


def size_with(
    properties: Mapping[str, str], size: TableSize, partitions: Sequence[str], *, clustered: bool
) -> TableSize:
    """A size, and what a table's properties, partition columns and clustering say of it."""
    created, others = properties.get(CREATED) == "true", _others(properties)
    flat = created and not partitions
    return replace(
        size,
        vectors_undecided=created and _VECTORS not in others,
        plain=flat and not others and not clustered,
        vectors=flat and _only_vectors(properties),
    )


def still_vectors(spark: SparkSession, path: str) -> bool:
    """Whether a table of which `TableSize.vectors` was true some calls ago has no other properties since; no job."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {sql_name(path)}").collect()
    return _only_vectors({row.key: row.value for row in rows if not row.key.startswith(_PROTOCOL)})


def _others(properties: Mapping[str, str]) -> set[str]:
    return {name for name in properties if not name.startswith(_PLAIN)}


def _only_vectors(properties: Mapping[str, str]) -> bool:
    return _others(properties) - _SAME == {_VECTORS} and properties[_VECTORS] == "true"


def forget_size(path: str) -> None:
    """Make `table_size` ask again."""
    _SIZES.pop(path, None)

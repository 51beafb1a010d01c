"""Reads the Delta table at a location: its rows, its columns, its layout; and says where its files are.

What depends on whether that is a path or a table of a catalog is here, in `bridge.lake.writes` and in
`bridge.targets.location`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException

from pgbridge.bridge.lake.log.local_log import identity, local_folder
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import SPARK_CATALOG, Layout
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, is_lost
from pgbridge.bridge.spark.session import driver_of, java_class
from pgbridge.bridge.targets.filled import Filling, filled_columns
from pgbridge.bridge.targets.location import catalog_parts, sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_NOTHING_AT_PATH: Final = frozenset({"PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"})
_NO_DELTA_TABLE: Final = frozenset({"DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_SCHEMA_NOT_SET"})
_NOT_IN_CATALOG: Final = frozenset({"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"})

_PARTITIONS: Final = "# Partition Information"
_HEADER: Final = "# col_name"

_VERSION_DIGITS: Final = 20
"""A file of Delta's log has a name that begins with its version."""
_GENERATING_FEATURES: Final = ("delta.feature.generatedColumns", "delta.feature.identityColumns")
_GENERATING_VERSIONS: Final = ("4", "5", "6")
"""The writer versions that have one of these features without a list of features."""

_places: Final[dict[str, str]] = {}


def read_table(spark: SparkSession, location: str, *, version: int | None = None) -> DataFrame:
    """The table's rows, of its latest version or of another."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(location) if catalog_parts(location) is None else reader.table(sql_name(location))


def find_schema(spark: SparkSession, location: str) -> StructType | None:
    """The table's columns; None if there is nothing at the location.

    Raises:
        TargetError: There is something else than a Delta table, or Spark does not know the catalog.
    """
    in_catalog = catalog_parts(location) is not None
    if _is_absent(spark, location):
        return None
    try:
        if in_catalog:
            _look_up(spark, location)
        return read_table(spark, location).schema
    except AnalysisException as error:
        condition = error.getCondition() or ""
        if condition in (_NOT_IN_CATALOG if in_catalog else _NOTHING_AT_PATH):
            _check_catalog(spark, location, error)
            return None
        if in_catalog and condition.startswith("EXPECT_TABLE_NOT_VIEW"):
            raise _not_delta(location, "a view") from error
        if in_catalog and condition in _NOTHING_AT_PATH | _NO_DELTA_TABLE:
            raise TargetError(
                f"the catalog has the table {location}, but its files are gone",
                hint=f"restore them from a backup; or run in Spark: DROP TABLE {sql_name(location)}; "
                "then have the table copied afresh: pgbridge refresh SUB --resync TABLE",
            ) from error
        if condition in _NO_DELTA_TABLE:
            raise TargetError(
                f"{location} exists, but is not a Delta table",
                hint="move it away, or configure another warehouse",
            ) from error
        _check_catalog(spark, location, error)
        raise


def _is_absent(spark: SparkSession, location: str) -> bool:
    """Whether there is nothing at a location on this machine. To ask Spark for that takes a tenth of a second."""
    folder = local_folder(location)
    try:
        return folder is not None and driver_of(spark).executors_here and identity(folder) is None
    except OSError:  # Spark says what is the matter
        return False


def filled_of(spark: SparkSession, location: str) -> dict[str, Filling]:
    """How the columns of an existing table are filled in rows that lack them, by name.

    Where a Connect server cannot read a log, it is as if no column were generated, or NOT NULL.
    """
    if not driver_of(spark).is_ours:
        return filled_columns(*_told_by_server(spark, location))
    metadata = _metadata(spark, location)  # Spark's schema of the table lacks what Delta's has
    return filled_columns(metadata["schemaString"], metadata.get("configuration", {}))


def _metadata(spark: SparkSession, location: str) -> dict[str, Any]:
    """Delta's metadata of a table that was just read, from a driver in this process's JVM."""
    delta_log = java_class(spark, "org.apache.spark.sql.delta.DeltaLog")
    log = delta_log.forTable(spark._jsparkSession, place_of(spark, location))  # noqa: SLF001
    return dict(json.loads(log.unsafeVolatileSnapshot().metadata().json())["metaData"])


def _told_by_server(spark: SparkSession, location: str) -> tuple[str, dict[str, str]]:
    """The columns as JSON, and the properties. No statement tells how columns are generated: the log is read for it."""
    properties = {row[0]: row[1] for row in spark.sql(f"SHOW TBLPROPERTIES {sql_name(location)}").collect()}
    schema = read_table(spark, location).schema.json()
    version = properties.get("delta.minWriterVersion")
    if properties.keys().isdisjoint(_GENERATING_FEATURES) and version not in _GENERATING_VERSIONS:
        return schema, properties
    try:
        logged = _logged_schema(spark, location)
    except SPARK_ERRORS as error:  # a catalog may give its own tables' files to nobody
        if is_lost(error):
            raise
        logged = None
    fields = json.loads(schema)["fields"]
    return logged or json.dumps({"fields": [field | {"nullable": True} for field in fields]}), properties


def _logged_schema(spark: SparkSession, location: str) -> str | None:
    """The columns as Delta's log has them, of its last checkpoint and of what follows; None if they are not there."""
    place = spark.sql(f"DESCRIBE DETAIL {sql_name(location)}").select("location").collect()[0][0]
    log = re.sub(r"[\[\]{}*?\\]", r"\\\g<0>", f"{place}/_delta_log")  # Spark reads a path as a pattern
    listed = spark.read.format("text").option("pathGlobFilter", "*.{json,parquet}").load(log).inputFiles()
    names = [uri.rpartition("/")[2] for uri in listed]
    last = max((name[:_VERSION_DIGITS] for name in names if ".checkpoint" in name), default="")
    schemas: dict[str, str] = {}
    for kind in ("json", "parquet"):
        paths = [f"{log}/{name}" for name in names if name[:_VERSION_DIGITS] >= last and name.endswith(kind)]
        if paths:
            entries = spark.read.schema("metaData STRUCT<schemaString: STRING>").format(kind).load(paths)
            changed = entries.select("_metadata.file_name", "metaData.schemaString").filter("schemaString IS NOT NULL")
            schemas |= {row[0][:_VERSION_DIGITS]: row[1] for row in changed.collect()}
    return schemas[max(schemas)] if schemas else None


def layout_of(spark: SparkSession, location: str) -> Layout:
    """The layout of an existing table."""
    detail = spark.sql(f"DESCRIBE DETAIL {sql_name(location)}").select("clusteringColumns", "partitionColumns")
    clustering, partitions = detail.collect()[0]
    return Layout(tuple(map(_unquoted, clustering or ())), tuple(partitions))


def partition_columns(spark: SparkSession, location: str) -> tuple[str, ...]:
    """The partition columns of an existing table. Unlike DESCRIBE DETAIL, it does not look at the table's files."""
    if driver_of(spark).is_ours:
        return tuple(_metadata(spark, location)["partitionColumns"])
    names = [row[0] for row in spark.sql(f"DESCRIBE TABLE {sql_name(location)}").collect()]
    if _PARTITIONS not in names:
        return ()
    listed = names[names.index(_PARTITIONS) + 1 :]
    end = next((i for i, name in enumerate(listed) if not name or (name.startswith("# ") and name != _HEADER)), None)
    return tuple(_unquoted(name) for name in listed[:end] if name != _HEADER)


def _unquoted(name: str) -> str:
    """A top-level column as a name; Spark and Delta quote those that are no plain identifiers."""
    return name[1:-1].replace("``", "`") if name.startswith("`") and name.endswith("`") else name


def place_of(spark: SparkSession, location: str, *, now: bool = False) -> str | None:
    """The path or URI of the table's files; None if a catalog lacks the table. A catalog is asked once, and `now`."""
    if catalog_parts(location) is None:
        return location
    if not now and location in _places:
        return _places[location]
    return None if find_schema(spark, location) is None else _places[location]


def _look_up(spark: SparkSession, location: str) -> str:
    """Ask the catalog where a table's files are.

    Raises:
        TargetError: It is not a Delta table.
        AnalysisException: There is none.
    """
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {sql_name(location)}").select("format", "location").collect()[0]
    except AnalysisException:
        _places.pop(location, None)
        raise
    if detail.format != "delta":
        _places.pop(location, None)
        raise _not_delta(location, f"a table of the format {detail.format}")
    folder = local_folder(str(detail.location))
    place = _places[location] = str(detail.location) if folder is None else str(folder)
    return place


def _not_delta(location: str, what: str) -> TargetError:
    return TargetError(
        f"{location} is {what}, not a Delta table", hint="rename or drop it in Spark, or configure another warehouse"
    )


def _check_catalog(spark: SparkSession, location: str, error: Exception) -> None:
    parts = catalog_parts(location)
    if parts is not None and not knows_catalog(spark, parts[0]):
        raise TargetError(
            f'Spark knows no catalog "{parts[0]}", which {location} is in',
            hint=f'set "spark.sql.catalog.{parts[0]}" in [spark.conf], or correct warehouse',
        ) from error


def knows_catalog(spark: SparkSession, catalog: str) -> bool:
    """Whether Spark has a catalog of that name."""
    return catalog == SPARK_CATALOG or spark.conf.get(f"spark.sql.catalog.{catalog}", None) is not None

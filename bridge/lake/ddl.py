"""Creates empty Delta tables, and changes their columns as planned: CREATE TABLE, ALTER TABLE.

A table is created at a path, or in a catalog, with the namespace that is missing there.

Changes are committed before the rows of the batch that needs them, with that batch's user metadata, and are undone with
it; one MERGE puts the constants of new columns. A batch that was cut short in between is undone, not repeated: what
remains to be done cannot be told from the table (after two renames that swap names it looks as before; parts of a batch
that failed need earlier definitions).

Column mapping and type widening are enabled for a table when a change first needs them. An undo does not disable them,
which does no harm.
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.types import DataType, StructType

from pgbridge.bridge.batch.change_schema import NEW, OLD, UNCHANGED
from pgbridge.bridge.evolution.alterations import (
    AddColumn,
    Alteration,
    RenameColumn,
    WidenColumn,
    fills,
    renamings,
    variants,
)
from pgbridge.bridge.lake.commit_errors import literal
from pgbridge.bridge.lake.location import knows_catalog, layout_of
from pgbridge.bridge.lake.log.local_log import folder_uri, local_folder
from pgbridge.bridge.lake.retry import retry_commit
from pgbridge.bridge.lake.schema import METADATA, spark_schema, spark_type, table_properties
from pgbridge.bridge.lake.source import as_frame
from pgbridge.bridge.lake.table import schema_of, table_version
from pgbridge.bridge.lake.table_facts import CREATED
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import StoreError, TargetError
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, catalog_hint, is_lost, summary
from pgbridge.bridge.spark.session import driver_of
from pgbridge.bridge.spark.settings import CHECKPOINT_INTERVAL
from pgbridge.bridge.targets.location import catalog_parts, quoted, sql_name
from pgbridge.bridge.targets.properties import INDEXED, STATISTICS, completed
from pgbridge.bridge.targets.target import Mode, layout_properties

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

_INTERVALS: Final = range(100, 132)
"""A checkpoint takes as long as some small commits. Until the next one, who opens the table reads an entry of some
kilobytes for each commit."""
_INTERVALS_ON_STORE: Final = range(20, 28)
"""On an object store each of these entries costs two requests."""

_FILES_ALREADY: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"

MISSING: Final = "SCHEMA_NOT_FOUND"
"""Spark's condition for a statement in a namespace that does not exist."""


def create_table(
    spark: SparkSession,
    location: str,
    schema: StructType,
    layout: Layout = NO_LAYOUT,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create an empty Delta table. In a catalog it is a managed table, and its namespace is created if it is missing.

    Args:
        properties: Delta's, by the user; they go before those that the columns and the layout need.

    Raises:
        StoreError: The namespace cannot be created, or there are files where the catalog would put the table's.
    """
    columns = ", ".join(f"{quoted(field.name)} {_ddl(field.dataType)}" for field in schema.fields)
    images = [field.dataType for field in schema.fields if isinstance(field.dataType, StructType)]
    names = [*schema.fieldNames(), *(name for image in images for name in image.fieldNames())]
    all_properties = {CREATED: "true"} | table_properties(names)
    if spark.conf.get(CHECKPOINT_INTERVAL, None) is None:  # the user has not said
        all_properties["delta.checkpointInterval"] = str(checkpoint_interval(location))
    all_properties |= completed(properties)
    all_properties |= layout_properties(layout, _leaves(schema), all_properties.get(INDEXED))
    listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in all_properties.items())
    laid_out = _clause(layout)
    statement = f"CREATE TABLE {sql_name(location)} ({columns}) USING delta{laid_out} TBLPROPERTIES ({listed})"
    parts = catalog_parts(location)
    try:
        try:
            spark.sql(statement).collect()
        except AnalysisException as error:
            if parts is None or error.getCondition() != MISSING:
                raise
            create_namespace(spark, *parts[:2])
            spark.sql(statement).collect()
    except AnalysisException as error:
        if parts is None or error.getCondition() != _FILES_ALREADY:
            raise
        _register(spark, location, schema, layout, error)


def check_properties(spark: SparkSession, properties: Mapping[str, str]) -> None:
    """Have Delta say whether a table can have properties: it creates one in a folder that is removed again.

    Of those that name columns, and where the driver is no process of this machine, CREATE TABLE itself tells.

    Raises:
        TargetError: None can.
    """
    tried = {name: value for name, value in properties.items() if name != STATISTICS}
    if not tried or not driver_of(spark).is_ours:
        return
    with tempfile.TemporaryDirectory(prefix="pgbridge-properties-") as folder:
        try:
            path = folder_uri(Path(folder, "t"))
            create_table(spark, path, spark_schema([("id", pa.int32())]), properties=tried)
        except SPARK_ERRORS as error:
            if is_lost(error):
                raise
            listed = ", ".join(f"{name} = {value}" for name, value in tried.items())
            raise TargetError(
                f"Delta creates no table with the properties {listed}: {summary(error)}",
                hint="correct `properties` of [subscription.NAME.target] or of the table in the configuration",
            ) from error


def _clause(layout: Layout) -> str:
    """The clause of CREATE TABLE for a layout; empty for none."""
    by = "CLUSTER BY" if layout.cluster_by else "PARTITIONED BY"
    columns = ", ".join(map(quoted, layout.cluster_by or layout.partition_by))
    return f" {by} ({columns})" if columns else ""


def checkpoint_interval(location: str) -> int:
    """After how many commits Delta writes a checkpoint of a table that pgbridge creates there.

    It is one of some numbers. The tables of a publication often have as many commits: if one batch wrote all their
    checkpoints, it would take half as long again, and the next one, which grows meanwhile, too.
    """
    on_store = local_folder(location) is None and catalog_parts(location) is None
    intervals = _INTERVALS_ON_STORE if on_store else _INTERVALS
    return intervals[zlib.crc32(location.encode()) % len(intervals)]


def _ddl(type_: DataType) -> str:
    """A column's type in Spark SQL; `simpleString` does not quote the names of a struct's fields."""
    if not isinstance(type_, StructType):
        return type_.simpleString()
    return f"struct<{', '.join(f'{quoted(field.name)}: {_ddl(field.dataType)}' for field in type_.fields)}>"


def _leaves(schema: StructType) -> list[str]:
    """The columns in the order in which Delta counts them; those of a struct have its name."""
    return [
        name
        for field in schema.fields
        for name in [field.name] * (len(field.dataType.fields) if isinstance(field.dataType, StructType) else 1)
    ]


def _register(spark: SparkSession, location: str, schema: StructType, layout: Layout, error: AnalysisException) -> None:
    """Give the catalog a table that it lacks, because its CREATE TABLE was cut short after Delta's commit.

    The catalog has it as an external table then: DROP TABLE leaves its files.

    Raises:
        StoreError: The files are not those of an empty table that pgbridge created.
    """
    place = _default_place(spark, location)
    if place is None or not _is_left_over(spark, place, schema, layout):
        raise StoreError(
            f"{location} cannot be created, because there are files already where its own would be: {summary(error)}",
            hint="move them away; or, if they are this Delta table, give it to the catalog in Spark: "
            f"CREATE TABLE {sql_name(location)} USING delta LOCATION {literal(place or '…')}",
        ) from error
    spark.sql(f"CREATE TABLE {sql_name(location)} USING delta LOCATION {literal(place)}").collect()


def _default_place(spark: SparkSession, location: str) -> str | None:
    """Where Spark's own catalog puts a table's files."""
    catalog, namespace, name = catalog_parts(location) or ("", "", "")
    rows = spark.sql(f"DESCRIBE NAMESPACE {quoted(catalog)}.{quoted(namespace)}").collect()
    namespace_location = next((row[1] for row in rows if row[0] == "Location"), None)
    return f"{namespace_location.rstrip('/')}/{name}" if namespace_location else None


def _is_left_over(spark: SparkSession, place: str, schema: StructType, layout: Layout) -> bool:
    there = schema_of(spark, place)
    if there is None or there.simpleString() != schema.simpleString() or table_version(spark, place) != 0:
        return False
    detail = spark.sql(f"DESCRIBE DETAIL {sql_name(place)}").select("numFiles", "properties").collect()[0]
    empty = bool(detail.numFiles == 0 and detail.properties.get(CREATED) == "true")
    return empty and layout_of(spark, place) == layout


def find_namespace(spark: SparkSession, catalog: str, namespace: str | None) -> bool:
    """Whether a catalog has a namespace; with None, whether it can be listed.

    Raises:
        TargetError: Spark does not know the catalog.
        StoreError: The catalog does not answer, or refuses.
    """
    if not knows_catalog(spark, catalog):
        raise TargetError(
            f'Spark knows no catalog "{catalog}"',
            hint=f'set "spark.sql.catalog.{catalog}" in [spark.conf], or correct warehouse',
        )
    try:
        if namespace is None:
            spark.sql(f"SHOW NAMESPACES IN {quoted(catalog)}").collect()
        else:
            spark.sql(f"DESCRIBE NAMESPACE {_name(catalog, namespace)}").collect()
    except Exception as error:  # a catalog's own, too, of any class
        if is_lost(error):
            raise
        if namespace is not None and isinstance(error, AnalysisException) and error.getCondition() == MISSING:
            return False
        raise StoreError(f'catalog "{catalog}" cannot be used: {summary(error)}', hint=catalog_hint(error)) from error
    return True


def create_namespace(spark: SparkSession, catalog: str, namespace: str) -> None:
    """Create a namespace, if it does not exist.

    Raises:
        StoreError: The catalog refuses.
    """
    name = _name(catalog, namespace)
    try:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name}").collect()
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
        raise StoreError(
            f'namespace "{namespace}" of catalog "{catalog}" does not exist, and cannot be created: {summary(error)}',
            hint=f"create it in Spark: CREATE NAMESPACE {name}; or grant pgbridge's user the right to",
        ) from error


def _name(catalog: str, namespace: str) -> str:
    return f"{quoted(catalog)}.{quoted(namespace)}"


IMAGES = (f"{OLD}.", f"{NEW}.")
"""Where a changelog has the published table's columns."""

_COLUMN_MAPPING = {"delta.columnMapping.mode": "name"}
_TYPE_WIDENING = {"delta.enableTypeWidening": "true"}
_TIMESTAMP_NTZ = {"delta.feature.timestampNtz": "supported"}
_NO_VECTORS = {"delta.enableDeletionVectors": "false"}


def alter_table(
    spark: SparkSession,
    path: str,
    changes: Sequence[Alteration],
    log: FilteringBoundLogger | None = None,
    *,
    mode: Mode = "mirror",
) -> None:
    """Change a table's columns, within `stamped` with a stamp that `alters`.

    A concurrent commit that makes one of the changes fail has only that one retried. Before a column gets the name
    `METADATA` the table's deletion vectors are purged: with them no query could read it any more.

    Raises:
        TargetBusy: Concurrent commits made every attempt of a change fail; the changes before it are committed.
    """

    def run(statement: str) -> None:
        retry_commit(lambda: spark.sql(statement).collect(), path, log)

    hides_metadata = mode != "changelog" and METADATA in _new_names(changes)
    properties = needed_properties(changes) | (_NO_VECTORS if hides_metadata else {})
    if properties:
        detail = spark.sql(f"DESCRIBE DETAIL {sql_name(path)}").collect()[0]
        there = detail.properties | {f"delta.feature.{name}": "supported" for name in detail.tableFeatures}
        missing = {key: value for key, value in properties.items() if there.get(key) != value}
        if missing:
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in missing.items())
            run(f"ALTER TABLE {sql_name(path)} SET TBLPROPERTIES ({listed})")
        if hides_metadata and "deletionVectors" in detail.tableFeatures:
            run(f"REORG TABLE {sql_name(path)} APPLY (PURGE)")
    for statement in statements(path, changes, IMAGES if mode == "changelog" else ("",)):
        run(statement)
        faults.reach("schema_changed")
    values, documents = fills(changes), variants(changes)
    if mode == "changelog":
        retry_commit(lambda: _change_images(spark, path, values, documents, renamings(changes)), path, log)
    elif values:
        retry_commit(lambda: _fill(spark, path, values, documents), path, log)
    if values:
        faults.reach("column_filled")


def _new_names(changes: Sequence[Alteration]) -> list[str]:
    renamed = [change.new_name for change in changes if isinstance(change, RenameColumn)]
    return renamed + [change.name for change in changes if isinstance(change, AddColumn)]


def needed_properties(changes: Sequence[Alteration]) -> dict[str, str]:
    """The table properties that these changes need."""
    added = [change.name for change in changes if isinstance(change, AddColumn)]
    properties = table_properties(added)
    if any(isinstance(change, RenameColumn) for change in changes):
        properties |= _COLUMN_MAPPING
    if any(isinstance(change, WidenColumn) for change in changes):
        properties |= _TYPE_WIDENING
    if any(not isinstance(change, RenameColumn) and "timestamp[us]" in str(change.type) for change in changes):
        properties |= _TIMESTAMP_NTZ
    return properties


def statements(path: str, changes: Sequence[Alteration], places: Sequence[str] = ("",)) -> Iterator[str]:
    """The changes as statements, in order; one ADD COLUMNS for columns added in a row. `places` are prefixes."""
    table = f"ALTER TABLE {sql_name(path)}"
    added: list[str] = []
    for change in changes:
        if isinstance(change, AddColumn):
            type_ = "variant" if change.variant else spark_type(change.type).simpleString()
            added += [f"{place}{quoted(change.name)} {type_}" for place in places]
            continue
        if added:
            yield f"{table} ADD COLUMNS ({', '.join(added)})"
            added = []
        for column in (f"{place}{quoted(change.name)}" for place in places):
            if isinstance(change, RenameColumn):
                yield f"{table} RENAME COLUMN {column} TO {quoted(change.new_name)}"
            else:
                yield f"{table} ALTER COLUMN {column} TYPE {spark_type(change.type).simpleString()}"
    if added:
        yield f"{table} ADD COLUMNS ({', '.join(added)})"


def _fill(spark: SparkSession, path: str, values: dict[str, pa.Scalar], documents: Collection[str]) -> None:
    """Give existing rows the constants of new columns, of which `documents` are of VARIANT."""
    assignments = ", ".join(f"t.{quoted(name)} = {_constant(i, name, documents)}" for i, name in enumerate(values))
    _update_all(spark, path, values, "true", assignments)


def _constant(i: int, name: str, documents: Collection[str]) -> str:
    return f"parse_json(s.v{i})" if name in documents else f"s.v{i}"


def _change_images(
    spark: SparkSession,
    path: str,
    values: dict[str, pa.Scalar],
    documents: Collection[str],
    renamed: Mapping[str, str],
) -> None:
    """Have a changelog's images follow, in one commit: Delta leaves out a second one with the same stamp.

    New images get the `values` of new columns, as the table's rows have; lists of unchanged columns get the new names.
    """
    assignments = [f"t.{NEW}.{quoted(name)} = {_constant(i, name, documents)}" for i, name in enumerate(values)]
    if renamed:
        cases = " ".join(f"WHEN {literal(old)} THEN {literal(new)}" for old, new in renamed.items())
        assignments.append(f"t.{UNCHANGED} = transform(t.{UNCHANGED}, name -> CASE name {cases} ELSE name END)")
    if assignments:
        of_renamed = f"arrays_overlap(t.{UNCHANGED}, array({', '.join(map(literal, renamed))}))"
        condition = f"t.{NEW} IS NOT NULL" if values else of_renamed
        _update_all(spark, path, values, condition, ", ".join(assignments))


def _update_all(spark: SparkSession, path: str, values: dict[str, pa.Scalar], condition: str, assignments: str) -> None:
    """Update the rows `t` that meet a condition, by a row `s` with the values `v<i>`."""
    columns = {f"v{i}": pa.array([value.as_py()], value.type) for i, value in enumerate(values.values())}
    view = f"pgbridge_fill_{abs(hash(path)):x}"
    as_frame(spark, pa.table(columns or {"v": pa.array([0])})).createOrReplaceTempView(view)
    try:
        spark.sql(
            f"MERGE INTO {sql_name(path)} AS t USING {view} AS s ON {condition} "
            f"WHEN MATCHED THEN UPDATE SET {assignments}"
        ).collect()
    finally:
        spark.catalog.dropTempView(view)

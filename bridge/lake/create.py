"""Creates empty Delta tables: at a path, or in a catalog, with the namespace that is missing there."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from bridge.lake.forms import clauses, layout_of
from bridge.lake.location import knows_catalog
from bridge.lake.raise_error import literal
from bridge.lake.schema import table_properties
from bridge.lake.table import schema_of, table_version
from bridge.lake.table_facts import CREATED
from bridge.runtime.errors import StoreError, TargetError
from bridge.runtime.warehouse import NO_LAYOUT
from bridge.spark.hints import catalog_hint, summary
from bridge.spark.outcome import SPARK_ERRORS, is_lost
from bridge.spark.session import CHECKPOINT_INTERVAL
from bridge.targets.layout_rules import layout_properties
from bridge.targets.location import catalog_parts, quoted, sql_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from bridge.runtime.warehouse import Layout

_LEAST_COMMITS: Final = 30
"""A checkpoint takes as long as a small commit: with Delta's 10, each tenth commit would take twice as long."""
_INTERVALS: Final = 16
"""A table gets one of so many intervals. The tables of a publication often have the same number of commits: if one
batch wrote all their checkpoints, it would take half as long again, and the next one, which grows meanwhile, too."""

_FILES_ALREADY: Final = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"

MISSING: Final = "SCHEMA_NOT_FOUND"
"""Spark's condition for a statement in a namespace that does not exist."""


def create_table(spark: SparkSession, location: str, schema: StructType, layout: Layout = NO_LAYOUT) -> None:
    """Create an empty Delta table. In a catalog it is a managed table, and its namespace is created if it is missing.

    Raises:
        StoreError: The namespace cannot be created, or there are files where the catalog would put the table's.
    """
    columns = ", ".join(f"{quoted(field.name)} {_ddl(field.dataType)}" for field in schema.fields)
    images = [field.dataType for field in schema.fields if isinstance(field.dataType, StructType)]
    names = [*schema.fieldNames(), *(name for image in images for name in image.fieldNames())]
    properties = {CREATED: "true"} | table_properties(names) | layout_properties(layout, _leaves(schema))
    if spark.conf.get(CHECKPOINT_INTERVAL, None) is None:  # the user has not said
        properties["delta.checkpointInterval"] = str(checkpoint_interval(location))
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    laid_out = clauses(layout)
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


def checkpoint_interval(location: str) -> int:
    """After how many commits Delta writes a checkpoint of a table that pgbridge creates there."""
    return _LEAST_COMMITS + zlib.crc32(location.encode()) % _INTERVALS


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
    found = next((row[1] for row in rows if row[0] == "Location"), None)
    return f"{found.rstrip('/')}/{name}" if found else None


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

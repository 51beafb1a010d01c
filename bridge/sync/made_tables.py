"""The Delta tables that pgbridge makes: their columns, their layout, and what is known of them afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pyspark.sql.utils import is_remote

from bridge.apply.delta.create import create_table
from bridge.apply.delta.delta_table import TableSize, placed, remember_size
from bridge.apply.delta.durable import local_folder
from bridge.apply.delta.location import place_of
from bridge.apply.delta.rewrite_kept import latest_version
from bridge.apply.delta.schema import target_schema_of
from bridge.apply.delta.spark_errors import summary
from bridge.apply.delta.store_errors import store_hint
from bridge.apply.delta.table_forms import delta_schema, row_schema
from bridge.apply.target.layout_rules import check_layout
from bridge.apply.target.target import TargetColumn
from bridge.errors import SyncError
from bridge.spark_outcome import SPARK_ERRORS, is_lost
from bridge.table_layout import NO_LAYOUT
from protocol.values.types import Place, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from bridge.apply.target.target import Mode, TargetSchema
    from bridge.publication.published_table import PublishedTable
    from bridge.table_layout import Layout
    from bridge.track.catalog_rows import RelRow
    from protocol.values.types import TypeInfo


def make_table(
    spark: SparkSession, rel: RelRow, columns: Sequence[TargetColumn], mode: Mode, layout: Layout
) -> TargetSchema:
    """Create a table's Delta table, and return its columns as `Target` has them.

    Raises:
        TargetError: It cannot have such columns or such a layout.
        SyncError: It cannot be created.
    """
    fields = [(column.name, column.type.arrow) for column in columns]
    variants = [column.name for column in columns if column.type.place is Place.VARIANT]
    schema = delta_schema(mode, fields, rel.qualified_name, variants)
    check_layout(rel.qualified_name, layout, target_schema_of(schema))
    try:
        create_table(spark, rel.path, schema, layout)
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
        message = f'cannot create the Delta table of "{rel.qualified_name}": {summary(error)}'
        raise SyncError(message, hint=store_hint(error)) from error
    return placed(row_schema(mode, schema, rel.path), layout.partition_by)


def new_columns(
    table: PublishedTable, types: Mapping[int, TypeInfo], jsonb: Literal["string", "variant"]
) -> list[TargetColumn]:
    """The columns of a Delta table that is to be made.

    Columns that may identify rows are no VARIANT, which Spark does not compare. The replica identity may change, so
    those of the primary key count, too.
    """
    columns = [TargetColumn(column.name, resolve(column.type_oid, column.typmod, types)) for column in table.columns]
    if jsonb == "string":
        return columns
    key = {column.name for column in table.columns if column.in_primary_key or column.in_replica_identity_index}
    return [
        replace(column, type=replace(column.type, place=Place.VARIANT))
        if column.type.is_jsonb and column.name not in key
        else column
        for column in columns
    ]


def replaced_columns(columns: Sequence[TargetColumn], partition_by: Sequence[str]) -> tuple[TargetColumn, ...]:
    """The columns of a Delta table that exists, once a copy has replaced them by these."""
    return tuple(
        replace(column, type=replace(column.type, place=Place.PARTITION)) if column.name in partition_by else column
        for column in columns
    )


def remember_made(spark: SparkSession, path: str, layout: Layout) -> None:
    """Spare the first batch asking Delta for the size of a table that was just made: Spark may still be cold."""
    place = place_of(spark, path)
    folder = None if place is None else local_folder(place)
    if folder is not None and folder.is_dir() and not is_remote():  # else it may be a folder of Spark's machine
        sizes = [file.stat().st_size for file in folder.rglob("*.parquet")]
        version = latest_version(folder / "_delta_log")
        plain = layout == NO_LAYOUT
        remember_size(path, TableSize(len(sizes), sum(sizes), vectors_undecided=True, plain=plain, version=version))

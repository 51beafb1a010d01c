"""The Delta tables that pgbridge makes: their columns, their layout, and what is known of them afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import pyarrow.parquet as pq
from pyspark.sql.utils import is_remote

from bridge.apply.delta.create import create_table
from bridge.apply.delta.delta_table import new_table_size, placed, remember_size
from bridge.apply.delta.durable import local_folder
from bridge.apply.delta.local_log import latest_version, properties_of
from bridge.apply.delta.location import place_of
from bridge.apply.delta.rewrite_kept import MOST_BYTES
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

    from bridge.apply.delta.delta_table import TableSize
    from bridge.apply.target.target import Mode, TargetSchema
    from bridge.publication.published_table import PublishedTable
    from bridge.table_layout import Layout
    from bridge.track.catalog_rows import RelRow
    from protocol.values.types import TypeInfo

_MOST_FOOTERS: Final = 16
"""Of more files, the footers are not read."""


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


def remember_made(spark: SparkSession, path: str, layout: Layout) -> TableSize | None:
    """Spare the first batch asking Delta for the size of a table that was just made: Spark may still be cold.

    Returns:
        The size; None if the table is elsewhere.
    """
    place = place_of(spark, path)
    folder = None if place is None else local_folder(place)
    if folder is None or not folder.is_dir() or is_remote():  # it may be a folder of Spark's machine
        return None
    log = folder / "_delta_log"
    files = [file for file in folder.rglob("*.parquet") if log not in file.parents]
    size = new_table_size(
        properties_of(log), sizes_bytes=[file.stat().st_size for file in files], version=latest_version(log)
    )
    size = replace(size, plain=size.plain and layout == NO_LAYOUT)
    if size.size_bytes <= MOST_BYTES and len(files) <= _MOST_FOOTERS:
        footers = [pq.read_metadata(file) for file in files]
        groups = [footer.row_group(number) for footer in footers for number in range(footer.num_row_groups)]
        size = replace(
            size,
            rows=sum(footer.num_rows for footer in footers),
            uncompressed_bytes=sum(group.total_byte_size for group in groups),
        )
    remember_size(path, size)
    return size

"""The Delta tables that pgbridge makes: their columns and their layout; and why one is not made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pgbridge.bridge.lake import ddl, forms
from pgbridge.bridge.lake.schema import target_schema_of
from pgbridge.bridge.lake.table import placed
from pgbridge.bridge.runtime import errors, remedies, warehouse
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, is_lost, store_hint, summary
from pgbridge.bridge.targets.target import Mode, TargetColumn, TargetSchema, check_layout, kept_layout, new_type
from pgbridge.protocol.values.types import Place, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.protocol.values.pg_type import TypeInfo


def make_table(
    spark: SparkSession,
    rel: RelRow,
    columns: Sequence[TargetColumn],
    mode: Mode,
    layout: warehouse.Layout,
    properties: Mapping[str, str],
) -> TargetSchema:
    """Create a table's Delta table, and return its columns as `Target` has them.

    Raises:
        TargetError: It cannot have such columns or such a layout.
        SyncError: It cannot be created.
    """
    fields = [(column.name, column.type.arrow) for column in columns]
    variants = [column.name for column in columns if column.type.place is Place.VARIANT]
    schema = forms.delta_schema(mode, fields, rel.qualified_name, variants)
    check_layout(rel.qualified_name, layout, target_schema_of(schema))
    try:
        ddl.create_table(spark, rel.path, schema, layout, properties)
    except SPARK_ERRORS as error:
        if is_lost(error):
            raise
        message = f'cannot create the Delta table of "{rel.qualified_name}": {summary(error)}'
        raise errors.SyncError(message, hint=store_hint(error)) from error
    return placed(forms.row_schema(mode, schema, rel.path), layout.partition_by)


def new_columns(
    table: PublishedTable, types: Mapping[int, TypeInfo], parsed: Collection[str] = ()
) -> list[TargetColumn]:
    """The columns of a Delta table that is to be made.

    Columns that may identify rows stay strings: Spark compares no VARIANT. The replica identity may change, so those of
    the primary key count, too.

    Args:
        parsed: As in `new_type`.
    """
    key = {column.name for column in table.columns if column.in_primary_key or column.in_replica_identity_index}
    resolved = [(column, resolve(*column.sent_type, types)) for column in table.columns]
    return [
        TargetColumn(column.target_name, type_ if column.name in key else new_type(type_, parsed))
        for column, type_ in resolved
    ]


def replaced_columns(columns: Sequence[TargetColumn], partition_by: Sequence[str]) -> tuple[TargetColumn, ...]:
    """The columns of a Delta table that exists, once a copy has replaced them by these."""
    return tuple(
        replace(column, type=replace(column.type, place=Place.PARTITION)) if column.name in partition_by else column
        for column in columns
    )


def layout_after_copy(
    rel: RelRow,
    made: Sequence[TargetColumn],
    mode: Mode,
    layout: warehouse.Layout,
    *,
    subscription: str,
    log: FilteringBoundLogger,
) -> warehouse.Layout:
    """The layout of a Delta table that exists, once a copy has replaced its columns. What it loses is logged."""
    kept = kept_layout(layout, made, forms.added_names(mode))
    if lost := sorted(set(layout.columns) - set(kept.columns)):
        what = f"the copy replaces the Delta table's columns, and it is not laid out by {', '.join(lost)} any more"
        log.warning(
            what,
            relation=rel.qualified_name,
            hint=f"to lay them out by other columns, move {rel.path} away, set cluster_by or partition_by, and "
            f"run: {remedies.resync(subscription, rel.qualified_name)}",
        )
    return kept


def shared_table(path: str, owner: str) -> errors.TargetError:
    """Return the error for a Delta table that two subscriptions would write to."""
    return errors.TargetError(
        f'the Delta table at {path} is written by subscription "{owner}"',
        hint="give the subscriptions different warehouses, or publish the table to one of them only",
    )


def one_place(
    subscription: Subscription, path: str, first: tuple[str, str], second: tuple[str, str]
) -> errors.TargetError:
    """Return the error for two tables, each (schema, name), the second a new one, that would become one Delta table."""
    names = [".".join(table) for table in (first, second)]
    as_published = [subscription.place_of(*table)[1:] == table for table in (first, second)]
    in_catalog = subscription.warehouse.startswith(warehouse.PREFIX)
    return errors.TargetError(
        f'tables "{names[0]}" and "{names[1]}" would both become {path}',
        hint=warehouse.shared_name_hint(subscription.warehouse, first, second)
        if in_catalog and all(as_published)
        else f'set another name as rename in tables."{names[1]}"',
    )


def not_found(table: tuple[str, str], subscription: str) -> errors.PublisherError:
    """Return tablesync.c's error for a table to be copied that is not published under its name."""
    return errors.PublisherError(
        f'table "{".".join(table)}" not found on publisher',
        hint=f"to remove it from the subscription, run: {remedies.refresh(subscription)}",
    )

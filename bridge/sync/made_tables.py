"""The Delta tables that pgbridge makes: their columns and their layout; and why one is not made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from pgbridge.bridge.evolution.alterations import AddColumn
from pgbridge.bridge.evolution.attrmap import without_number
from pgbridge.bridge.lake import ddl, forms
from pgbridge.bridge.lake.ddl import alter_table
from pgbridge.bridge.lake.location import read_table
from pgbridge.bridge.lake.schema import target_schema_of
from pgbridge.bridge.lake.table import placed
from pgbridge.bridge.publication.shape import AS_PUBLISHED
from pgbridge.bridge.runtime import errors, remedies, warehouse
from pgbridge.bridge.spark.outcome import SPARK_ERRORS, is_lost, store_hint, summary
from pgbridge.bridge.targets.target import (
    Mode,
    TargetColumn,
    TargetSchema,
    added_names,
    check_layout,
    kept_layout,
    new_type,
)
from pgbridge.protocol.values.types import Place, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from pgbridge.bridge.catalog.catalog_rows import ColumnRow, RelRow
    from pgbridge.bridge.config.config import Subscription
    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.publication.shape import Shape
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
    kept = kept_layout(layout, made, added_names(mode))
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


class Kept(NamedTuple):
    """What a copy afresh keeps of a table of soft deletes.

    Attributes:
        rows: Whether it keeps the rows that it does not meet, as deleted ones.
        deleted: Whether there are deleted rows, which are nowhere else: the table's columns must not be replaced.
    """

    rows: bool
    deleted: bool


NOTHING_KEPT: Final = Kept(rows=False, deleted=False)
"""Of a table whose rows the copy replaces."""


def kept_rows(spark: SparkSession, rel: RelRow, made: Sequence[TargetColumn], shape: Shape, subscription: str) -> Kept:
    """What a copy afresh keeps of a table of soft deletes, which has the columns that it lacked afterwards.

    Args:
        made: The columns of the published table.
        subscription: For the hint.

    Raises:
        TargetError: There are deleted rows of another shape.
    """
    rows = read_table(spark, rel.path)
    added = added_names("soft_deletes")
    if not set(added).issubset(rows.columns):
        return NOTHING_KEPT  # a table of another mode, which is refused
    deleted = not rows.filter(F.col(added[1]).isNotNull()).isEmpty()
    # of a table that was removed from the subscription meanwhile the former shape is not known
    differs = shape != AS_PUBLISHED if rel.shape is None else shape.differs(rel.shape, rows.columns)
    if differs:
        if not deleted:
            return NOTHING_KEPT
        raise errors.TargetError(
            f'the deleted rows of table "{rel.qualified_name}" were made with another mask or rename_columns, and a '
            "copy would keep them",
            hint=f"delete them in Spark, or move {rel.path} away; then run: "
            f"{remedies.resync(subscription, rel.qualified_name)}",
        )
    lacking = [column for column in made if column.name not in rows.columns]
    if lacking:
        alterations = [AddColumn(c.name, c.type.arrow, None, c.type.place is Place.VARIANT) for c in lacking]
        alter_table(spark, rel.path, alterations, mode="soft_deletes")
    return Kept(rows=True, deleted=deleted)


def with_dropped(
    columns: Sequence[ColumnRow], before: Iterable[ColumnRow], in_table: Collection[str]
) -> list[ColumnRow]:
    """A table's columns, with those that its Delta table keeps of before its copy: on the server they were dropped.

    Another column of such a name is not the one that the Delta table has.

    Args:
        columns: The published table's now.
        before: Those that were known of it.
        in_table: The names of the Delta table's columns.
    """
    rows, names = list(columns), {row.name for row in columns}
    for row in before:
        if row.state != "hidden" and row.name in in_table and row.name not in names:
            numbers = [each.attnum for each in rows]
            gone = replace(row, state="gone")
            rows.append(without_number(gone, numbers) if row.attnum in numbers else gone)
    return rows


def columns_in_target(table: PublishedTable, columns: Iterable[ColumnRow], shape: Shape) -> list[ColumnRow]:
    """All columns of a table, under their names in the Delta table.

    Raises:
        TargetError: A column has the name there of another one, which may be published later.
    """
    named = [replace(column, name=shape.name(column.name)) for column in columns]
    seen: set[str] = set()
    for column in named:
        if column.name in seen:
            raise errors.TargetError(
                f'rename_columns gives a column of table "{table.qualified_name}" the name "{column.name}", which '
                "another column has that is not published",
                hint=f'correct rename_columns in tables."{table.qualified_name}"',
            )
        seen.add(column.name)
    return named

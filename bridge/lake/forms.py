"""The columns of a Delta table in each mode, from those of the published table and back.

mirror     the published table's columns
changelog  the change schema (`bridge.batch.change_schema`), with these columns in `old` and `new`
history, soft_deletes
           the published table's columns, and those of `targets.target.ADDED`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions as F, types as spark_types

from pgbridge.bridge.batch.change_schema import NEW, OLD, OPERATION, change_schema
from pgbridge.bridge.lake.schema import spark_schema, spark_type, target_schema_of
from pgbridge.bridge.runtime.errors import TargetError
from pgbridge.bridge.runtime.warehouse import NO_LAYOUT, Layout
from pgbridge.bridge.targets.location import quoted
from pgbridge.bridge.targets.target import (
    ADDED,
    Mode,
    TargetColumn,
    TargetSchema,
    added_names,
    check_layout,
)
from pgbridge.protocol.values.types import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pyarrow as pa


def valid_rows(mode: Mode, rows: DataFrame) -> DataFrame:
    """The rows of a Delta table that the published table has; all of a mirror's."""
    return rows.filter(F.col(added_names(mode)[1]).isNull()) if mode in ADDED else rows


def delta_schema(
    mode: Mode, fields: Sequence[tuple[str, pa.DataType]], relation: str, variants: Collection[str] = ()
) -> spark_types.StructType:
    """The Delta table's columns for a published table with these columns, of which `variants` become VARIANT.

    Raises:
        TargetError: A column has the name of one that the mode adds.
    """
    if mode in ADDED:
        if taken := [name for name, _ in fields if name.lower() in added_names(mode)]:
            raise TargetError(
                f'table "{relation}" cannot have mode = "{mode}": its column "{taken[0]}" has the name of one that '
                "this mode adds",
                hint='set mode = "changelog" for the table, or leave the column out by a column list',
            )
        return spark_schema([*fields, *ADDED[mode]], variants)
    if mode == "changelog":
        row = spark_schema(fields, variants)
        return spark_types.StructType(
            [
                spark_types.StructField(field.name, row if field.name in {OLD, NEW} else spark_type(field.type))
                for field in change_schema(())
            ]
        )
    if mode == "mirror" and (others := _versions_of(fields)):
        raise TargetError(
            f'table "{relation}" cannot be mirrored: its columns {", ".join(added_names(others[0]))} are those by '
            f'which pgbridge knows a table of mode = "{others[0]}"',
            hint='set mode = "changelog" for the table, or leave one of them out by a column list',
        )
    return spark_schema(fields, variants)


def check_new_table(relation: str, mode: Mode, layout: Layout, columns: Sequence[TargetColumn]) -> None:
    """Check the layout of a Delta table that is not made yet.

    Raises:
        TargetError: The Delta table cannot have it.
    """
    if layout != NO_LAYOUT:
        variants = [column.name for column in columns if column.type.place is Place.VARIANT]
        schema = delta_schema(mode, [(column.name, column.type.arrow) for column in columns], relation, variants)
        check_layout(relation, layout, target_schema_of(schema))


def row_schema(mode: Mode, schema: spark_types.StructType, path: str) -> TargetSchema:
    """The published table's columns in a Delta table; the inverse of `delta_schema`.

    Raises:
        TargetError: The Delta table is of another mode.
    """
    others = [field for field in schema.fields if field.name not in {OLD, NEW}]
    if mode == "changelog":
        wanted = [field for field in delta_schema(mode, (), "").fields if field.name not in {OLD, NEW}]
        images = [field.dataType for field in schema.fields if field.name in {OLD, NEW}]
        named = {field.name: field.dataType for field in others}
        if len(images) != 2 or any(named.get(field.name) != field.dataType for field in wanted):
            raise _of_another_mode(mode, path)
        image = schema[NEW].dataType
        if not isinstance(image, spark_types.StructType):
            raise _of_another_mode(mode, path)
        return target_schema_of(image)
    fields = target_schema_of(schema)
    versions = _versions_of([(field.name, field.arrow) for field in fields])
    if mode not in versions if mode in ADDED else versions:
        raise _of_another_mode(mode, path)
    return tuple(field for field in fields if field.name not in added_names(mode))


def _versions_of(fields: Collection[tuple[str, pa.DataType | None]]) -> list[Mode]:
    """The modes whose added columns are all among these."""
    return [mode for mode, added in ADDED.items() if set(added).issubset(fields)]


def _of_another_mode(mode: Mode, path: str) -> TargetError:
    return TargetError(
        f'the Delta table at {path} does not have the columns of mode = "{mode}"',
        hint="move it away and have the table copied afresh: pgbridge refresh SUB --resync TABLE; or put the mode back",
    )


def copied_rows_as(mode: Mode, rows: DataFrame, snapshot_lsn: int) -> DataFrame:
    """Rows of an initial copy in the columns of a Delta table.

    In a changelog each is an INSERT, with a history or soft deletes a version, as of the LSN just before the
    snapshot's: whatever the stream brings comes after.
    """
    lsn = F.lit(snapshot_lsn - 1).cast("bigint")
    if mode in ADDED:
        (changed_lsn, _), *others = ADDED[mode]
        nothing = [F.lit(None).cast(spark_type(arrow)).alias(name) for name, arrow in others]
        return rows.select("*", lsn.alias(changed_lsn), *nothing)
    if mode == "changelog":
        row = F.struct(*(F.col(quoted(name)).alias(name) for name in rows.columns))
        values = {
            OPERATION: F.lit("INSERT"),
            "commit_lsn": lsn,
            "ordinal": F.monotonically_increasing_id(),
            NEW: row,
            OLD: F.lit(None).cast(rows.schema),
        }
        nulls = {f.name: F.lit(None).cast(spark_type(f.type)) for f in change_schema(()) if f.name not in values}
        return rows.select(*((values | nulls)[name].alias(name) for name in change_schema(()).names))
    return rows

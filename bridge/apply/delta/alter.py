"""Makes planned changes of a Delta table's columns: ALTER TABLE, and one MERGE for the constants of new columns.

All of it is committed under the mark of the batch that needs it, before the batch's own commit, and is taken back with
it: a batch that is cut short in between is not applied again on top of it, because what has to be done would have to
be found out from what is there. (Parts of a batch that fails are applied by earlier definitions; and of two renames
that swap names the table does not tell whether they are made.)

Column mapping and type widening are switched on for a table when it needs them first. Delta does not switch them off
again when the table is taken back; that does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from bridge import faults
from bridge.apply.delta.commit_retry import in_place
from bridge.apply.delta.schema import spark_type, table_properties
from bridge.apply.delta.stage import as_frame
from bridge.apply.evolution.plan import AddColumn, RenameColumn, WidenColumn, fills
from bridge.apply.target.target import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from bridge.apply.evolution.plan import Change

_COLUMN_MAPPING = {"delta.columnMapping.mode": "name"}
_TYPE_WIDENING = {"delta.enableTypeWidening": "true"}
_TIMESTAMP_NTZ = {"delta.feature.timestampNtz": "supported"}


def alter_table(
    spark: SparkSession, path: str, changes: Sequence[Change], log: FilteringBoundLogger | None = None
) -> None:
    """Make changes of a table's columns; within `delta.stamped`, with an application id that no batch has.

    The MERGE is stamped, and is left out by Delta where it is there already. Where others' commits come in the way of
    one of the changes, that one is tried again.
    """

    def run(statement: str) -> None:
        in_place(lambda: spark.sql(statement).collect(), path, log)

    properties = needed_properties(changes)
    if properties:
        detail = spark.sql(f"DESCRIBE DETAIL delta.{quoted(path)}").collect()[0]
        there = detail.properties | {f"delta.feature.{name}": "supported" for name in detail.tableFeatures}
        missing = {key: value for key, value in properties.items() if there.get(key) != value}
        if missing:
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in missing.items())
            run(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ({listed})")
    for statement in statements(path, changes):
        run(statement)
        faults.reach("schema_changed")
    values = fills(changes)
    if values:
        in_place(lambda: _fill(spark, path, values), path, log)
        faults.reach("column_filled")


def needed_properties(changes: Sequence[Change]) -> dict[str, str]:
    """What the table must have switched on for these changes."""
    added = [change.name for change in changes if isinstance(change, AddColumn)]
    properties = table_properties(added)
    if any(isinstance(change, RenameColumn) for change in changes):
        properties |= _COLUMN_MAPPING
    if any(isinstance(change, WidenColumn) for change in changes):
        properties |= _TYPE_WIDENING
    if any(not isinstance(change, RenameColumn) and "timestamp[us]" in str(change.type) for change in changes):
        properties |= _TIMESTAMP_NTZ
    return properties


def statements(path: str, changes: Sequence[Change]) -> Iterator[str]:
    """The changes as statements, in order; columns that are added one after the other are added at once."""
    table = f"ALTER TABLE delta.{quoted(path)}"
    added: list[str] = []
    for change in changes:
        if isinstance(change, AddColumn):
            added.append(f"{quoted(change.name)} {spark_type(change.type).simpleString()}")
            continue
        if added:
            yield f"{table} ADD COLUMNS ({', '.join(added)})"
            added = []
        if isinstance(change, RenameColumn):
            yield f"{table} RENAME COLUMN {quoted(change.name)} TO {quoted(change.new_name)}"
        else:
            yield f"{table} ALTER COLUMN {quoted(change.name)} TYPE {spark_type(change.type).simpleString()}"
    if added:
        yield f"{table} ADD COLUMNS ({', '.join(added)})"


def _fill(spark: SparkSession, path: str, values: dict[str, pa.Scalar]) -> None:
    """Give all rows that are there constants: those from before the columns."""
    names = list(values)
    row = pa.table({f"v{i}": pa.array([values[name].as_py()], values[name].type) for i, name in enumerate(names)})
    view = f"pgbridge_fill_{abs(hash(path)):x}"
    frame = as_frame(spark, row)
    frame.createOrReplaceTempView(view)
    assignments = ", ".join(f"t.{quoted(name)} = s.v{i}" for i, name in enumerate(names))
    try:
        spark.sql(
            f"MERGE INTO delta.{quoted(path)} AS t USING {view} AS s ON true WHEN MATCHED THEN UPDATE SET {assignments}"
        ).collect()
    finally:
        spark.catalog.dropTempView(view)

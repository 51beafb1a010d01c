"""Changes a Delta table's columns as planned: ALTER TABLE, and one MERGE for the constants of new columns.

The changes are committed before the rows of the batch that needs them, with that batch's user metadata, and are undone
with it. A batch that was cut short in between is undone, not repeated: what remains to be done cannot be told from the
table (after two renames that swap names it looks as before; parts of a batch that failed need earlier definitions).

Column mapping and type widening are enabled for a table when a change first needs them. An undo does not disable them,
which does no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from bridge.batch.change_schema import NEW, OLD, UNCHANGED
from bridge.evolution.alterations import AddColumn, Alteration, RenameColumn, WidenColumn, fills, renamings, variants
from bridge.lake.commit_errors import literal
from bridge.lake.retry import retry_commit
from bridge.lake.schema import spark_type, table_properties
from bridge.lake.source import as_frame
from bridge.runtime import faults
from bridge.targets.location import quoted, sql_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from bridge.targets.target import Mode

IMAGES = (f"{OLD}.", f"{NEW}.")
"""Where a changelog has the published table's columns."""

_COLUMN_MAPPING = {"delta.columnMapping.mode": "name"}
_TYPE_WIDENING = {"delta.enableTypeWidening": "true"}
_TIMESTAMP_NTZ = {"delta.feature.timestampNtz": "supported"}


def alter_table(
    spark: SparkSession,
    path: str,
    changes: Sequence[Alteration],
    log: FilteringBoundLogger | None = None,
    *,
    mode: Mode = "mirror",
) -> None:
    """Change a table's columns, within `stamped` with a stamp that `alters`.

    A concurrent commit that makes one of the changes fail has only that one retried.

    Raises:
        TargetBusy: Concurrent commits made every attempt of a change fail; the changes before it are committed.
    """

    def run(statement: str) -> None:
        retry_commit(lambda: spark.sql(statement).collect(), path, log)

    properties = needed_properties(changes)
    if properties:
        detail = spark.sql(f"DESCRIBE DETAIL {sql_name(path)}").collect()[0]
        there = detail.properties | {f"delta.feature.{name}": "supported" for name in detail.tableFeatures}
        missing = {key: value for key, value in properties.items() if there.get(key) != value}
        if missing:
            listed = ", ".join(f"'{key}' = '{value}'" for key, value in missing.items())
            run(f"ALTER TABLE {sql_name(path)} SET TBLPROPERTIES ({listed})")
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

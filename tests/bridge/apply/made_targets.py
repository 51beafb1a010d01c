"""A table of an id and a note, Delta's or in memory, and changes to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pgbridge.bridge.batch.batch import TableChanges
from pgbridge.bridge.catalog.catalog_rows import RelRow
from pgbridge.bridge.effects.events import KEY_TUPLE, NO_OLD
from pgbridge.bridge.lake.ddl import create_table
from pgbridge.bridge.lake.schema import target_schema_of
from pgbridge.bridge.lake.writes import append_rows
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import resolve
from tests.oracle.delta import delta_table
from tests.oracle.memory_tables import MemoryTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

COLUMNS = (TargetColumn("id", resolve(20, -1)), TargetColumn("note", resolve(25, -1)))


def copied(spark: SparkSession, path: str, name: str, make: Callable[[str], object]) -> None:
    """Put a Delta table at a path: a copy of one that is made once in a run, by `make(path)`, under a name of its own.

    A commit to make one takes half a second of a core, each time.
    """
    base = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"), "made", name)
    if not base.exists():
        make(f"{base}.new")
        Path(f"{base}.new").rename(base)
    shutil.copytree(base, path)


def empty_target(spark: SparkSession | MemoryTables, folder: Path, name: str = "t") -> Target:
    """Make an empty table."""
    if not isinstance(spark, MemoryTables):
        return delta_target(spark, folder, name)
    path = str(folder / name)
    spark.put_foreign(path, {"id": pa.int64(), "note": pa.string()})
    return Target("public", name, path, spark.schema(path) or ())


def delta_target(spark: SparkSession, folder: Path, name: str, *rows: tuple[int, str], check: str = "") -> Target:
    """Make a Delta table with rows, and a CHECK constraint."""
    path, columns = str(folder / name), "id long, note string"
    schema = spark.createDataFrame([], columns).schema

    def make(made: str) -> None:
        create_table(spark, made, schema)
        if rows:
            append_rows(spark.createDataFrame(list(rows), columns), made)
        if check:
            spark.sql(f"ALTER TABLE delta.`{made}` ADD CONSTRAINT small CHECK ({check})").collect()

    copied(spark, path, f"target{hash((rows, check))}", make)
    return Target("public", name, path, target_schema_of(schema))


def changes(
    target: Target,
    *rows: tuple[int, int | None, int | None, str | None],
    key: tuple[int, ...] = (0,),
    truncated: bool = False,
) -> TableChanges:
    """Make changes from (op, old key, id, note)."""
    table = changes_of(rows, pa.int64(), pa.string())
    return TableChanges(target, COLUMNS, key, table, truncated)


def changes_of(rows: Sequence[tuple[Any, ...]], key: pa.DataType, *others: pa.DataType) -> pa.Table:
    """Changes of (op, old key, key, other values…), whose key is the first column."""
    return pa.table(
        {
            "seq": pa.array(range(len(rows)), pa.int64()),
            "op": pa.array([row[0] for row in rows], pa.int16()),
            "old": pa.array([NO_OLD if row[1] is None else KEY_TUPLE for row in rows], pa.int16()),
            **{f"new_{i}": pa.array([row[2 + i] for row in rows], type_) for i, type_ in enumerate((key, *others))},
            "old_0": pa.array([row[1] for row in rows], key),
        }
    )


def content(spark: SparkSession | MemoryTables, target: Target) -> list[tuple[Any, ...]]:
    """Its rows, sorted."""
    return sorted(tuple(row.values()) for row in delta_table(spark, target.path).to_pylist())


def joined(lsn: int, target: Target) -> RelRow:
    """What the catalog has of a table that joined the stream at an LSN, and has had no batch since."""
    return RelRow(target.namespace, target.name, "r", Lsn(lsn), target.path)

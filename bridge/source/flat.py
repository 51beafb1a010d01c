"""`shape = "flat"`: the columns of a row beside those of its change, as Spark's AUTO CDC takes changes.

A row of the DataFrame is an upsert, or the delete of a key. So a change of a key is two: a `DELETE` of the key before,
and the `UPDATE`; they have one ordinal. A `DELETE` has the columns of the old image, a `TRUNCATE` has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from pgbridge.bridge.batch.change_schema import NEW, OLD, OPERATION, POSITION, UNCHANGED
from pgbridge.bridge.effects.events import kinds_of, moved_rows
from pgbridge.bridge.lake.schema import spark_schema, spark_type
from pgbridge.bridge.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_BEFORE: Final = [OPERATION, *(name for name, _ in POSITION)]
NAMES: Final = tuple(f"_{name}" for name in (*_BEFORE, UNCHANGED))
"""The columns of the change; those of the row follow."""


def flat_schema(columns: Sequence[tuple[str, pa.DataType]]) -> StructType:
    """Return the schema of a flat stream of one table.

    Raises:
        ConfigError: The table has a column of a name in `NAMES`.
    """
    if both := [name for name, _ in columns if name.casefold() in NAMES]:
        raise ConfigError(
            f'the table has a column "{both[0]}", and so have the changes with shape = "flat"',
            hint="leave out the column by a column list of the publication, or leave out the option",
        )
    common = spark_schema([(OPERATION, pa.string()), *POSITION]).fields
    return StructType(
        [
            *(StructField(f"_{field.name}", field.dataType) for field in common),
            StructField(f"_{UNCHANGED}", ArrayType(StringType())),
            *(StructField(name, spark_type(arrow)) for name, arrow in columns),
        ]
    )


def flattened(batch: pa.RecordBatch, schema: pa.Schema, key: Sequence[str]) -> pa.RecordBatch:
    """Changes in the columns of one table's stream, as rows of a flat one, in their order.

    Args:
        schema: The flat stream's.
        key: The columns that identify a row; empty if all do together.
    """
    names = [field.name for field in batch.schema.field(NEW).type]
    old, new = (dict(zip(names, batch.column(image).flatten(), strict=True)) for image in (OLD, NEW))
    operations = np.array(batch.column(OPERATION).to_pylist(), object)
    moved = _moved(batch, operations, old, new, key or names)
    rows = np.repeat(np.arange(len(batch)), 1 + moved)
    leaves = np.append(rows[1:] == rows[:-1], [False])  # the first of two
    operations = np.where(leaves, "DELETE", operations[rows])
    deleted = pa.array(operations == "DELETE")
    taken = pa.array(rows)
    columns = [pa.array(operations.tolist(), pa.string())]
    columns += [batch.column(name).take(taken) for name in _BEFORE[1:]]
    columns.append(pc.if_else(pa.array(leaves), None, batch.column(UNCHANGED).take(taken)))
    columns += [pc.if_else(deleted, old[name].take(taken), new[name].take(taken)) for name in names]
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _moved(
    batch: pa.RecordBatch,
    operations: np.ndarray,
    old: dict[str, pa.Array],
    new: dict[str, pa.Array],
    key: Sequence[str],
) -> np.ndarray:
    """Mark the UPDATEs that change the key."""
    kinds = kinds_of(operations, batch.column(OLD))
    columns = {f"{OLD}_{k}": old[name] for k, name in enumerate(key)}
    columns |= {f"{NEW}_{k}": new[name] for k, name in enumerate(key)}
    return moved_rows(pa.table({**kinds, **columns}), kinds["op"], range(len(key)))

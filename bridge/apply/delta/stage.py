"""Hands changes to Spark: an Arrow table as a DataFrame, and a large batch's parts ahead of its end."""

from __future__ import annotations

import datetime as dt
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta.schema import spark_schema, spark_type
from bridge.apply.effects.operations import UPDATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

    from bridge.apply.batch.renaming import Renaming


class SparkStage:
    """Keeps changes on the executors' disks, as local checkpoints, so that Python never holds a whole large batch.

    If an executor is lost with its checkpoints, the batch fails and is formed again. Spark removes a checkpoint when
    its DataFrame is garbage.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def put(self, table: pa.Table) -> DataFrame:
        """Checkpoint the table's rows; the DataFrame does not refer to the table."""
        return as_frame(self._spark, table).localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)

    def union(self, pieces: Sequence[tuple[DataFrame, list[Renaming]]]) -> DataFrame:
        """Concatenate pieces of changes, after renaming the columns of each."""
        names = list(dict.fromkeys(renaming.name for _, renamings in pieces for renaming in renamings))
        frames = [frame.select(*map(_column, renamings)) for frame, renamings in pieces]
        together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
        return together.select(
            *(
                F.coalesce(F.col(name), F.lit(False)).alias(name) if name.startswith("unchanged_") else F.col(name)
                for name in names
            )
        )


def _column(renaming: Renaming) -> Column:
    name, source, arrow, value, widened = renaming
    type_ = spark_type(arrow)
    if source is not None:
        return (F.col(source).cast(type_) if widened else F.col(source)).alias(name)
    if name.startswith("unchanged_"):
        return (F.col("op") == UPDATE).alias(name)
    return constant(None if value is None else value.cast(arrow), type_).alias(name)


def constant(value: pa.Scalar | None, type_: DataType) -> Column:
    """A column of one value, or of NULL."""
    found = None if value is None else value.as_py()
    if isinstance(found, dt.datetime):
        found = found.isoformat(" ")  # a datetime would be converted by the machine's time zone
    return F.lit(found).cast(type_)


def as_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Make a DataFrame, with an explicit schema: an inferred one does not tell the two kinds of timestamps apart."""
    schema = spark_schema([(field.name, field.type) for field in table.schema])
    if not len(table):  # PySpark converts no column without chunks
        table = pa.Table.from_batches([pa.RecordBatch.from_pylist([], table.schema)])
    return spark.createDataFrame(table, schema)

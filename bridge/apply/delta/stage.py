"""Holds the changes of a large batch in Spark, so that Python never has all of them."""

from __future__ import annotations

import datetime as dt
from functools import reduce
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from bridge.apply.delta.schema import spark_schema, spark_type
from bridge.apply.effects.operations import UPDATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

    from bridge.apply.batch.renaming import Renaming


class SparkStage:
    """Puts changes on the executors' disks, by checkpoints without lineage: nothing is left of them in the driver.

    A checkpoint that is lost with its executor fails the batch, which is then formed again; Spark removes those
    that nobody refers to.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def put(self, table: pa.Table) -> DataFrame:
        """A DataFrame of the table's rows that does not need the table any more."""
        return as_frame(self._spark, table).localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)

    def union(self, pieces: Sequence[tuple[DataFrame, list[Renaming]]]) -> DataFrame:
        """One DataFrame of pieces of changes, each with its columns renamed."""
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
    """One value, or NULL, for all rows."""
    found = None if value is None else value.as_py()
    if isinstance(found, dt.datetime):
        found = found.isoformat(" ")  # as a value, PySpark would go by the clock of the machine
    return F.lit(found).cast(type_)


def as_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """An Arrow table as a DataFrame, with the schema spelled out: inferred, timestamps would lose their kind."""
    schema = spark_schema([(field.name, field.type) for field in table.schema])
    return spark.createDataFrame(table, schema)

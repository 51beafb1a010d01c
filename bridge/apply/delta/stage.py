"""Hands changes to Spark: an Arrow table as a DataFrame, and a large batch's parts ahead of its end."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import VariantType
from pyspark.sql.utils import is_remote

from bridge.apply.delta.schema import spark_schema, spark_type
from bridge.apply.effects.operations import UPDATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

    from bridge.apply.batch.renaming import Renaming

_PIECE_BYTES: Final = 8 << 20
"""So many bytes of rows are sent to a Connect server with each request; it takes at most 128 MiB."""


class SparkStage:
    """Keeps changes on the executors' disks, as local checkpoints, so that Python never holds a whole large batch.

    If an executor is lost with its checkpoints, the batch fails and is formed again. Spark removes a checkpoint when
    its DataFrame is garbage.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def put(self, table: pa.Table) -> DataFrame:
        """Checkpoint the table's rows; the DataFrame does not refer to the table."""
        frame = as_frame(self._spark, table)
        return frame if is_remote() and table.nbytes > _PIECE_BYTES else checkpointed(frame)

    def union(self, pieces: Sequence[tuple[DataFrame, list[Renaming]]]) -> DataFrame:
        """Concatenate pieces of changes, after renaming the columns of each."""
        names = list(dict.fromkeys(renaming.name for _, renamings in pieces for renaming in renamings))
        frames = [frame.select(*map(_column, renamings)) for frame, renamings in pieces]
        together = concatenated(frames, lambda one, other: one.unionByName(other, allowMissingColumns=True))
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
    if isinstance(type_, VariantType) and found is not None:
        return F.parse_json(F.lit(found))
    return F.lit(found).cast(type_)


def as_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Make a DataFrame, with an explicit schema: an inferred one does not tell the two kinds of timestamps apart.

    On Spark Connect its rows are part of every request that has to do with it. So many rows are sent once, in pieces,
    to local checkpoints. (`createDataFrame` alone would leave them in the server's memory until the session ends.)
    """
    schema = spark_schema([(field.name, field.type) for field in table.schema])
    if not len(table):  # PySpark converts no column without chunks
        table = pa.Table.from_batches([pa.RecordBatch.from_pylist([], table.schema)])
    if not is_remote() or table.nbytes <= _PIECE_BYTES:
        return spark.createDataFrame(table, schema)
    rows = max(1, len(table) * _PIECE_BYTES // table.nbytes)
    pieces = (table.slice(start, rows) for start in range(0, len(table), rows))
    return concatenated([checkpointed(spark.createDataFrame(piece, schema)) for piece in pieces])


def concatenated(
    frames: Sequence[DataFrame], union: Callable[[DataFrame, DataFrame], DataFrame] = DataFrame.union
) -> DataFrame:
    """Concatenate DataFrames in their order, by a plan that is not deep: a Connect server takes 1024 levels at most."""
    level = list(frames)
    while len(level) > 1:
        pairs = (level[i : i + 2] for i in range(0, len(level), 2))
        level = [pair[0] if len(pair) == 1 else union(*pair) for pair in pairs]
    return level[0]


def checkpointed(frame: DataFrame) -> DataFrame:
    """Checkpoint a DataFrame's rows on the executors' disks."""
    with _active(frame.sparkSession):
        return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session of Spark Connect the active one of this thread: its client has a checkpoint belong to that one."""
    if not is_remote():
        yield
        return
    remote: Any = type(spark)
    active = remote._active_session  # noqa: SLF001 - PySpark sets it only where there is none
    before = getattr(active, "session", None)
    active.session = spark
    try:
        yield
    finally:
        active.session = before

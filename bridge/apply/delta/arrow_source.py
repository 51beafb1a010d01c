"""Hands Arrow tables to Spark: as rows of the plan, or beyond some number as a Parquet file in a scratch folder.

Both are immutable, so a MERGE reads them several times and needs no copy. Rows of a plan go to every task of every job
with it; Spark reads of a file only the columns that a job needs, in parallel.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from bridge.apply.delta.schema import spark_schema
from bridge.apply.delta.scratch import scratch_file
from bridge.apply.delta.stage import SparkStage, as_frame, concatenated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

PLAN_ROWS: Final = 50_000
"""Up to this many rows are part of the plan."""

_PLAN_BYTES: Final = 16 << 20
"""… if they are not larger than this, in the plan."""

_ROW_GROUP_ROWS: Final = 100_000  # several, so that tasks can share a file


@contextmanager
def arrow_source(spark: SparkSession, table: pa.Table) -> Iterator[DataFrame]:
    """A table as a DataFrame that is valid within, with nullable columns of the same names."""
    if _fit_plan([table]) or not reads_local_files(spark):
        yield as_frame(spark, table)
        return
    with scratch_file() as path:
        pq.write_table(table, path, compression="none", row_group_size=_ROW_GROUP_ROWS)
        yield _read(spark, path, table.schema)


@contextmanager
def arrow_stream_source(
    spark: SparkSession, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[DataFrame]:
    """The same for rows that come one batch after the other, and may be more than memory holds.

    Args:
        spark: A session that reads local files, or one of Spark Connect.
        schema: The schema of the batches.
        batches: They are all taken before the DataFrame is given.
    """
    if is_remote():
        yield _checkpoints(spark, schema, batches)
        return
    rest, first = iter(batches), list[pa.RecordBatch]()
    while len(first) == 0 or _fit_plan(first):
        batch = next(rest, None)
        if batch is None:
            yield as_frame(spark, pa.Table.from_batches(first, schema))
            return
        first.append(batch)
    # Parquet's readers do not take every name that a table's column may have
    plain = pa.schema([field.with_name(f"c{number}") for number, field in enumerate(schema)])
    with scratch_file() as path:
        with pq.ParquetWriter(path, plain, compression="snappy") as writer:
            for batch in chain(first, rest):
                writer.write_batch(batch.rename_columns(plain.names), _ROW_GROUP_ROWS)
            first.clear()
        yield _read(spark, path, plain).toDF(*schema.names)


def reads_local_files(spark: SparkSession) -> bool:
    """Whether all of Spark runs on this machine, as this user."""
    return not is_remote() and str(spark.sparkContext.master).startswith("local")


def _checkpoints(spark: SparkSession, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> DataFrame:
    """The rows as checkpoints of a Connect server, whose files are not here."""
    stage, frames, waiting = SparkStage(spark), list[DataFrame](), list[pa.RecordBatch]()
    for batch in batches:
        waiting.append(batch)
        if not _fit_plan(waiting):
            frames.append(stage.put(pa.Table.from_batches(waiting, schema)))
            waiting = []
    return concatenated([*frames, as_frame(spark, pa.Table.from_batches(waiting, schema))])


def _fit_plan(batches: Sequence[pa.RecordBatch | pa.Table]) -> bool:
    # in the JVM a row takes eight bytes for each of its values at least
    size_bytes = sum(max(batch.nbytes, 8 * len(batch) * batch.num_columns) for batch in batches)
    return sum(map(len, batches)) <= PLAN_ROWS and size_bytes <= _PLAN_BYTES


def _read(spark: SparkSession, path: Path, schema: pa.Schema) -> DataFrame:
    reader = spark.read.schema(spark_schema([(field.name, field.type) for field in schema]))
    return reader.option("datetimeRebaseMode", "CORRECTED").parquet(path.as_uri())

"""Hands Arrow tables to Spark: as rows of the plan, or beyond some number as a Parquet file in a scratch folder.

Both are immutable, so a MERGE reads them several times and needs no copy. Rows of a plan go to every task of every job
with it; Spark reads of a file only the columns that a job needs, in parallel. A large batch's parts go ahead of
its end.

Scratch files are in a folder of this process, of mode 0700. What a process left that was killed is removed by the next.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import DataType, VariantType

from pgbridge.bridge.lake.log.local_log import folder_uri
from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.spark.session import driver_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

PLAN_ROWS: Final = 50_000
"""Up to this many rows are part of the plan."""

_PLAN_BYTES: Final = 16 << 20
"""… if they are not larger than this, in the plan."""

_ROW_GROUP_ROWS: Final = 100_000  # several, so that tasks can share a file
_ROW_GROUP_BYTES: Final = 32 << 20
"""At most, if it has several rows: a task that reads a row group has all of it in the JVM's heap."""

_LARGE_BYTES: Final = 256 << 10
_OF_LARGE_VALUES: Final[dict[str, Any]] = {"use_dictionary": False, "write_statistics": False}
"""Parquet's writer would have copies of a value for both, and a value may have hundreds of megabytes."""

_PREFIX: Final = "pgbridge-scratch-"  # Spark ignores names that begin with "_" or "."


@contextmanager
def arrow_source(spark: SparkSession, table: pa.Table) -> Iterator[DataFrame]:
    """A table as a DataFrame that is valid within, with nullable columns of the same names."""
    if _fit_plan([table]) or not driver_of(spark).executors_here:
        yield as_frame(spark, table)
        return
    with scratch_file() as path:
        options = _OF_LARGE_VALUES if _has_large_values(table) else {}
        pq.write_table(table, path, compression="none", row_group_size=_group_rows(table), **options)
        yield _read(spark, [path], table.schema)


@contextmanager
def arrow_stream_source(
    spark: SparkSession, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[DataFrame]:
    """The same for rows that come one batch after the other, and may be more than memory holds.

    Args:
        batches: They are all taken before the DataFrame is given.
    """
    if not driver_of(spark).executors_here:
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
    with ExitStack() as files:
        paths: list[Path] = []
        with ExitStack() as open_files:

            @cache
            def writer(*, large_values: bool) -> pq.ParquetWriter:
                paths.append(files.enter_context(scratch_file()))
                options = _OF_LARGE_VALUES if large_values else {}
                return open_files.enter_context(pq.ParquetWriter(paths[-1], plain, compression="snappy", **options))

            for batch in chain(_released(first), rest):
                into = writer(large_values=_has_large_values(batch))
                into.write_batch(batch.rename_columns(plain.names), _group_rows(batch))
        yield _read(spark, paths, plain).toDF(*schema.names)


def _released(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while batches:
        yield batches.pop(0)


def _checkpoints(spark: SparkSession, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> DataFrame:
    """The rows as checkpoints, where Spark's files are not here."""
    frames, waiting = list[DataFrame](), list[pa.RecordBatch]()
    for batch in batches:
        waiting.append(batch)
        if not _fit_plan(waiting):
            frames.append(checkpointed_frame(spark, pa.Table.from_batches(waiting, schema)))
            waiting = []
    return concatenated([*frames, as_frame(spark, pa.Table.from_batches(waiting, schema))])


def _fit_plan(batches: Sequence[pa.RecordBatch | pa.Table]) -> bool:
    # in the JVM a row takes eight bytes for each of its values at least
    size_bytes = sum(max(batch.nbytes, 8 * len(batch) * batch.num_columns) for batch in batches)
    return sum(map(len, batches)) <= PLAN_ROWS and size_bytes <= _PLAN_BYTES


def _group_rows(rows: pa.Table | pa.RecordBatch) -> int:
    size_bytes: int = max(rows.nbytes, 1)
    return max(1, min(_ROW_GROUP_ROWS, len(rows) * _ROW_GROUP_BYTES // size_bytes))


def _has_large_values(rows: pa.Table | pa.RecordBatch) -> bool:
    if rows.nbytes <= _LARGE_BYTES:
        return False
    of_lengths = (
        column for column in rows.columns if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    )
    return rows.nbytes > _LARGE_BYTES * rows.num_columns * len(rows) or any(
        (pc.max(pc.binary_length(column)).as_py() or 0) > _LARGE_BYTES for column in of_lengths
    )


def _read(spark: SparkSession, paths: Sequence[Path], schema: pa.Schema) -> DataFrame:
    reader = spark.read.schema(spark_schema([(field.name, field.type) for field in schema]))
    return reader.option("datetimeRebaseMode", "CORRECTED").parquet(*map(folder_uri, paths))


@contextmanager
def scratch_file() -> Iterator[Path]:
    """A new file for rows, which is removed at the end."""
    descriptor, name = tempfile.mkstemp(".parquet", "rows-", _existing())
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, which is removed at the end with all that is in it."""
    name = tempfile.mkdtemp(prefix="folder-", dir=_existing())
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def _existing() -> Path:
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)  # temporary folders are cleaned of what was not used for days
    return folder


@cache
def _folder() -> Path:
    """This process's folder; those of processes that were killed are removed.

    In a container the process before this one had the same number.
    """
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{_PREFIX}*"):
        number = left.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and (int(number) == os.getpid() or not _is_alive(int(number))):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        with suppress(PermissionError):
            os.kill(pid, 0)
        return True
    return False


def constant(value: pa.Scalar | None, type_: DataType) -> Column:
    """A column of one value, or of NULL."""
    python_value = None if value is None else value.as_py()
    if isinstance(python_value, dt.datetime):
        python_value = python_value.isoformat(" ")  # a datetime would be converted by the machine's time zone
    if isinstance(type_, VariantType) and python_value is not None:
        return F.parse_json(F.lit(python_value))
    return F.lit(python_value).cast(type_)


def as_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Make a DataFrame, with an explicit schema: an inferred one does not tell the two kinds of timestamps apart.

    A driver has its rows in its heap, and on Spark Connect they are part of every request that has to do with it. So
    many rows are checkpointed.
    """
    if table.nbytes > driver_of(spark).piece_bytes:
        return checkpointed_frame(spark, table)
    if not len(table):  # PySpark converts no column without chunks
        table = pa.Table.from_batches([pa.RecordBatch.from_pylist([], table.schema)])
    return _sent(spark, table)


def checkpointed_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Send rows once, in pieces, to local checkpoints, which are on the executors' disks.

    If an executor is lost with them, the batch fails and is formed again. (`createDataFrame` alone would leave them in
    a Connect server's memory until the session ends.) Spark removes a checkpoint when its DataFrame is garbage.
    """
    rows = max(1, len(table) * driver_of(spark).piece_bytes // max(1, table.nbytes))
    pieces = (table.slice(start, rows) for start in range(0, len(table), rows))
    return concatenated([checkpointed(_sent(spark, piece)) for piece in pieces])


def _sent(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The rows, which have chunks, in one request. Nested values are copied first.

    PySpark 4.2 takes no array of them that is a slice and has a NULL ("Null bitmap with offsets slice not supported").
    """
    schema = spark_schema([(field.name, field.type) for field in table.schema])
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            chunks = [pa.concat_arrays([chunk]) for chunk in table.column(number).chunks]
            table = table.set_column(number, field, pa.chunked_array(chunks, field.type))
    return spark.createDataFrame(table, schema)


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
    with driver_of(frame.sparkSession).active(frame.sparkSession):
        return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)

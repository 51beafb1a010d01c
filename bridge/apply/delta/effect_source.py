"""Hands net effects to Spark: as rows of the plan, or beyond some number of rows as a Parquet file in a scratch folder.

Both are immutable, so a MERGE reads them several times and needs no copy. Rows of a plan go to every task of every job
with it; Spark reads of a file only the columns that a job needs, in parallel.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from pyspark.sql.utils import is_remote

from bridge.apply.delta.schema import spark_schema
from bridge.apply.delta.stage import as_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PLAN_ROWS: Final = 50_000
"""Up to this many rows are part of the plan."""

_ROW_GROUP_ROWS: Final = 100_000  # several, so that tasks can share a file
_PREFIX: Final = "pgbridge-effects-"  # Spark ignores names that begin with "_" or "."


@contextmanager
def effect_source(spark: SparkSession, effects: pa.Table) -> Iterator[DataFrame]:
    """Effects as a DataFrame that is valid within, with nullable columns of the same names."""
    if len(effects) <= PLAN_ROWS or is_remote() or not str(spark.sparkContext.master).startswith("local"):
        yield as_frame(spark, effects)
        return
    descriptor, name = _new_file()
    try:
        with os.fdopen(descriptor, "wb") as file:
            pq.write_table(effects, file, compression="none", row_group_size=_ROW_GROUP_ROWS)
        schema = spark_schema([(field.name, field.type) for field in effects.schema])
        reader = spark.read.schema(schema).option("datetimeRebaseMode", "CORRECTED")
        yield reader.parquet(Path(name).as_uri())
    finally:
        Path(name).unlink(missing_ok=True)


def _new_file() -> tuple[int, str]:
    """Create a file; returns its descriptor and its name."""
    folder = _folder()
    Path(folder).mkdir(mode=0o700, exist_ok=True)  # temporary folders are cleaned of what was not used for days
    return tempfile.mkstemp(".parquet", "effects-", folder)


@cache
def _folder() -> str:
    """This process's folder; those of processes that were killed are removed."""
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{_PREFIX}*"):
        number = left.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")


def _is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        with suppress(PermissionError):
            os.kill(pid, 0)
        return True
    return False

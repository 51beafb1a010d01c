"""Commits to a scratch table, so that Spark has loaded and compiled what a batch needs before the first one comes."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from bridge.batch.batch import TableChanges
from bridge.effects.events import INSERT, NO_OLD, UPDATE
from bridge.lake.commit.apply_table import apply_table
from bridge.lake.ddl import create_table
from bridge.lake.log.stamp import CommitStamp, stamped
from bridge.lake.schema import spark_schema
from bridge.lake.source import scratch_folder
from bridge.spark import session
from bridge.targets.target import Target, TargetColumn, target_schema
from protocol.lsn import Lsn
from protocol.values.types import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

ROWS: Final = 6_000
MERGED_ROWS: Final = 60_000
"""So many are merged, if their table is large."""

_MERGED_BYTES: Final = 256 << 20
"""A larger table on the server's disk has more than 64 MiB in Delta's files, as a rule, and is merged into."""


class WarmUp:
    """Warms a young Spark up, once, by a fork of a session, while its user waits for something else."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._begun = False

    def begin(self, table_bytes: Iterable[int]) -> None:
        """Begin in a thread of its own, unless it was begun before or Spark is elsewhere.

        The way to commit to the tables that follow depends on their sizes.
        """
        with self._lock:
            if self._begun:
                return
            self._begun = True
        if session.driver_of(self._spark).executors_here:
            largest_bytes = max(table_bytes, default=0)
            threading.Thread(target=self._run, args=(largest_bytes,), name="warm-up", daemon=True).start()

    def _run(self, largest_bytes: int) -> None:
        with suppress(Exception):  # a real commit tells what is wrong; or Spark was stopped meanwhile
            warm_up(session.fork(self._spark), MERGED_ROWS if largest_bytes > _MERGED_BYTES else ROWS)


def warm_up(spark: SparkSession, rows: int = ROWS) -> None:
    """Commit an INSERT and an UPDATE of so many rows to a scratch table, in a session that nobody else uses."""
    with scratch_folder() as folder:
        path = str(folder / "table")
        columns = (TargetColumn("id", resolve(20, -1)), TargetColumn("value", resolve(25, -1)))
        fields = [(column.name, column.type.arrow) for column in columns]
        create_table(spark, path, spark_schema(fields))
        target = Target("pgbridge", "warm_up", path, target_schema(fields))
        for number, op in enumerate((INSERT, UPDATE), start=1):
            with stamped(spark, CommitStamp("pgbridge/warm_up", Lsn(number - 1), Lsn(number))):
                apply_table(spark, TableChanges(target, columns, (0,), _changes(op, rows)))


def _changes(op: int, rows: int) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table(
        {
            "seq": numbers,
            "op": np.full(rows, op, np.int16),
            "old": np.full(rows, NO_OLD, np.int16),
            "new_0": numbers,
            "new_1": pa.array([str(number) for number in numbers]),
        }
    )

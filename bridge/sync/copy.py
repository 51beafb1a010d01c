"""A published table under an exported snapshot as a DataFrame.

Spark's executors run the COPY statements, in Python; rows pass from the server to the Delta write in Arrow batches, so
that no process ever holds a whole table. That takes Spark some Python processes, which need seconds to start. So a
table of modest size is read by the daemon itself, if Spark runs on the same machine, or is a Spark Connect server,
whose Python then needs nothing of pgbridge.

They are a function over Arrow, not a Python data source: Spark would also run that in a Python of the driver's machine,
where the path of a Python that `spark.archives` unpacks on executors leads nowhere.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F

from pgbridge.bridge.lake import schema, source
from pgbridge.bridge.lake.commit import plan, sessions
from pgbridge.bridge.lake.commit.history_mode import with_deleted_rows
from pgbridge.bridge.lake.forms import copied_rows_as
from pgbridge.bridge.lake.retry import retry_commit
from pgbridge.bridge.lake.writes import overwrite_rows
from pgbridge.bridge.runtime import errors, threads
from pgbridge.bridge.spark.session import driver_of
from pgbridge.bridge.sync import copy_reader, table_reading
from pgbridge.bridge.targets.location import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pgbridge.bridge.apply.context import Context
    from pgbridge.bridge.catalog.catalog_rows import RelRow
    from pgbridge.bridge.lake.log.stamp import CommitStamp
    from pgbridge.bridge.receive.slot import Snapshot
    from pgbridge.bridge.runtime.warehouse import Layout
    from pgbridge.bridge.targets.target import Mode

MOST_CONNECTIONS = 8
"""For one table's copy at a time, however many cores a cluster has: the server serves others, too."""

_LOOK_INTERVAL_S: Final = 0.25
_CANCEL_TIMEOUT_S: Final = 5.0

_LOCAL = re.compile(r"local\[(?:\*|(\d+)).*\]")


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A table that is copied into its Delta table, which is there.

    Attributes:
        rel: Its row in the catalog.
        spec: What reads all its rows.
        lock: Keeps it as it is.
        layout: The Delta table's.
        variants: The columns that are VARIANT there.
        columns_too: Whether the copy replaces the Delta table's columns.
        keeps: Whether rows that are there, and are deleted by now, stay (soft deletes).
        identifying: The Delta table's columns by which rows that are there are those of the copy; may be none.
    """

    rel: RelRow
    spec: copy_reader.CopySpec
    snapshot: Snapshot
    lock: table_reading.TableLock
    mode: Mode
    layout: Layout
    variants: Collection[str]
    _: KW_ONLY
    columns_too: bool = False
    keeps: bool = False
    identifying: Sequence[str] = ()


def copy_at_once(context: Context, copy: TableCopy, stamp: CommitStamp) -> None:
    """Read all rows, and replace those of the Delta table by them, in one commit.

    Raises:
        SyncError: As `copied_rows`.
        TargetBusy: Other writers were in the way.
        PySparkException: Spark cannot read them, or not commit.
    """
    lsn = copy.snapshot.consistent_point
    with copied_rows(context.spark, copy.spec, copy.lock.table_bytes, context.stopping) as read:
        rows = copied_rows_as(copy.mode, schema.stored_rows(in_target(read, copy.spec), copy.variants), lsn)
        if copy.keeps:
            rows = with_deleted_rows(rows, copy.rel.path, copy.identifying, lsn)
        replaced = partial(
            overwrite_rows,
            rows,
            copy.rel.path,
            stamp,
            columns_too=copy.columns_too,
            rows_per_file=copy.lock.rows_per_file,
            layout=copy.layout,
        )
        retry_commit(replaced, copy.rel.path, context.log)


def in_target(rows: DataFrame, spec: copy_reader.CopySpec) -> DataFrame:
    """Rows that were read, under the names that their columns have in the Delta table."""
    return rows if spec.schema.names == spec.target_names else rows.toDF(*spec.target_names)


@contextmanager
def copied_rows(
    spark: SparkSession, spec: copy_reader.CopySpec, table_bytes: int | None, stopping: Callable[[], bool]
) -> Iterator[DataFrame]:
    """The rows as a DataFrame that is valid within, with the target's columns.

    A small table's are in one partition, and of a companion session whose settings suit their number.

    Args:
        table_bytes: The table's size on the server's disk; None if it is not known.
        stopping: Whether the process is to stop: then the statement that runs here is cancelled.

    Raises:
        SyncError: The table cannot be read here, or its statement was cancelled. What the executors meet is Spark's
            error.
    """
    if table_bytes is None or table_bytes > driver_of(spark).copied_bytes:
        yield read_on_executors(spark, spec)
        return
    statement = table_reading.copy_statement(spec.select, spec.row_filters)
    work = plan.work_of_copy(table_bytes)
    with (
        _Canceller(stopping) as canceller,
        source.arrow_stream_source(
            sessions.commit_session(spark, work),
            spec.schema,
            _with_sync_errors(spec.relation, copy_reader.copy_rows(spec, statement, opened=canceller.opened)),
        ) as rows,
    ):
        yield rows if work == "copy" else rows.coalesce(1)


def _with_sync_errors(relation: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell errors as if an executor had met them: this is the copy's own connection, and no other is lost with it."""
    try:
        yield from batches
    except (errors.PublisherError, errors.TargetError) as error:
        raise errors.SyncError(f'cannot copy table "{relation}": {error.message}', hint=error.hint) from error


class _Canceller(threads.Closing):
    """A thread that cancels a connection's statement when the process is to stop; it may wait long for its next row.

    It calls `stopping` a few times a second.
    """

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        self._connection: psycopg.Connection[Any] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canceller of a copy", daemon=True)
        self._thread.start()

    def opened(self, connection: psycopg.Connection[Any]) -> None:
        """This connection's statement is to be cancelled."""
        self._connection = connection

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_INTERVAL_S):
            connection = self._connection
            if connection is not None and self._stopping():
                with suppress(psycopg.Error):  # it may have ended
                    connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)


def read_on_executors(spark: SparkSession, spec: copy_reader.CopySpec) -> DataFrame:
    """The rows as a DataFrame that Spark's executors read, in the copy's order; it has the target's columns."""
    part = [] if spec.order is None else [(copy_reader.PART, pa.int32())]
    columns = schema.spark_schema([*((field.name, field.type) for field in spec.schema), *part])
    numbers = spark.range(0, len(spec.ranges), 1, len(spec.ranges))
    rows = numbers.mapInArrow(partial(copy_reader.read_ranges, spec), columns)
    # fewer tasks, each of which reads several ranges one after the other
    if len(spec.ranges) > MOST_CONNECTIONS and not _few_cores(spark):
        rows = rows.coalesce(MOST_CONNECTIONS)
    if spec.order is None:
        return rows
    divided = rows.repartitionById(spec.order.parts, F.col(quoted(copy_reader.PART))).drop(copy_reader.PART)
    return divided.sortWithinPartitions(F.col(quoted(spec.order.column)))


def _few_cores(spark: SparkSession) -> bool:
    """Whether Spark never runs more tasks at a time than a copy may have connections; a cluster may."""
    master = _LOCAL.fullmatch(spark.conf.get("spark.master", "") or "")
    return master is not None and int(master[1] or os.cpu_count() or 1) <= MOST_CONNECTIONS

"""`spark.read.format("pgoutput")`: the published rows of a table under one snapshot."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from bridge.lake.schema import spark_schema
from bridge.receive.publisher import Publisher
from bridge.source.export import export_snapshot
from bridge.source.slot_stream import published_tables
from bridge.sync.copy_plan import BlockRange
from bridge.sync.copy_reader import CopySpec, copy_rows, copy_spec, range_statement
from bridge.sync.table_lock import TableLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from bridge.source.options import SourceOptions


def snapshot_schema(options: SourceOptions) -> StructType:
    """Return the table's published columns.

    Raises:
        BridgeError: The server cannot be asked, or does not publish the table.
    """
    return spark_schema([(field.name, field.type) for field in _spec(options, "", [BlockRange()]).schema])


@dataclass(frozen=True)
class Range(InputPartition):
    """A range of blocks, read by one COPY under the snapshot that was exported."""

    first: int = 0
    end: int | None = None


class SnapshotReader(DataSourceReader):
    """Reads a table: under an exported snapshot in ranges, else at once, under a snapshot of the task's own."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges; the export's lock, if it has one, keeps the table from being rewritten."""
        options = self._options
        if options.snapshot is None:
            return [Range()]
        with Publisher(options.connection, application_name=options.application_name) as publisher:
            table = published_tables(publisher, options)[0]
        with TableLock(options.connection, table, options.snapshot, application_name=options.application_name) as lock:
            return [Range(blocks.first, blocks.end) for blocks in lock.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range.

        Raises:
            PublisherError: The server refuses, for example because the snapshot's export has ended.
            TargetError: A value cannot be held.
        """
        options = self._options
        blocks = BlockRange(partition.first, partition.end) if isinstance(partition, Range) else BlockRange()
        with ExitStack() as stack:
            snapshot = options.snapshot
            if snapshot is None:
                snapshot = stack.enter_context(export_snapshot(options.connection, options.publications)).name
            spec = _spec(options, snapshot, [blocks])
            yield from copy_rows(spec, range_statement(spec, 0))


def _spec(options: SourceOptions, snapshot: str, ranges: Sequence[BlockRange]) -> CopySpec:
    with Publisher(options.connection, application_name=options.application_name) as publisher:
        table = published_tables(publisher, options)[0]
        types = publisher.types({column.type_oid for column in table.columns})
    return copy_spec(
        table,
        types,
        conninfo=options.connection,
        application_name=options.application_name,
        snapshot=snapshot,
        unrepresentable=options.unrepresentable,
        ranges=ranges,
    )

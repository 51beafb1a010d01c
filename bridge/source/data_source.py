"""`format("pgoutput")` as Spark sees it: what it asks first, and the rows of a table under one snapshot.

See `bridge.source`; `bridge.source.stream_reader` reads a stream.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.server_facts import ServerTypes
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.source.export import export_snapshot
from pgbridge.bridge.source.flat import flat_schema
from pgbridge.bridge.source.frame_schema import table_schema, tables_schema
from pgbridge.bridge.source.options import SourceOptions, published_tables, snapshot_options, stream_options
from pgbridge.bridge.source.stream_reader import HAS_LIMITS, UnlimitedStreamReader
from pgbridge.bridge.sync.copy_reader import CopySpec, copy_rows, copy_spec, range_statement
from pgbridge.bridge.sync.table_reading import TableLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


def snapshot_schema(options: SourceOptions) -> StructType:
    """Return the table's published columns.

    Raises:
        BridgeError: The server cannot be asked, or does not publish the table.
    """
    return spark_schema([(field.name, field.type) for field in _spec(options, "").schema])


@dataclass(frozen=True)
class Range(InputPartition):
    """The condition of a range's rows, read by one COPY under the snapshot that was exported; empty for all rows."""

    condition: str = ""


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
            return [Range(blocks.condition) for blocks in lock.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range.

        Raises:
            PublisherError: The server refuses, for example because the snapshot's export has ended.
            TargetError: A value cannot be held.
        """
        options = self._options
        condition = partition.condition if isinstance(partition, Range) else ""
        with ExitStack() as stack:
            snapshot = options.snapshot
            if snapshot is None:
                snapshot = stack.enter_context(export_snapshot(options.connection, options.publications)).name
            spec = _spec(options, snapshot, condition)
            yield from copy_rows(spec, range_statement(spec, 0))


def _spec(options: SourceOptions, snapshot: str, condition: str = "") -> CopySpec:
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
        ranges=[condition],
    )


class PgoutputSource(DataSource):
    """`spark.readStream.format("pgoutput")`, and `spark.read.format("pgoutput")` for a snapshot."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "pgoutput"

    def schema(self) -> StructType:
        """Return the columns, by the server's catalog.

        Spark does not say whether it is for a stream; only a stream has a slot.

        Raises:
            BridgeError: An option is wrong, or the server cannot be asked.
        """
        if "slot" not in self.options:
            if "table" not in self.options:
                raise ConfigError(
                    'option "slot" is missing for readStream, or option "table" for read',
                    hint="a stream needs connection, publication and slot; a snapshot connection, publication, table",
                )
            return snapshot_schema(snapshot_options(self.options))
        options = stream_options(self.options)
        with Publisher(options.connection, application_name=options.application_name) as publisher:
            types = ServerTypes(publisher)
            tables: dict[str, list[tuple[str, pa.DataType]]] = {}
            for table in published_tables(publisher, options):
                resolved = types([(column.type_oid, column.typmod) for column in table.columns])
                tables[table.qualified_name] = [
                    (column.name, type_.arrow) for column, type_ in zip(table.columns, resolved, strict=True)
                ]
        if options.table is None:
            return tables_schema(tables)
        return (flat_schema if options.flat else table_schema)(tables[options.table])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what reads the changes."""
        options = stream_options(self.options)
        if not HAS_LIMITS:
            return UnlimitedStreamReader(options, schema)
        from pgbridge.bridge.source.limited import LimitedStreamReader  # noqa: PLC0415 - needs Spark 4.2

        return LimitedStreamReader(options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a snapshot."""
        del schema
        return SnapshotReader(snapshot_options(self.options))

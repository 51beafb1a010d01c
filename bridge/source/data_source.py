"""`format("pgoutput")` as Spark sees it: what it asks first, a stream, and the rows of a table under one snapshot.

A stream has offsets, limits, partitions, and what a task reads. See `bridge.source`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource

from pgbridge.bridge.lake.schema import spark_schema
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.server_facts import ServerTypes
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.receive.stream.queue import BatchLimits
from pgbridge.bridge.runtime.errors import ConfigError, SlotAdvanced
from pgbridge.bridge.source.change_rows import ChangeDecoder, ChangeSchema, table_schema, tables_schema
from pgbridge.bridge.source.export import export_snapshot
from pgbridge.bridge.source.look_ahead import LookAhead
from pgbridge.bridge.source.options import SourceOptions, snapshot_options, stream_options
from pgbridge.bridge.source.slot_stream import AFRESH, Offset, SlotStream, check_server, check_slot_of, published_tables
from pgbridge.bridge.sync.copy_reader import CopySpec, copy_rows, copy_spec, range_statement
from pgbridge.bridge.sync.table_reading import TableLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from pgbridge.protocol.lsn import Lsn


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
        return tables_schema(tables) if options.table is None else table_schema(tables[options.table])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what reads the changes."""
        return PgoutputStreamReader(stream_options(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a snapshot."""
        del schema
        return SnapshotReader(snapshot_options(self.options))


_MEMORY_BYTES: Final = 64 << 20  # of an executor's task; as logical_decoding_work_mem, more of a transaction is spooled
_LIMITS: Final = BatchLimits(50_000, 32 << 20, 0)
"""How many rows and bytes of transactions are decoded at a time."""


@dataclass(frozen=True)
class Decoded(InputPartition):
    """A small batch with its rows: an Arrow stream."""

    batches: bytes


@dataclass(frozen=True)
class FromSlot(InputPartition):
    """A batch to be read from the slot."""

    start: Offset
    end: Offset
    confirm_lsn: Lsn | None


class PgoutputStreamReader(DataSourceStreamReader, datasource.SupportsTriggerAvailableNow):
    """Reads a publication's changes.

    Spark has one in the driver's Python process, which plans, and a copy of it in each task, which reads.

    Raises:
        BridgeError: From every method, if the server cannot be asked, or refuses.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._ahead: LookAhead | None = None
        self._target: Lsn | None = None
        ChangeSchema(schema, options.table)  # refuses another schema before anything begins

    # --- in the driver ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the slot stands: until the first batch is committed, nothing moves it."""
        options = self._options
        with (
            Publisher(options.connection, application_name=options.application_name) as publisher,
            ReplicationConnection(options.connection, application_name=options.application_name) as replication,
        ):
            if options.create_slot and publisher.slot(options.slot) is None:
                replication.create_slot(options.slot, export_snapshot=False)
            server = check_server(options, publisher, replication)
            return server.offset(check_slot_of(options, publisher, None, server)).to_json()

    def getDefaultReadLimit(self) -> datasource.ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit, which stands for both options: Spark carries only one."""
        options = self._options
        return (
            datasource.ReadMaxBytes(options.max_bytes)
            if options.max_rows is None
            else datasource.ReadMaxRows(options.max_rows)
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note how far the server is: the query ends there."""
        self._target = self._looking().flush_lsn()

    def latestOffset(self, start: dict[str, Any], limit: datasource.ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next batch ends; `start` if there is none."""
        begin = Offset.of(start)
        limited = not isinstance(limit, datasource.ReadAllAvailable)
        end = self._looking().latest(begin, target=self._target, limited=limited)
        return start if end.lsn == begin.lsn else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return how far the server's WAL is, for the query's progress."""
        return None if self._ahead is None else {"lsn": str(self._ahead.flush_lsn())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition, or none for a batch without rows.

        A batch that is not in memory may be one that the sink has committed, and Spark's checkpoint not: the server
        must still have all of it.
        """
        begin, last = Offset.of(start), Offset.of(end)
        if last.lsn == begin.lsn:
            return []
        if last.lsn < begin.lsn:
            raise SlotAdvanced(
                f'replication slot "{self._options.slot}" begins at {begin.lsn}, after the end of a batch in the '
                f"checkpoint, {last.lsn}: it was dropped and created again, and the changes before it are lost",
                hint=AFRESH,
            )
        ahead = self._looking()
        held = ahead.held(begin, last)
        if held is not None:
            return [Decoded(held.batches)] if held.batches else []
        ahead.check(begin, last)
        return [FromSlot(begin, last, ahead.committed_lsn)]

    def commit(self, end: dict[str, Any]) -> None:
        """Have the slot confirmed up to an offset: Spark's checkpoint has its batch as committed."""
        self._looking().commit(Offset.of(end).lsn)

    def stop(self) -> None:
        """Release the slot."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _looking(self) -> LookAhead:
        if self._ahead is None:
            self._ahead = LookAhead(self._options, ChangeSchema(self._schema, self._options.table))
        return self._ahead

    # --- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a batch's rows.

        Raises:
            ApplyError: A change cannot be decoded, or does not fit the DataFrame's schema.
            PublisherError: The stream was lost.
        """
        if isinstance(partition, Decoded):
            with pa.ipc.open_stream(partition.batches) as reader:
                yield from reader
        elif isinstance(partition, FromSlot):
            yield from self._from_slot(partition)

    def _from_slot(self, partition: FromSlot) -> Iterator[pa.RecordBatch]:
        options = self._options
        with (
            Publisher(options.connection, application_name=options.application_name) as publisher,
            SlotStream(
                options,
                publisher,
                partition.start,
                partition.end,
                confirm_lsn=partition.confirm_lsn,
                memory_bytes=_MEMORY_BYTES,
            ) as stream,
        ):
            decoder = ChangeDecoder.of(options, ChangeSchema(self._schema, options.table), publisher)
            complete = False
            while not complete:
                items, complete = stream.take(partition.end.lsn, _LIMITS)
                yield from decoder.decode(items)

"""Reads a stream for Spark: offsets and partitions in the driver, and rows in a task."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.receive.stream.queue import BatchLimits
from pgbridge.bridge.runtime.errors import ConfigError, SlotAdvanced
from pgbridge.bridge.source.change_rows import ChangeDecoder
from pgbridge.bridge.source.frame_schema import ChangeSchema
from pgbridge.bridge.source.look_ahead import LookAhead
from pgbridge.bridge.source.options import DEFAULT_MAX_BYTES, SourceOptions
from pgbridge.bridge.source.slot_stream import AFRESH, Offset, SlotStream, check_server, check_slot_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from pgbridge.protocol.lsn import Lsn

HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this Spark, 4.2 or later, says where a batch starts, and how large it may be."""

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


class PgoutputStreamReader(DataSourceStreamReader):
    """Reads a publication's changes.

    Spark has one in the driver's Python process, which plans, and a copy of it in each task, which reads.

    Raises:
        BridgeError: From every method, if the server cannot be asked, or refuses.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._ahead: LookAhead | None = None
        ChangeSchema.of(schema, options)  # refuses another schema before anything begins

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

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition, or none for a batch without rows.

        A batch that is not in memory may be one that the sink has committed, and Spark's checkpoint not: the server
        must still have all of it.
        """
        begin, last = Offset.of(start), Offset.of(end)
        if last.lsn == begin.lsn:
            return []
        ahead = self._looking()
        if last.lsn < begin.lsn:
            ahead.check(begin, begin)
            raise SlotAdvanced(
                f'replication slot "{self._options.slot}" begins at {begin.lsn}, after the end of a batch in the '
                f"checkpoint, {last.lsn}: it was dropped and created again, and the changes before it are lost",
                hint=AFRESH,
            )
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
            self._ahead = LookAhead(self._options, ChangeSchema.of(self._schema, self._options))
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
            decoder = ChangeDecoder.of(options, ChangeSchema.of(self._schema, options), publisher)
            complete = False
            while not complete:
                items, complete = stream.take(partition.end.lsn, _LIMITS)
                yield from decoder.decode(items)


class UnlimitedStreamReader(PgoutputStreamReader):
    """Reads all that the server has in each batch.

    Spark 4.0 and 4.1 say neither where the next batch starts nor how large it may be. So the start is kept from batch
    to batch. At first it is unknown, and the batch goes to where the server is.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.max_bytes != DEFAULT_MAX_BYTES or options.max_rows is not None:
            raise ConfigError(
                f"maxBytesPerTrigger and maxRowsPerTrigger need Spark 4.2, and this is Spark {pyspark.__version__}",
                hint="leave them out: each batch has all that the server has",
            )
        if options.create_slot:  # the first offset is asked for after the first batch's end
            raise ConfigError(
                f"create_slot needs Spark 4.2, and this is Spark {pyspark.__version__}",
                hint=f"run on the server: SELECT pg_create_logical_replication_slot('{options.slot}', 'pgoutput')",
            )
        super().__init__(options, schema)
        self._start: Offset | None = None

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name, as 4.1 has it
        """Return where the server is; the start of the batch if nothing published was changed."""
        ahead, start = self._looking(), self._start
        self._start = ahead.everything() if start is None else ahead.latest(start, target=None, limited=False)
        return self._start.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition, or none for a batch without rows; the next batch starts at the end."""
        self._start = Offset.of(end)
        return super().partitions(start, end)

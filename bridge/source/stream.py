"""A published table's changes in one line: as a streaming DataFrame, or on to a Delta table with the table's rows."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from pyspark.errors import AnalysisException

from pgbridge.bridge.lake.schema import table_properties
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError
from pgbridge.bridge.source.export import export_snapshot
from pgbridge.bridge.source.options import published_tables, stream_options
from pgbridge.bridge.source.register import register
from pgbridge.bridge.source.slot_stream import AFRESH
from pgbridge.bridge.source.stream_reader import HAS_LIMITS

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_BATCH_BYTES: Final = "64m"


class StreamOptions(TypedDict, total=False):
    """The source's other options, as docs/spark-source.md describes them; of `stream`."""

    create_slot: bool
    maxBytesPerTrigger: int | str
    maxRowsPerTrigger: int
    idleIntervalSeconds: float
    slotTimeoutSeconds: float
    unrepresentable: Literal["error", "null"]
    upgradedFrom: str


@dataclass(frozen=True)
class Stream:
    """The changes of one published table.

    Attributes:
        options: The source's options, as `.option` takes them.
    """

    spark: SparkSession = field(repr=False)
    options: dict[str, str] = field(repr=False)

    def __repr__(self) -> str:
        """Say what it is of; the connection may have a password."""
        return f"<changes of {self.options['table']}, published by {self.options['publication']}>"

    @property
    def changes(self) -> DataFrame:
        """The changes as they come: a streaming DataFrame in the columns of docs/spark-source.md."""
        return self.spark.readStream.format("pgoutput").options(**self.options).load()

    def to_delta(self, path: str, *, checkpoint: str, **trigger: Any) -> StreamingQuery:
        """Have a Delta table follow the published one: a copy of its rows if it does not exist, then the changes.

        It can be killed at any time and started again. With Spark 4.2 a batch covers 64 MB of WAL, unless the options
        of the stream say something else: its rows pass the driver.

        Args:
            path: The Delta table's absolute path, or URI.
            checkpoint: The folder of the query's checkpoint.
            trigger: As Spark's `trigger` takes it: `availableNow=True`, `processingTime="10 seconds"`. Without one, a
                batch begins when the one before has ended.

        Returns:
            The query, which runs.

        Raises:
            ConfigError: The table has no key that is published; the checkpoint is that of a query whose Delta table is
                not there; or `copy_to` refuses.
            PublisherError: As `copy_to`.
            ImportError: Delta is not installed.
        """
        merge = _merging("to_delta").merge_into(path, key=self._key())
        self._copy_to(path, checkpoint)
        of_batch = {"maxBytesPerTrigger": _BATCH_BYTES} if HAS_LIMITS else {}
        changes = Stream(self.spark, {**of_batch, **self.options}).changes
        writer = changes.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def _key(self) -> tuple[str, ...]:
        options = stream_options(self.options)
        with Publisher(options.connection, application_name=options.application_name) as publisher:
            (table,) = published_tables(publisher, options)
        if not table.row_key:
            raise ConfigError(
                f'table "{options.table}" has no primary key that is published, so a MERGE cannot tell its rows apart',
                hint="use the daemon, which keeps such tables, or append the changes as they come",
            )
        return table.row_key

    def copy_to(self, path: str) -> None:
        """Copy the table's rows into a Delta table, unless it exists, and create the slot that begins exactly there.

        Afterwards both are there: a query of `changes` goes on where the copy ends. A copy that fails leaves neither.

        Args:
            path: The Delta table's absolute path, or URI.

        Raises:
            ConfigError: `create_slot` is set: the slot is created here.
            PublisherError: The server refuses; or only one of slot and Delta table exists.
            ImportError: Delta is not installed.
        """
        self._copy_to(path)

    def _copy_to(self, path: str, checkpoint: str | None = None) -> None:
        """Do what `copy_to` does, unless the query has begun, so that its table was there."""
        merging = _merging("copy_to")
        options = stream_options(self.options)
        connection, slot = options.connection, options.slot
        if options.create_slot:
            raise ConfigError("the copy creates its slot", hint="leave out create_slot")
        copied = merging.is_table(self.spark, path)  # before the slot, which is there before its copy
        with Publisher(connection, application_name=options.application_name) as publisher:
            begun = publisher.slot(slot) is not None
        if copied:
            if not begun:
                there = f'replication slot "{slot}" does not exist, and {path} does'
                raise PublisherError(f"{there}: the changes since its copy are lost", hint=AFRESH)
            return
        if checkpoint is not None and self._has_begun(checkpoint):
            raise ConfigError(
                f"{checkpoint} is the checkpoint of a query that has begun, and there is no Delta table at {path}",
                hint=f"correct the path, or begin again: {AFRESH}",
            )
        if begun:
            raise PublisherError(
                f'replication slot "{slot}" exists, and {path} does not: its copy was cut short, or is elsewhere',
                hint="correct the path, or name another slot; if a copy of this query was killed, begin again once its "
                f"slot is dropped, on the server by: {remedies.drop_slot(slot)}",
            )
        read = {name: self.options[name] for name in ("connection", "publication", "table")}
        read["unrepresentable"] = options.unrepresentable
        with ExitStack() as stack:
            exported = export_snapshot(connection, options.publications, slot=slot, table=options.table)
            snapshot = stack.enter_context(exported)
            try:
                rows = self.spark.read.format("pgoutput").options(**read, snapshot=snapshot.name).load()
                with merging.settings(self.spark, merging.MICROSECONDS):
                    rows.write.format("delta").options(**table_properties(rows.columns)).save(path)
            except BaseException:
                if merging.is_table(self.spark, path):
                    raise  # it is there, whatever was raised: the slot belongs to it
                stack.close()  # the snapshot's connection has the slot
                with ReplicationConnection(connection, application_name=slot) as replication:
                    replication.drop_slot(slot)
                raise

    def _has_begun(self, checkpoint: str) -> bool:
        """Whether the checkpoint has the file that Spark writes when a query begins."""
        try:
            _ = self.spark.read.text(f"{checkpoint}/metadata").schema  # Spark Connect looks only now
        except AnalysisException:
            return False
        return True


def _merging(what: str) -> ModuleType:
    """The part that needs Delta; `changes` does without."""
    return remedies.imported("pgbridge.bridge.source.merge", what)


def stream(
    spark: SparkSession,
    *,
    connection: str,
    publication: str,
    table: str,
    slot: str,
    **options: Unpack[StreamOptions],
) -> Stream:
    """Return the changes of a published table, for a query of its own.

    Args:
        spark: The session; the format "pgoutput" is registered in it.
        connection: libpq's connection string or URI, as driver and executors reach the server.
        publication: One, or several with commas between them.
        table: `schema.name`.
        slot: The query's own slot; `copy_to` and `to_delta` create it.
        options: Further options of the source.

    Raises:
        ConfigError: An option is unknown, or has a value that it cannot have.
    """
    register(spark)
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    every = {"connection": connection, "publication": publication, "table": table, "slot": slot, **given}
    stream_options(every)
    return Stream(spark, every)

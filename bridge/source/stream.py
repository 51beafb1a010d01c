"""A published table's changes in one line: as a streaming DataFrame, or on to a Delta table with the table's rows."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from delta.tables import DeltaTable

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.source.export import export_snapshot
from pgbridge.bridge.source.merge import MICROSECONDS, merge_into, settings
from pgbridge.bridge.source.options import stream_options
from pgbridge.bridge.source.register import register
from pgbridge.bridge.source.slot_stream import published_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


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

        The copy and the stream meet exactly, by a slot that is created with the copy's snapshot. It can be killed at
        any time and started again.

        Args:
            path: The Delta table's path.
            checkpoint: The folder of the query's checkpoint.
            trigger: As Spark's `trigger` takes it: `availableNow=True`, `processingTime="10 seconds"`. Without one, a
                batch begins when the one before has ended.

        Returns:
            The query, which runs.

        Raises:
            ConfigError: The table has no key that is published.
            PublisherError: The server refuses; for example, the slot exists and the Delta table does not.
        """
        merge = merge_into(path, key=self._key())
        if not DeltaTable.isDeltaTable(self.spark, path):
            self._copy(path)
        writer = self.changes.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint)
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

    def _copy(self, path: str) -> None:
        connection, slot = self.options["connection"], self.options["slot"]
        options = stream_options(self.options)
        read = {name: self.options[name] for name in ("connection", "publication", "table")}
        if options.unrepresentable == "null":
            read["unrepresentable"] = "null"
        with ExitStack() as stack:
            snapshot = stack.enter_context(export_snapshot(connection, options.publications, slot=slot))
            try:
                rows = self.spark.read.format("pgoutput").options(**read, snapshot=snapshot.name).load()
                with settings(self.spark, MICROSECONDS):
                    rows.write.format("delta").save(path)
            except BaseException:
                stack.close()  # the snapshot's connection has the slot
                with ReplicationConnection(connection, application_name=slot) as replication:
                    replication.drop_slot(slot)
                raise


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
        slot: The query's own slot; `to_delta` creates it.
        options: Further options of the source.

    Raises:
        ConfigError: An option is unknown, or has a value that it cannot have.
    """
    register(spark)
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    every = {"connection": connection, "publication": publication, "table": table, "slot": slot, **given}
    stream_options(every)
    return Stream(spark, every)

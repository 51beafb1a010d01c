"""`format("pgoutput")`: what Spark asks first. See `bridge.source`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from bridge.receive.publisher import Publisher
from bridge.receive.server_facts import ServerTypes
from bridge.runtime.errors import ConfigError
from bridge.source.change_rows import table_schema, tables_schema
from bridge.source.options import snapshot_options, stream_options
from bridge.source.slot_stream import published_tables
from bridge.source.snapshot import SnapshotReader, snapshot_schema
from bridge.source.stream_reader import PgoutputStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


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

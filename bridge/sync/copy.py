"""Reads a published table under an exported snapshot, as a Spark data source over COPY … (FORMAT binary).

Spark's executors run the COPY statements; rows pass from the server to the Delta write in Arrow batches, so that no
process ever holds a whole table.
"""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql as psql
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bridge.apply.delta.schema import spark_schema
from bridge.apply.target.target import unrepresentable_hint
from bridge.apply.target.widening import widened
from bridge.errors import TargetError
from bridge.receive.connection import connect, translated
from bridge.receive.copy_out import copy_out
from bridge.sync.block_ranges import BlockRange
from bridge.sync.copy_statement import copy_select, copy_statement
from protocol.copy import CopyDecoder
from protocol.errors import UnrepresentableValue
from protocol.values.types import BUILTIN, TypeInfo, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bridge.apply.target.target import TargetColumn
    from bridge.publication.published_table import PublishedTable

MOST_CONNECTIONS = 8
"""For one table's copy at a time, however many cores a cluster has: the server serves others, too."""

_LOCAL = re.compile(r"local\[(?:\*|(\d+)).*\]")

_SETTINGS = {
    # Row security must not remove rows from a copy silently: the copy fails instead, as pg_dump does.
    "row_security": "off",
    # A command that waits to rewrite the table waits for our `TableLock`, and new readers queue behind it: a deadlock.
    "lock_timeout": "'5s'",
    # Several ranges are read at a time already.
    "max_parallel_workers_per_gather": "0",
}
"""Settings of a reader's transaction."""


def encoded(schema: pa.Schema) -> str:
    """Return a schema as text, for a data source's option."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


@dataclass(frozen=True, slots=True)
class CopySpec:
    """The data that a reader on an executor needs, as plain values.

    Attributes:
        connection_secret: The connection string. Spark redacts options with "secret" in their name.
        application_name: For pg_stat_activity; it wins over the connection string's.
        snapshot: The exported snapshot's name.
        relation: `namespace.name`, for messages.
        select: SELECT … FROM …, without conditions.
        row_filters: SQL expressions; a row passes if any of them is true, or if there are none.
        ranges: A Spark partition for each: its first block, and the first block after it, None for no end.
        columns: (name, type oid, typmod) of each column of the SELECT.
        schema: These columns as the target has them, `encoded`.
        types: Properties of the types that are not built in.
        unrepresentable: What to do with a value that the target's type cannot hold: "error" or "null".
        key: Key columns; `unrepresentable` does not apply to them.
    """

    connection_secret: str
    application_name: str
    snapshot: str
    relation: str
    select: str
    row_filters: list[str]
    ranges: list[tuple[int, int | None]]
    columns: list[tuple[str, int, int]]
    schema: str
    types: list[dict[str, Any]]
    unrepresentable: str
    key: list[str]

    def options(self) -> dict[str, str]:
        """Return the data source's options."""
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in asdict(self).items()}

    @property
    def arrow(self) -> pa.Schema:
        """The schema, decoded."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CopySpec:
        """Read the data source's options."""
        return cls(
            options["connection_secret"],
            options["application_name"],
            options["snapshot"],
            options["relation"],
            options["select"],
            json.loads(options["row_filters"]),
            [(first, end) for first, end in json.loads(options["ranges"])],
            [(name, oid, typmod) for name, oid, typmod in json.loads(options["columns"])],
            options["schema"],
            json.loads(options["types"]),
            options["unrepresentable"],
            json.loads(options["key"]),
        )


class CopySource(DataSource):
    """`spark.read.format("pgbridge_copy")`: a published table under a snapshot."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "pgbridge_copy"

    def schema(self) -> StructType:
        """Return the target's columns."""
        return spark_schema([(field.name, field.type) for field in CopySpec.of(self.options).arrow])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        del schema
        return CopyReader(CopySpec.of(self.options))


class CopyReader(DataSourceReader):
    """Reads each range as one partition."""

    def __init__(self, spec: CopySpec) -> None:
        self._spec = spec

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each range: its COPY statement."""
        spec = self._spec
        return [
            InputPartition(copy_statement(spec.select, spec.row_filters, BlockRange(*blocks))) for blocks in spec.ranges
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run one partition's COPY statement."""
        spec = self._spec
        connection = connect(spec.connection_secret, application_name=spec.application_name)
        try:
            # CopyMonitor finds the COPY by this name, even if the connection string sets another
            connection.execute("SELECT set_config('application_name', %s, false)", (spec.application_name,))
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(psql.SQL("SET TRANSACTION SNAPSHOT {}").format(psql.Literal(spec.snapshot)))
            for setting, value in _SETTINGS.items():
                connection.execute(f"SET LOCAL {setting} = {value}".encode())
            yield from self._rows(connection, partition.value)
        except psycopg.Error as error:
            raise translated(error, f'cannot copy table "{spec.relation}"') from error
        finally:
            connection.close()

    def _rows(self, connection: psycopg.Connection[Any], statement: str) -> Iterator[pa.RecordBatch]:
        spec = self._spec
        catalog = _catalog({info["oid"]: TypeInfo(**info) for info in spec.types})
        types = [resolve(oid, typmod, catalog) for _, oid, typmod in spec.columns]
        names = [name for name, _, _ in spec.columns]
        policy: Any = spec.unrepresentable
        decoder = CopyDecoder(types, names, unrepresentable=policy, key=spec.key)
        try:
            for messages in copy_out(connection, statement, len(types)):
                yield from _widened(decoder.decode(messages), spec.arrow).to_batches()
            decoder.finish()
        except UnrepresentableValue as error:
            raise TargetError(
                f'table "{spec.relation}": {error}',
                hint=unrepresentable_hint(in_key=error.column in spec.key),
            ) from error


def _widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the target's types."""
    for i, field in enumerate(schema):
        if not rows.field(i).type.equals(field.type):
            rows = rows.set_column(i, field.name, widened(rows.column(i), field.type))
    return rows


def read_table(  # noqa: PLR0913 - the fields of CopySpec, from several sources
    spark: SparkSession,
    table: PublishedTable,
    types: Mapping[int, TypeInfo],
    *,
    conninfo: str,
    application_name: str,
    snapshot: str,
    unrepresentable: str,
    ranges: Sequence[BlockRange] = (BlockRange(),),
    columns: Sequence[TargetColumn] | None = None,
) -> DataFrame:
    """Return the rows of a published table under a snapshot, as row filters and column lists restrict them.

    Args:
        spark: The Spark session.
        table: The published table.
        types: The types of its columns.
        conninfo: The publisher, as the executors reach it.
        application_name: For pg_stat_activity; it wins over the connection string's.
        snapshot: The exported snapshot's name.
        unrepresentable: What to do with a value that the target's type cannot hold.
        ranges: A Spark partition for each. More than one range needs a `TableLock`.
        columns: The published columns as the target has them, perhaps with wider types; None if it has the same.

    Returns:
        A DataFrame with the published columns, in the target's types.
    """
    spark.dataSource.register(CopySource)
    own = [info for oid, info in types.items() if oid not in BUILTIN]
    published = {column.name: resolve(column.type_oid, column.typmod, types).arrow for column in table.columns}
    targets = {**published, **{column.name: column.type.arrow for column in columns or ()}}
    spec = CopySpec(
        conninfo,
        application_name,
        snapshot,
        table.qualified_name,
        copy_select(table, types),
        list(table.row_filters),
        [(blocks.first, blocks.end) for blocks in ranges],
        [(column.name, column.type_oid, column.typmod) for column in table.columns],
        encoded(pa.schema(targets.items())),
        [asdict(info) for info in own],
        unrepresentable,
        _key(table),
    )
    rows = spark.read.format("pgbridge_copy").options(**spec.options()).load()
    # fewer tasks, each of which reads several ranges one after the other
    return rows if len(ranges) <= MOST_CONNECTIONS or _few_cores(spark) else rows.coalesce(MOST_CONNECTIONS)


def _few_cores(spark: SparkSession) -> bool:
    """Whether Spark never runs more tasks at a time than a copy may have connections; a cluster may."""
    master = _LOCAL.fullmatch(spark.conf.get("spark.master", "") or "")
    return master is not None and int(master[1] or os.cpu_count() or 1) <= MOST_CONNECTIONS


def _key(table: PublishedTable) -> list[str]:
    """Return the columns by which changes will find rows, as `key_of` does for a Relation message."""
    match table.replica_identity:
        case "n":
            return []
        case "i":
            return list(table.index_columns)
        case _:
            return list(table.primary_key)


def _catalog(own: Mapping[int, TypeInfo]) -> dict[int, TypeInfo]:
    return {**BUILTIN, **own}

"""The initial copy's reader: COPY … TO STDOUT (FORMAT binary) under an exported snapshot, as a Spark data source.

Spark's executors read; rows go from the server to the Delta write in Arrow batches, and never gather anywhere.
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
from bridge.sync.table_lock import select, where
from protocol.copy import CopyDecoder, copy_expression
from protocol.errors import UnrepresentableValue
from protocol.values.types import BUILTIN, TypeInfo, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bridge.apply.target.target import TargetColumn
    from bridge.publication.published_table import PublishedTable

MOST_CONNECTIONS = 8
"""Of one table's copy at a time, however many cores a cluster has: the server has others to serve."""

_LOCAL = re.compile(r"local\[(?:\*|(\d+)).*\]")

_SETTINGS = {
    # Row security may not thin out a copy silently: it fails instead, as with pg_dump.
    "row_security": "off",
    # What waits for its turn to rewrite the table waits for us, and so would never let us have it.
    "lock_timeout": "'5s'",
    # A copy's processes are its ranges.
    "max_parallel_workers_per_gather": "0",
}
"""Of a reader's transaction."""


def encoded(schema: pa.Schema) -> str:
    """A schema as an option's text."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


@dataclass(frozen=True, slots=True)
class CopySpec:
    """What a reader on an executor has to know, as plain data.

    Attributes:
        connection_secret: The connection string. Spark blots out options with "secret" in their name.
        application_name: For pg_stat_activity, whatever the connection string says.
        snapshot: The exported snapshot's name.
        relation: `namespace.name`, for messages.
        select: SELECT … FROM …, without conditions.
        row_filters: SQL expressions, any of which lets a row pass; empty when there is no filter.
        ranges: First block, and the block behind the last or None: a partition each.
        columns: (name, type oid, typmod) of what they return.
        schema: These columns as the target has them, `encoded`.
        types: Facts of the types that are not built in.
        unrepresentable: What becomes of a value the target's type cannot hold.
        key: Names of the columns by which changes find rows: what becomes of others does not become of theirs.
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
        """As a data source's options."""
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in asdict(self).items()}

    @property
    def arrow(self) -> pa.Schema:
        """The target's columns."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CopySpec:
        """Back from a data source's options."""
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
        """The format's name."""
        return "pgbridge_copy"

    def schema(self) -> StructType:
        """The target's columns."""
        return spark_schema([(field.name, field.type) for field in CopySpec.of(self.options).arrow])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader; the schema is `schema`'s."""
        del schema
        return CopyReader(CopySpec.of(self.options))


class CopyReader(DataSourceReader):
    """Reads each of a spec's ranges as one partition."""

    def __init__(self, spec: CopySpec) -> None:
        self._spec = spec

    def partitions(self) -> list[InputPartition]:
        """One for each range."""
        spec = self._spec
        return [
            InputPartition(copy_statement(spec.select, spec.row_filters, BlockRange(*blocks))) for blocks in spec.ranges
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Copy one partition's rows."""
        spec = self._spec
        connection = connect(spec.connection_secret, application_name=spec.application_name)
        try:
            # what the progress goes by, also where the connection string has a name of its own
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
    """Rows in the target's types."""
    for i, field in enumerate(schema):
        if not rows.field(i).type.equals(field.type):
            rows = rows.set_column(i, field.name, widened(rows.column(i), field.type))
    return rows


def read_table(  # noqa: PLR0913 - what it reads, from where, as what
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
    """A published table's rows under a snapshot, as the publications restrict them.

    Args:
        spark: The session.
        table: What is published.
        types: Of the columns.
        conninfo: The publisher, as the executors reach it.
        application_name: For pg_stat_activity, whatever the connection string says.
        snapshot: The exported snapshot's name.
        unrepresentable: What becomes of a value the target's type cannot hold.
        ranges: A partition each. Several need the table to be held (`bridge.sync.table_lock`).
        columns: The published ones as the target has them, which may be wider; None: as they are published.

    Returns:
        A DataFrame with the published columns under their names, in the target's types.
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
    # a task reads its ranges one after the other
    return rows if len(ranges) <= MOST_CONNECTIONS or _few_cores(spark) else rows.coalesce(MOST_CONNECTIONS)


def _few_cores(spark: SparkSession) -> bool:
    """Whether Spark runs no more tasks at a time than a copy may have connections; a cluster may come to do so."""
    master = _LOCAL.fullmatch(spark.conf.get("spark.master", "") or "")
    return master is not None and int(master[1] or os.cpu_count() or 1) <= MOST_CONNECTIONS


def copy_select(table: PublishedTable, types: Mapping[int, TypeInfo]) -> str:
    """What selects a table's published columns in the form in which COPY's values are read."""
    resolved = {column.name: resolve(column.type_oid, column.typmod, types) for column in table.columns}
    return select(table, [copy_expression(name, type_) for name, type_ in resolved.items()])


def copy_statement(select: str, row_filters: Sequence[str], blocks: BlockRange) -> str:
    """The COPY statement that reads a range, filtered on the server."""
    return f"COPY ({select}{where(row_filters, blocks)}) TO STDOUT (FORMAT binary)"


def _key(table: PublishedTable) -> list[str]:
    """The columns by which changes will find rows: those that `key_of` finds in a Relation message."""
    match table.replica_identity:
        case "n":
            return []
        case "i":
            return list(table.index_columns)
        case _:
            return list(table.primary_key)


def _catalog(own: Mapping[int, TypeInfo]) -> dict[int, TypeInfo]:
    return {**BUILTIN, **own}

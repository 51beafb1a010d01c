"""The initial copy's reader: COPY … TO STDOUT (FORMAT binary) under an exported snapshot, as a Spark data source.

Spark's executors read; rows go from the server to the Delta write in Arrow batches, and never gather anywhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql as psql
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bridge.apply.target import spark_schema, unrepresentable_hint
from bridge.errors import TargetError
from bridge.receive.connection import connect, translated
from protocol.copy import CopyDecoder, copy_expression
from protocol.errors import UnrepresentableValue
from protocol.types import BUILTIN, TypeInfo, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from bridge.receive.publisher import PublishedTable

_ROWS_PER_BATCH = 50_000
_BYTES_PER_BATCH = 16 << 20


@dataclass(frozen=True, slots=True)
class CopySpec:
    """What a reader on an executor has to know, as plain data.

    Attributes:
        connection_secret: The connection string. Spark blots out options with "secret" in their name.
        application_name: For pg_stat_activity.
        snapshot: The exported snapshot's name.
        relation: `namespace.name`, for messages.
        queries: The COPY's SELECTs, one a partition.
        columns: (name, type oid, typmod) of what they return.
        types: Facts of the types that are not built in.
        unrepresentable: What becomes of a value the target's type cannot hold.
        key: Names of the columns by which changes find rows: what becomes of others does not become of theirs.
    """

    connection_secret: str
    application_name: str
    snapshot: str
    relation: str
    queries: list[str]
    columns: list[tuple[str, int, int]]
    types: list[dict[str, Any]]
    unrepresentable: str
    key: list[str]

    def options(self) -> dict[str, str]:
        """As a data source's options."""
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in asdict(self).items()}

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CopySpec:
        """Back from a data source's options."""
        return cls(
            options["connection_secret"],
            options["application_name"],
            options["snapshot"],
            options["relation"],
            json.loads(options["queries"]),
            [(name, oid, typmod) for name, oid, typmod in json.loads(options["columns"])],
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
        spec = CopySpec.of(self.options)
        types = {info["oid"]: TypeInfo(**info) for info in spec.types}
        return spark_schema([(name, resolve(oid, typmod, _catalog(types)).arrow) for name, oid, typmod in spec.columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader; the schema is `schema`'s."""
        del schema
        return CopyReader(CopySpec.of(self.options))


class CopyReader(DataSourceReader):
    """Reads each of a spec's queries as one partition."""

    def __init__(self, spec: CopySpec) -> None:
        self._spec = spec

    def partitions(self) -> list[InputPartition]:
        """One for each query."""
        return [InputPartition(query) for query in self._spec.queries]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Copy one partition's rows."""
        spec = self._spec
        connection = connect(spec.connection_secret, application_name=spec.application_name)
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(psql.SQL("SET TRANSACTION SNAPSHOT {}").format(psql.Literal(spec.snapshot)))
            # Row security may not thin out a copy silently: it fails instead, as with pg_dump.
            connection.execute("SET LOCAL row_security = off")
            yield from self._rows(connection, partition.value)
        except psycopg.Error as error:
            raise translated(error, f'cannot copy table "{spec.relation}"') from error
        finally:
            connection.close()

    def _rows(self, connection: psycopg.Connection[Any], query: str) -> Iterator[pa.RecordBatch]:
        spec = self._spec
        catalog = _catalog({info["oid"]: TypeInfo(**info) for info in spec.types})
        types = [resolve(oid, typmod, catalog) for _, oid, typmod in spec.columns]
        names = [name for name, _, _ in spec.columns]
        policy: Any = spec.unrepresentable
        decoder = CopyDecoder(types, names, unrepresentable=policy, key=spec.key)
        messages: list[bytes | memoryview] = []
        size = 0
        try:
            with connection.cursor().copy(query.encode()) as copy:
                for data in copy:
                    messages.append(bytes(data))
                    size += len(data)
                    if len(messages) >= _ROWS_PER_BATCH or size >= _BYTES_PER_BATCH:
                        yield from decoder.decode(messages).to_batches()
                        messages, size = [], 0
            yield from decoder.decode(messages).to_batches()
            decoder.finish()
        except UnrepresentableValue as error:
            raise TargetError(
                f'table "{spec.relation}": {error}',
                hint=unrepresentable_hint(in_key=error.column in spec.key),
            ) from error


def read_table(
    spark: SparkSession,
    table: PublishedTable,
    types: Mapping[int, TypeInfo],
    *,
    conninfo: str,
    application_name: str,
    snapshot: str,
    unrepresentable: str,
) -> DataFrame:
    """A published table's rows under a snapshot, as the publications restrict them.

    Returns:
        A DataFrame with the published columns under their names, in the target's types.
    """
    spark.dataSource.register(CopySource)
    own = [info for oid, info in types.items() if oid not in BUILTIN]
    spec = CopySpec(
        conninfo,
        application_name,
        snapshot,
        table.qualified_name,
        [copy_query(table, types)],
        [(column.name, column.type_oid, column.typmod) for column in table.columns],
        [asdict(info) for info in own],
        unrepresentable,
        _key(table),
    )
    return spark.read.format("pgbridge_copy").options(**spec.options()).load()


def copy_query(table: PublishedTable, types: Mapping[int, TypeInfo]) -> str:
    """The COPY statement that reads what is published of a table, filtered on the server.

    `ONLY`, because children of an inheritance parent are published as tables of their own; not for a
    partitioned table, whose rows are all in its partitions (`fetch_remote_table_info`, tablesync.c).
    """
    expressions = [
        copy_expression(column.name, resolve(column.type_oid, column.typmod, types)) for column in table.columns
    ]
    only = "" if table.relkind == "p" else "ONLY "
    where = " WHERE " + " OR ".join(f"({text})" for text in table.row_filters) if table.row_filters else ""
    select = f"SELECT {', '.join(expressions)} FROM {only}{table.identifier.as_string()}{where}"
    return f"COPY ({select}) TO STDOUT (FORMAT binary)"


def _key(table: PublishedTable) -> list[str]:
    """The columns by which changes will find rows: those that `key_of` finds in a Relation message."""
    match table.replica_identity:
        case "n":
            return []
        case "i":
            return [column.name for column in table.columns if column.in_replica_identity_index]
        case _:
            return list(table.primary_key)


def _catalog(own: Mapping[int, TypeInfo]) -> dict[int, TypeInfo]:
    return {**BUILTIN, **own}

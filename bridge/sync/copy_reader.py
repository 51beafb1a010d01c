"""Reads a published table under an exported snapshot: one COPY … (FORMAT binary), as Arrow batches.

It runs in the daemon and on Spark's executors, so it knows nothing of Spark.
"""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa

from pgbridge.bridge.receive.connection import connect, follow_encoding, translated
from pgbridge.bridge.receive.copy_out import copy_out
from pgbridge.bridge.runtime import errors
from pgbridge.bridge.sync.table_reading import Pace, copy_select, copy_statement, select_statement
from pgbridge.bridge.targets.target import TargetColumn, unrepresentable_hint, widened
from pgbridge.protocol.bulk.copy import CopyDecoder
from pgbridge.protocol.errors import UnrepresentableValue
from pgbridge.protocol.values.pg_type import BUILTIN, TypeInfo
from pgbridge.protocol.values.readers import held
from pgbridge.protocol.values.types import Place, resolve
from pgbridge.protocol.values.value_array import UnheldValue, strings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pgbridge.bridge.publication.published_table import PublishedTable
    from pgbridge.bridge.publication.shape import Mask
    from pgbridge.bridge.sync.key_order import CopyOrder

_SETTINGS = {
    # A command that waits to rewrite the table waits for our `TableLock`, and new readers queue behind it: a deadlock.
    "lock_timeout": "'5s'",
    # Several ranges are read at a time already.
    "max_parallel_workers_per_gather": "0",
}
"""Settings of a reader's transaction."""


_LARGEST_ROW_TIMEOUT_MS: Final = 30_000

_UNMASKED: Final = resolve(17, -1)  # bytea: a text's bytes, which may be of any encoding

PART: Final = "the number of the part of the table in which pgbridge sorts the row"
"""The column of a row's part. No column of a table has a name of 64 bytes."""


@dataclass(frozen=True, slots=True)
class CopySpec:
    """The data that a reader on an executor needs, as plain values: it is pickled.

    Attributes:
        conninfo: The publisher, as the executors reach it.
        application_name: For pg_stat_activity, by which CopyMonitor finds the COPY.
        relation: `namespace.name`, for messages.
        select: SELECT … FROM …, without conditions.
        row_filters: SQL expressions; a row passes if any of them is true, or if there are none.
        ranges: A Spark partition for each: the SQL condition of its rows; empty for all rows.
        columns: (name, type oid, typmod) of each column of the SELECT.
        schema: These columns as the target has them.
        types: Properties of the types that are not built in.
        unrepresentable: What to do with a value that the target's type cannot hold: "error" or "null".
        key: Key columns; `unrepresentable` does not apply to them.
        places: Where the values of columns go, if not every text stays there what it is.
        order: How rows are divided for sorting; None if they are written as they come.
        max_rate: Bytes that a connection may read a second; None for no limit.
        masks: The masks of columns: of these the SELECT has the texts.
        target_names: The columns' names in the Delta table, which the rows get once they are read.
    """

    conninfo: str = field(repr=False)
    application_name: str
    snapshot: str
    relation: str
    select: str
    row_filters: list[str]
    ranges: list[str]
    columns: list[tuple[str, int, int]]
    schema: pa.Schema
    types: list[dict[str, Any]]
    unrepresentable: str
    key: list[str]
    places: dict[str, Place] = field(default_factory=dict)
    order: CopyOrder | None = None
    max_rate: float | None = None
    masks: dict[str, Mask] = field(default_factory=dict, repr=False)
    target_names: list[str] = field(default_factory=list)

    def place_of(self, name: str) -> Place:
        """Where the values of a column go."""
        return self.places.get(name, Place.COLUMN)


def copy_spec(
    table: PublishedTable,
    types: Mapping[int, TypeInfo],
    *,
    conninfo: str,
    application_name: str,
    snapshot: str,
    unrepresentable: str,
    ranges: Sequence[str],
    columns: Sequence[TargetColumn] | None = None,
) -> CopySpec:
    """Return what reads the rows of a published table, as row filters and column lists restrict them.

    Args:
        ranges: A Spark partition for each, by its condition. Ranges of blocks need a `TableLock`.
        columns: The published columns, in their order, as the target has them, perhaps with wider types; None if it has
            the same.
    """
    own = [info for oid, info in types.items() if oid not in BUILTIN]
    published = {column.name: resolve(*column.sent_type, types).arrow for column in table.columns}
    targets = dict(published)
    places = dict[str, Place]()
    for column, target in zip(table.columns, columns or (), strict=columns is not None):
        targets[column.name] = target.type.arrow
        if target.type.place is not Place.COLUMN:
            places[column.name] = target.type.place
    return CopySpec(
        conninfo,
        application_name,
        snapshot,
        table.qualified_name,
        copy_select(table, types),
        list(table.row_filters),
        list(ranges),
        [(column.name, *column.sent_type) for column in table.columns],
        pa.schema(targets.items()),
        [asdict(info) for info in own],
        unrepresentable,
        key_of(table),
        places,
        masks={column.name: column.mask for column in table.columns if column.mask is not None},
        target_names=[column.target_name for column in table.columns],
    )


def largest_row(conninfo: str, table: PublishedTable) -> str:
    """Say how large the table's largest row is, without reading values out of line; empty if that takes too long."""
    texts = {25, 1043, 17}  # text, varchar, bytea: their length is known without decompression
    sizes = []
    for column in table.columns:
        name = psycopg.sql.Identifier(column.name).as_string()
        sizes.append(f"coalesce({'octet_length' if column.type_oid in texts else 'pg_column_size'}({name}), 0)::bigint")
    try:
        with connect(conninfo, application_name="pgbridge largest row") as connection:
            connection.execute(f"SET statement_timeout = {_LARGEST_ROW_TIMEOUT_MS}".encode())
            statement = select_statement(table, [f"max({' + '.join(sizes) or '0'})"])
            (size_bytes,) = connection.execute(statement.encode()).fetchone() or (None,)
    except (psycopg.Error, errors.PublisherError):
        return ""
    return f"its largest row has {size_bytes >> 20:,} MB" if size_bytes else ""


def read_ranges(spec: CopySpec, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Copy ranges, one after the other, by a COPY statement each. Executors run this.

    Args:
        numbers: Which ranges, in one column of numbers from 0 on.

    Yields:
        Rows in the target's types, some megabytes at a time; with an order, and the number of the row's part after
        them.

    Raises:
        PublisherError: As `copy_rows` does; it names the executor's machine.
        TargetError: As `copy_rows` does.
    """
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            try:
                rows = copy_rows(spec, range_statement(spec, number))
                yield from rows if spec.order is None else map(partial(_with_part, spec.order), rows)
            except errors.PublisherError as error:
                message = f"{error.message} (Spark's executor on {socket.gethostname()})"
                raise errors.PublisherError(message, hint=error.hint, retry=error.retry) from error


def _with_part(order: CopyOrder, rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column(PART, order.part_of(rows[order.column]))


def range_statement(spec: CopySpec, number: int) -> str:
    """Return the COPY statement of a range."""
    return copy_statement(spec.select, spec.row_filters, spec.ranges[number])


def copy_rows(
    spec: CopySpec, statement: str, *, opened: Callable[[psycopg.Connection[Any]], None] = lambda _: None
) -> Iterator[pa.RecordBatch]:
    """Run a COPY statement in a transaction with the snapshot.

    Args:
        statement: The COPY statement of it, or of a part of it.
        opened: Called with the connection, so that another thread can cancel the statement.

    Yields:
        Rows in the target's types, some megabytes at a time.

    Raises:
        PublisherError: The server cannot be reached, or refuses or ends the statement.
        TargetError: The target cannot hold a value.
    """
    connection = connect(spec.conninfo, application_name=spec.application_name)
    try:
        opened(connection)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(psycopg.sql.SQL("SET TRANSACTION SNAPSHOT {}").format(psycopg.sql.Literal(spec.snapshot)))
        for setting, value in _SETTINGS.items():
            connection.execute(f"SET LOCAL {setting} = {value}".encode())
        follow_encoding(connection)
        yield from _decoded(spec, connection, statement)
    except psycopg.Error as error:
        raise translated(error, f'cannot copy table "{spec.relation}"') from error
    finally:
        connection.close()


def _decoded(spec: CopySpec, connection: psycopg.Connection[Any], statement: str) -> Iterator[pa.RecordBatch]:
    catalog = {**BUILTIN, **{info["oid"]: TypeInfo(**info) for info in spec.types}}
    types = [
        _UNMASKED
        if name in spec.masks
        else replace(resolve(oid, typmod, catalog).parsed_for(arrow), place=spec.place_of(name))
        for (name, oid, typmod), arrow in zip(spec.columns, spec.schema.types, strict=True)
    ]
    names = [name for name, _, _ in spec.columns]
    policy: Any = spec.unrepresentable
    decoder = CopyDecoder(types, names, unrepresentable=policy, key=spec.key)
    pace, since_s = Pace(spec.max_rate), time.monotonic()
    try:
        for messages in copy_out(connection, statement, len(types)):
            pace.read(float(messages.lengths.sum()), time.monotonic() - since_s)
            since_s = time.monotonic()
            yield from _widened(_masked(decoder.decode(messages), spec), spec.schema).to_batches()
        decoder.finish()
    except UnrepresentableValue as error:
        raise errors.TargetError(
            f'table "{spec.relation}": {error}',
            hint=unrepresentable_hint(in_key=error.column in spec.key),
        ) from error


def _masked(rows: pa.Table, spec: CopySpec) -> pa.Table:
    """Return the rows with masked values.

    The values are masked as the stream's are (`receive.stream.masking`): only what is left has to be UTF-8, and may be
    shown.

    Raises:
        UnrepresentableValue: A masked value has no place in its column.
    """
    policy: Any = spec.unrepresentable
    for name, mask in spec.masks.items():
        values = [None if value is None else mask.of(value) for value in rows[name].to_pylist()]
        try:
            kept = held(strings(pa.array(values, pa.binary()), policy), spec.place_of(name), policy)
        except UnheldValue as fault:
            raise UnrepresentableValue(name, f"'{fault.text}'", fault.reason) from None
        rows = rows.set_column(rows.column_names.index(name), name, kept)
    return rows


def _widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows in the target's types."""
    for i, target in enumerate(schema):
        if not rows.field(i).type.equals(target.type):
            rows = rows.set_column(i, target.name, widened(rows.column(i), target.type))
    return rows


def key_of(table: PublishedTable) -> list[str]:
    """Return the columns by which changes will find rows, as `key_of` does for a Relation message."""
    match table.replica_identity:
        case "n":
            return []
        case "i":
            return list(table.index_columns)
        case _:
            return list(table.primary_key)

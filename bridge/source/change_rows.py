"""Transactions as Arrow batches of what `readStream.format("pgoutput")` gives.

A row is a change of a row, or a table of a TRUNCATE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgbridge.bridge.batch import projection, routes
from pgbridge.bridge.batch.decode_block import DecodeBlock, decode_blocks
from pgbridge.bridge.effects.events import COMMANDS
from pgbridge.bridge.receive.server_facts import ServerTypes
from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError, TargetError
from pgbridge.bridge.source.flat import flattened
from pgbridge.bridge.source.options import published_tables
from pgbridge.bridge.targets.target import holds, widened
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.codec.messages import Relation, Truncate
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.errors import ProtocolError, UnrepresentableValue
from pgbridge.protocol.stream import relations, transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pgbridge.bridge.receive.publisher import Publisher
    from pgbridge.bridge.source.frame_schema import ChangeSchema
    from pgbridge.bridge.source.options import SourceOptions
    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.values.types import ColumnType

_BATCH_ROWS: Final = 10_000  # of an Arrow batch; Spark's spark.sql.execution.arrow.maxRecordsPerBatch
_RESTART: Final = "restart the query: its schema is the one that the server's catalog had when it started"
_OLDER: Final = (
    "if the column has been dropped or renamed since, restart the query with .schema(…), which has it as it was"
)
_NAMES: Final = np.array([COMMANDS.get(tag, "") for tag in range(256)])


class _Plan(NamedTuple):
    """How the rows of a relation become rows of the DataFrame.

    Attributes:
        types: The types of the relation's columns.
        positions: For each field of the DataFrame's row, the position of the relation's column; None if it lacks it.
    """

    types: list[ColumnType]
    positions: list[int | None]


class ChangeDecoder:
    """Decodes one stream, from its start; it knows the relations that the stream has announced.

    Args:
        schema: The DataFrame's.
        types: Resolves pairs of type oid and typmod.
        slot_name: For error contexts.
        unrepresentable: Whether a value that its column cannot hold is an error, or NULL.
        unknown_tables: Whether a table that the DataFrame has no column for is an error, or is ignored.
        key: Of a flat stream, the columns that identify a row with REPLICA IDENTITY FULL.
    """

    def __init__(
        self,
        schema: ChangeSchema,
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        *,
        slot_name: str,
        unrepresentable: Literal["error", "null"] = "error",
        unknown_tables: Literal["error", "ignore"] = "error",
        key: Sequence[str] = (),
    ) -> None:
        self._schema = schema
        self._key = key
        self._types = types
        self._slot_name = slot_name
        self._unrepresentable: Literal["error", "null"] = unrepresentable
        self._unknown_tables = unknown_tables
        self._relations = relations.RelationCache()
        self._plans: dict[int, _Plan | None] = {}
        self._ordinals = projection.Ordinals()

    @classmethod
    def of(cls, options: SourceOptions, schema: ChangeSchema, publisher: Publisher) -> Self:
        """Return a decoder of the source's stream."""
        key = published_tables(publisher, options)[0].row_key if schema.flat else ()
        return cls(
            schema,
            ServerTypes(publisher),
            slot_name=options.slot,
            unrepresentable=options.unrepresentable,
            unknown_tables=options.unknown_tables,
            key=key,
        )

    def decode(self, items: Sequence[transactions.Item]) -> Iterator[pa.RecordBatch]:
        """Decode whole transactions, in the order of their ends.

        Yields:
            Rows of the DataFrame: those of one table after those of another, within about 50 000 rows.

        Raises:
            ApplyError: A message or value cannot be decoded, or the DataFrame's schema does not fit it. The context has
                transaction, relation and column, and the finish LSN.
            StateError: A spool file cannot be read.
        """
        for block in decode_blocks(items):
            yield from self._block(block)

    def _block(self, block: DecodeBlock) -> Iterator[pa.RecordBatch]:
        positions = projection.BlockPositions(block, None, self._ordinals)
        messages = RowMessages(block.rows, skip_bytes=HEADER_BYTES, in_stream=block.in_stream)
        begin = 0
        for event, (position, transaction, message) in enumerate(block.events):
            if not isinstance(message, Relation | Truncate):
                continue
            yield from self._rows(block, messages, begin, position, positions)
            begin = position
            if isinstance(message, Relation):
                self._relations.update(message)
                self._plans.pop(message.relation_id, None)
                continue
            yield from self._truncates(message, transaction.commit_lsn, event, positions)
        yield from self._rows(block, messages, begin, len(block.rows), positions)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _rows(
        self, block: DecodeBlock, messages: RowMessages, begin: int, end: int, positions: projection.BlockPositions
    ) -> Iterator[pa.RecordBatch]:
        """Rows between two definitions, by relation."""
        ids = messages.relation_ids[begin:end]
        for relation_id in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == relation_id) + begin
            xid, commit_lsn = block.transaction_of(int(rows[0]))
            command = COMMANDS[int(messages.tags[rows[0]])]
            try:
                relation = self._relations.get(relation_id)
                plan = self._plan(relation)
            except (TargetError, ProtocolError) as error:
                raise self._error(error, ApplyContext(self._slot_name, commit_lsn, xid, None, command)) from error
            if plan is None:
                continue
            table = ".".join(routes.name_of(relation))
            for part_rows in np.array_split(rows, -(-len(rows) // _BATCH_ROWS)):
                try:
                    decoded = messages.decode(
                        relation,
                        plan.types,
                        part_rows,
                        unrepresentable=self._unrepresentable,
                        key=[i for i, column in enumerate(relation.columns) if column.is_key],
                        wanted=[position for position in plan.positions if position is not None],
                    )
                except ProtocolError as error:
                    at = error.row if isinstance(error, UnrepresentableValue) and error.row >= 0 else 0
                    column = error.column if isinstance(error, UnrepresentableValue) else None
                    xid, commit_lsn = block.transaction_of(int(part_rows[at]))
                    command = COMMANDS[int(messages.tags[part_rows[at]])]
                    context = ApplyContext(self._slot_name, commit_lsn, xid, table, command, column)
                    raise self._error(error, context) from error
                operations = pa.array(_NAMES[messages.tags[part_rows]])
                parts = self._images(projection.from_old_tuples(decoded), plan, self._schema.rows[table])
                batch = self._batch(table, operations, positions.of_rows(part_rows), parts)
                yield flattened(batch, self._schema.arrow, self._key_of(relation)) if self._schema.flat else batch

    def _key_of(self, relation: Relation) -> Sequence[str]:
        """The columns by which an old image tells its row; with REPLICA IDENTITY FULL, those that the catalog has."""
        key = [column.name for column in relation.columns if column.is_key]
        return self._key if len(key) == len(relation.columns) else key

    def _plan(self, relation: Relation) -> _Plan | None:
        """How a relation's rows are read; None if they are not wanted."""
        if relation.relation_id in self._plans:
            return self._plans[relation.relation_id]
        table = ".".join(routes.name_of(relation))
        plan = None
        if table in self._schema.rows:
            plan = self._planned(relation, table)
        elif self._schema.table is None and self._unknown_tables == "error":
            raise TargetError(
                f'table "{table}" has changes, and the DataFrame has no column for it: it is published since the '
                "query started, or it is not published any more",
                hint=f'{_RESTART}; or set unknownTables to "ignore", which leaves out changes of such tables',
            )
        self._plans[relation.relation_id] = plan
        return plan

    def _planned(self, relation: Relation, table: str) -> _Plan:
        types = self._types([(column.type_oid, column.typmod) for column in relation.columns])
        row = self._schema.rows[table]
        fields = {field.name: field.type for field in row}
        by_name = {column.name: i for i, column in enumerate(relation.columns)}
        for column, type_ in zip(relation.columns, types, strict=True):
            if column.name not in fields:
                raise TargetError(
                    f'column "{column.name}" of table "{table}" has changes, and the DataFrame lacks it',
                    hint=f"{_RESTART}; {_OLDER}",
                )
            wanted = _plain(fields[column.name])
            if not holds(wanted, type_.arrow):
                raise TargetError(
                    f'column "{column.name}" of table "{table}" is {type_.label} in the stream ({type_.arrow}), which '
                    f"the DataFrame's type {wanted} does not hold",
                    hint=f"{_RESTART}; {_OLDER}",
                )
        return _Plan(types, [by_name.get(field.name) for field in row])

    def _images(self, decoded: pa.Table, plan: _Plan, row: pa.StructType) -> list[pa.Array]:
        """`old`, `new` and `unchanged` of decoded rows."""
        count = len(decoded)
        names = frozenset(decoded.column_names)
        has_old = decoded["old"].to_numpy() != 0
        has_new = decoded["op"].to_numpy() != ord("D")
        old = _struct(decoded, "old", plan, row, has_old) if has_old.any() else pa.nulls(count, row)
        new = _struct(decoded, "new", plan, row, has_new) if has_new.any() else pa.nulls(count, row)
        marked = [
            (field.name, f"unchanged_{position}")
            for field, position in zip(row, plan.positions, strict=True)
            if f"unchanged_{position}" in names
        ]
        return [old, new, _names_of(decoded, marked)]

    # --- truncates ----------------------------------------------------------------------------------------------------

    def _truncates(
        self, message: Truncate, commit_lsn: Lsn, event: int, positions: projection.BlockPositions
    ) -> Iterator[pa.RecordBatch]:
        for number, relation_id in enumerate(message.relation_ids):
            try:
                relation = self._relations.get(relation_id)
                table = ".".join(routes.name_of(relation))
                if table not in self._schema.rows:
                    self._plan(relation)  # raises where such a table is an error
                    continue
            except (TargetError, ProtocolError) as error:
                context = ApplyContext(self._slot_name, commit_lsn, None, None, "TRUNCATE")
                raise self._error(error, context) from error
            row = self._schema.rows[table]
            nothing = [pa.nulls(1, row), pa.nulls(1, row), pa.nulls(1, pa.list_(pa.string()))]
            batch = self._batch(table, pa.array(["TRUNCATE"]), positions.of_truncate(event, number), nothing)
            yield flattened(batch, self._schema.arrow, ()) if self._schema.flat else batch

    # --- batches ------------------------------------------------------------------------------------------------------

    def _batch(
        self, table: str, operations: pa.Array, positions: dict[str, pa.Array], parts: list[pa.Array]
    ) -> pa.RecordBatch:
        rows = len(operations)
        arrays = [operations, *positions.values()]
        arrow = self._schema.with_images
        if self._schema.table is not None:
            arrays += parts
        else:
            arrays.append(pa.array([table] * rows))
            for field in list(arrow)[len(arrays) :]:
                if field.name != table:
                    arrays.append(pa.nulls(rows, field.type))
                    continue
                own = [part.cast(part_field.type) for part, part_field in zip(parts, field.type, strict=True)]
                arrays.append(pa.StructArray.from_arrays(own, fields=list(field.type)))
        return pa.RecordBatch.from_arrays(
            [array.cast(field.type) for array, field in zip(arrays, arrow, strict=True)], schema=arrow
        )

    @staticmethod
    def _error(error: TargetError | ProtocolError, context: ApplyContext) -> ApplyError:
        if isinstance(error, TargetError):
            return ApplyError(error.message, context, hint=error.hint)
        hint = ""
        if isinstance(error, UnrepresentableValue):
            hint = 'set option unrepresentable to "null", or exclude the column by a column list of the publication'
        return ApplyError(str(error), context, hint=hint)


def _plain(type_: pa.DataType) -> pa.DataType:
    """A type with lists as `holds` compares them: whatever their element is called."""
    return pa.list_(_plain(type_.value_type)) if pa.types.is_list(type_) else type_


def _struct(decoded: pa.Table, kind: str, plan: _Plan, row: pa.StructType, present: np.ndarray) -> pa.StructArray:
    """A struct of the values of each row's old or new tuple."""
    arrays = []
    for field, position in zip(row, plan.positions, strict=True):
        name = f"{kind}_{position}"
        if position is None or name not in decoded.column_names:
            arrays.append(pa.nulls(len(decoded), field.type))
            continue
        values = decoded[name]
        if not values.type.equals(_plain(field.type)):
            values = widened(values, _plain(field.type))
        combined = values.combine_chunks()
        if isinstance(combined, pa.ChunkedArray):
            combined = pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.nulls(0, values.type)
        arrays.append(combined.cast(field.type))
    return pa.StructArray.from_arrays(arrays, fields=list(row), mask=pa.array(~present))


def _names_of(decoded: pa.Table, marked: Sequence[tuple[str, str]]) -> pa.Array:
    """Lists of the columns that are marked; NULL where none is."""
    if not marked:
        return pa.nulls(len(decoded), pa.list_(pa.string()))
    marks = np.column_stack([pc.fill_null(decoded[column], fill_value=False).to_numpy() for _, column in marked])
    counts = marks.sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    names = pa.array(np.array([name for name, _ in marked])[np.nonzero(marks)[1]], pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(counts == 0))

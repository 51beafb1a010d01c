"""Forms batches: whole committed transactions, decoded to one Arrow table of changes for each target.

No Spark in here, and nothing is applied: a batch is a value. Its columns carry positions, not names, so that no
column's name can collide with the bridge's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.apply.target import TargetColumn
from bridge.errors import ApplyContext, ApplyError, TargetError
from protocol.columns import RowMessages
from protocol.errors import ProtocolError, UnrepresentableValue
from protocol.messages import Relation, Truncate
from protocol.relations import RelationCache
from protocol.walsender import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bridge.apply.target import Target
    from protocol.lsn import Lsn
    from protocol.transactions import RowMessage, Transaction
    from protocol.types import ColumnType

INSERT, UPDATE, DELETE = b"IUD"
NO_OLD, KEY_TUPLE, OLD_TUPLE = 0, ord("K"), ord("O")


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A table that follows the stream.

    Attributes:
        target: Its Delta table.
        lsn: Transactions that commit before it are already in the target (`srsublsn`).
        primary_key: Names of the published primary key's columns: the key under REPLICA IDENTITY FULL.
    """

    target: Target
    lsn: Lsn
    primary_key: tuple[str, ...]


@dataclass(slots=True)
class TableChanges:
    """The changes of a batch to one target, in order.

    Attributes:
        target: Where they go.
        columns: The replicated columns; the positions below are indices into it.
        key: Positions of the columns that identify a row; empty when there is no identity (inserts only).
        changes: Arrow table: `seq` int64 (position in the batch, ascending), `op` int16 (`INSERT`, `UPDATE`,
            `DELETE`), `old` int16 (`NO_OLD`, `KEY_TUPLE`, `OLD_TUPLE`), `new_<i>` and `old_<i>` in the column's
            type (NULL where the message has no such tuple), `unchanged_<i>` bool for columns of which at least
            one new value is an unchanged TOAST value that the stream does not carry.
        truncated: The table was emptied; `changes` holds only what came after.
    """

    target: Target
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    changes: pa.Table
    truncated: bool = False

    @property
    def inserts_only(self) -> bool:
        """There is nothing but new rows."""
        return bool(pc.all(pc.equal(self.changes["op"], INSERT), min_count=0).as_py())


@dataclass(slots=True)
class Batch:
    """Whole transactions in commit order, ready to apply.

    Attributes:
        start_lsn: The origin's LSN before the batch.
        end_lsn: The origin's LSN after it: the last transaction's end.
        finish_lsn: The last transaction's commit LSN, for errors.
        xid: The transaction, when it is only one.
        transactions: How many.
        rows: Row messages received, whether or not they are for a target.
        tables: The changes, one entry a target.
    """

    start_lsn: Lsn
    end_lsn: Lsn
    finish_lsn: Lsn
    xid: int | None
    transactions: int
    rows: int
    tables: list[TableChanges]


@dataclass(slots=True)
class _Pieces:
    """What has been decoded for one target so far."""

    subscribed: Subscribed
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[int, ...] = ()
    tables: list[tuple[tuple[TargetColumn, ...], pa.Table]] = field(default_factory=list)
    truncated: bool = False


class BatchFormer:
    """Decodes transactions of one stream; remembers the relations that the stream announced.

    Args:
        origin_name: For error contexts.
        subscribed: The tables that follow the stream, by (namespace, name).
        types: Resolves (type oid, typmod) to how its values are decoded.
        unrepresentable: What becomes of a value the target's type cannot hold.
        ignored: Called once for each published table that is not subscribed.
    """

    def __init__(
        self,
        origin_name: str,
        subscribed: Mapping[tuple[str, str], Subscribed],
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        *,
        unrepresentable: Literal["error", "null"] = "error",
        ignored: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._origin_name = origin_name
        self._subscribed = subscribed
        self._types = types
        self._unrepresentable = unrepresentable
        self._ignored = ignored
        self._relations = RelationCache()
        self._columns: dict[int, tuple[TargetColumn, ...]] = {}

    def form(self, transactions: Sequence[Transaction], start_lsn: Lsn, end_lsn: Lsn | None = None) -> Batch:
        """Decode transactions into a batch.

        Args:
            transactions: In commit order; may be empty when `end_lsn` is given.
            start_lsn: The origin's LSN.
            end_lsn: The batch's recorded end, for a batch that is formed again.

        Raises:
            ApplyError: A message or value cannot be decoded, or a target lacks a column. The context names
                transaction, relation and column, and carries the finish LSN.
        """
        rows: list[RowMessage] = []
        first_row = np.zeros(len(transactions) + 1, dtype=np.int64)
        events: list[tuple[int, int, Relation | Truncate]] = []
        for number, transaction in enumerate(transactions):
            for position, message in transaction.events:
                if isinstance(message, Relation | Truncate):
                    events.append((len(rows) + position, number, message))
            rows.extend(transaction.rows)
            first_row[number + 1] = len(rows)
        work = _Work(transactions, first_row, self._origin_name)
        begin = 0
        for position, number, message in events:
            if isinstance(message, Relation) and not self._relations.differs(message):
                continue
            self._decode(work, rows, begin, position)
            begin = position
            if isinstance(message, Relation):
                self._relations.update(message)
                self._columns.pop(message.relation_id, None)
            else:
                self._truncate(work, message, transactions[number])
        self._decode(work, rows, begin, len(rows))
        last = transactions[-1] if transactions else None
        return Batch(
            start_lsn,
            end_lsn or (last.end_lsn if last else start_lsn),
            last.commit_lsn if last else start_lsn,
            last.xid if last and len(transactions) == 1 else None,
            len(transactions),
            len(rows),
            [_unify(pieces) for pieces in work.pieces.values() if pieces.tables or pieces.truncated],
        )

    def _decode(self, work: _Work, rows: list[RowMessage], begin: int, end: int) -> None:
        """Decode rows[begin:end], which stand under one set of relation definitions."""
        if begin == end:
            return
        try:
            messages = RowMessages(rows[begin:end], skip_bytes=HEADER_BYTES)
        except ProtocolError as error:
            raise work.failed(str(error), begin) from error
        for relation_id in np.unique(messages.relation_ids):
            indices = np.flatnonzero(messages.relation_ids == relation_id)
            try:
                relation = self._relations.get(int(relation_id))
            except ProtocolError as error:
                raise work.failed(str(error), begin + int(indices[0])) from error
            subscribed = self._route(relation)
            if subscribed is None:
                continue
            first = work.first_row_from(subscribed.lsn) - begin
            indices = indices[np.searchsorted(indices, first) :]
            if len(indices):
                self._decode_relation(work, messages, relation, subscribed, indices, begin)

    def _decode_relation(
        self,
        work: _Work,
        messages: RowMessages,
        relation: Relation,
        subscribed: Subscribed,
        indices: np.ndarray,
        begin: int,
    ) -> None:
        name = subscribed.target.qualified_name
        at = begin + int(indices[0])
        try:
            columns = self._target_columns(relation, subscribed.target)
            types = [column.type for column in columns]
            table = messages.decode(relation, types, indices, unrepresentable=self._unrepresentable)
        except UnrepresentableValue as error:
            at = begin + int(indices[error.row]) if error.row >= 0 else at
            hint = 'set unrepresentable = "null" to store NULL for such values'
            raise work.failed(str(error), at, relation=name, column=error.column, hint=hint) from error
        except (ProtocolError, TargetError) as error:
            raise work.failed(str(error), at, relation=name) from error
        pieces = work.pieces.setdefault(name, _Pieces(subscribed))
        pieces.columns, pieces.key = columns, _key(relation, subscribed)
        changed = pc.any(pc.not_equal(table["op"], INSERT)).as_py()
        if changed and not pieces.key:
            raise work.failed(
                f'table "{name}" has changes other than INSERT, and no key to find its rows by',
                at,
                relation=name,
                hint=f"run on the server: ALTER TABLE {name} ADD PRIMARY KEY (…); "
                f"or ALTER TABLE {name} REPLICA IDENTITY USING INDEX …;",
            )
        seq = pa.array(indices + begin)
        pieces.tables.append((columns, _renamed(table, seq, pieces.key if changed else ())))

    def _route(self, relation: Relation) -> Subscribed | None:
        key = (relation.namespace or "pg_catalog", relation.name)
        subscribed = self._subscribed.get(key)
        if subscribed is None:
            self._ignored(".".join(key))
        return subscribed

    def _target_columns(self, relation: Relation, target: Target) -> tuple[TargetColumn, ...]:
        columns = self._columns.get(relation.relation_id)
        if columns is None:
            types = self._types([(column.type_oid, column.typmod) for column in relation.columns])
            named = zip(relation.columns, types, strict=True)
            columns = tuple(TargetColumn(column.name, resolved) for column, resolved in named)
            target.check(columns)
            self._columns[relation.relation_id] = columns
        return columns

    def _truncate(self, work: _Work, message: Truncate, transaction: Transaction) -> None:
        """What came before it on these tables is void."""
        for relation_id in message.relation_ids:
            relation = self._relations.get(relation_id)
            subscribed = self._route(relation)
            if subscribed is None or transaction.commit_lsn < subscribed.lsn:
                continue
            pieces = work.pieces.setdefault(subscribed.target.qualified_name, _Pieces(subscribed))
            pieces.columns = self._target_columns(relation, subscribed.target)
            pieces.key = _key(relation, subscribed)
            pieces.tables.clear()
            pieces.truncated = True


class _Work:
    """One call of `form`: the transactions' row ranges, and what has been decoded."""

    def __init__(self, transactions: Sequence[Transaction], first_row: np.ndarray, origin_name: str) -> None:
        self.pieces: dict[str, _Pieces] = {}
        self._transactions = transactions
        self._first_row = first_row
        self._commit_lsns = [transaction.commit_lsn for transaction in transactions]
        self._origin_name = origin_name

    def first_row_from(self, lsn: Lsn) -> int:
        """The first row of the first transaction that commits at or after `lsn` (should_apply_changes_for_rel)."""
        number = int(np.searchsorted(np.array(self._commit_lsns, dtype=np.uint64), np.uint64(lsn)))
        return int(self._first_row[number])

    def failed(
        self,
        message: str,
        row: int,
        *,
        relation: str | None = None,
        column: str | None = None,
        hint: str = "",
    ) -> ApplyError:
        """An error at a row of the batch, with its transaction's coordinates."""
        number = int(np.searchsorted(self._first_row, row, side="right")) - 1
        transaction = self._transactions[number]
        data = transaction.rows[row - int(self._first_row[number])]
        command = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}[data[HEADER_BYTES]]
        context = ApplyContext(self._origin_name, transaction.commit_lsn, transaction.xid, relation, command, column)
        return ApplyError(message, context, hint=hint)


def _key(relation: Relation, subscribed: Subscribed) -> tuple[int, ...]:
    """Positions of the identity's columns: the replica identity's, or under FULL the primary key's."""
    if relation.replica_identity == "f":
        names = {column.name for column in relation.columns}
        if not subscribed.primary_key or not names.issuperset(subscribed.primary_key):
            return ()
        return tuple(i for i, column in enumerate(relation.columns) if column.name in subscribed.primary_key)
    return tuple(i for i, column in enumerate(relation.columns) if column.is_key)


def _renamed(table: pa.Table, seq: pa.Array, key: tuple[int, ...]) -> pa.Table:
    """Put `seq` in front, widen the tags to types Spark has, and keep of the old tuples what identifies a row.

    Under REPLICA IDENTITY FULL an unchanged TOAST value stands in the old tuple, and is taken from there.
    """
    columns: dict[str, pa.ChunkedArray | pa.Array] = {
        "seq": seq,
        "op": pc.cast(table["op"], pa.int16()),
        "old": pc.cast(table["old"], pa.int16()),
    }
    full = pc.equal(table["old"], OLD_TUPLE)
    for name in table.column_names:
        kind, _, index = name.partition("_")
        if kind == "new" and f"unchanged_{index}" in table.column_names and f"old_{index}" in table.column_names:
            from_old = pc.and_(table[f"unchanged_{index}"], full)
            columns[name] = pc.if_else(from_old, table[f"old_{index}"], table[name])
            columns[f"unchanged_{index}"] = pc.and_not(table[f"unchanged_{index}"], full)
        elif kind == "new" or (kind == "old" and index and int(index) in key):
            columns[name] = table[name]
        elif kind == "unchanged":
            columns.setdefault(name, table[name])
    return pa.table(columns)


def _unify(pieces: _Pieces) -> TableChanges:
    """Bring pieces under different definitions of a relation together, by column name.

    A column that an earlier piece did not have yet is like an unchanged value in its updates, and NULL in its
    inserts, as in a native subscriber's table. A column that the last definition no longer has is dropped: its
    values before that stay as they are in the target.
    """
    tables = [_by_name(table, columns, pieces.columns) for columns, table in pieces.tables]
    if tables:
        changes = pa.concat_tables(tables, promote_options="default").combine_chunks()
    else:
        changes = pa.table(
            {
                "seq": pa.array([], pa.int64()),
                "op": pa.array([], pa.int16()),
                "old": pa.array([], pa.int16()),
                **{f"new_{i}": pa.array([], column.type.arrow) for i, column in enumerate(pieces.columns)},
            }
        )
    for index, name in enumerate(changes.column_names):
        if name.startswith("unchanged_"):
            changes = changes.set_column(index, name, pc.fill_null(changes[name], fill_value=False))
    return TableChanges(pieces.subscribed.target, pieces.columns, pieces.key, changes, pieces.truncated)


def _by_name(table: pa.Table, columns: tuple[TargetColumn, ...], wanted: tuple[TargetColumn, ...]) -> pa.Table:
    """Renumber a piece's columns to the positions of the last definition."""
    if columns == wanted:
        return table
    positions = {column.name: i for i, column in enumerate(columns)}
    renamed = {name: table[name] for name in ("seq", "op", "old")}
    for i, column in enumerate(wanted):
        here = positions.get(column.name)
        if here is None:
            renamed[f"new_{i}"] = pa.nulls(len(table), column.type.arrow)
            renamed[f"unchanged_{i}"] = pc.equal(table["op"], UPDATE)
            continue
        for kind in ("new", "old", "unchanged"):
            if f"{kind}_{here}" in table.column_names:
                renamed[f"{kind}_{i}"] = table[f"{kind}_{here}"]
    return pa.table(renamed)

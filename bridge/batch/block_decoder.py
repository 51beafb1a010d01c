"""Decodes the rows of a block into the changes of their targets: to which target they go, which count, in what columns.

The steps for the rows of one relation: `Routes` gives the target; rows that the target's copy already has are left out,
then those of actions that are not published, then those that a server's row filter rejects; the others become Arrow
columns. Then those that a filter of Spark's rejects are left out, and those that ranges of the copy have; the others
get the operations that they become. Values that no column can hold are judged, and the published columns are what the
target's collector takes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from pgbridge.bridge.batch import batch, decode_block, projection, row_filters
from pgbridge.bridge.batch.collector import ChangeCollector
from pgbridge.bridge.batch.routes import Routes, Subscribed, key_of, name_of
from pgbridge.bridge.effects.events import COMMANDS, INSERT, NO_OLD
from pgbridge.bridge.publication.shape import AS_PUBLISHED, masks_of
from pgbridge.bridge.rowfilter.server_filter import VerdictError
from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError, NeedsResync, TargetError
from pgbridge.bridge.sqltext.lexer import quote_identifier
from pgbridge.bridge.targets.target import unrepresentable_hint
from pgbridge.protocol.bulk.columns import RowMessages
from pgbridge.protocol.codec.walsender import HEADER_BYTES
from pgbridge.protocol.errors import ProtocolError, UnrepresentableValue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pgbridge.bridge.batch.definitions import Definitions
    from pgbridge.bridge.batch.range_cut import RangeCut
    from pgbridge.protocol.codec.messages import Relation
    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.values.types import ColumnType
    from pgbridge.protocol.values.value_array import Bools, Bytes, Ints

_KEYLESS_VERSIONS = (
    'its mode needs a primary key, or a replica identity by an index; or set mode = "changelog" for the table'
)

_ROW_ACTIONS = frozenset({"insert", "update", "delete"})


def _key_hint(relation: Relation) -> str:
    """What to run for a table without a key; a name of pg_catalog's is sent without its schema."""
    table = f"{quote_identifier(relation.namespace or 'pg_catalog')}.{quote_identifier(relation.name)}"
    return f"run on the server: ALTER TABLE {table} ADD PRIMARY KEY (…); or ALTER TABLE {table} REPLICA IDENTITY FULL"


class BlockDecoder:
    """Decodes one block.

    Args:
        collectors: Take the changes, by their target's path; made as they are needed.
        ordinals: Counts changes from block to block; None if no target keeps every change.
        verdicts: Computes the row filters of `Subscribed.filters`; None where there are none.

    Attributes:
        positions: Where the block's changes are in the stream; None if no target keeps every change.

    Raises:
        ApplyError: One of the block's messages is not a row message.
    """

    def __init__(  # noqa: PLR0913 - what a stream has, and the block
        self,
        block: decode_block.DecodeBlock,
        collectors: dict[str, ChangeCollector],
        *,
        routes: Routes,
        definitions: Definitions,
        origin_name: str,
        unrepresentable: Literal["error", "null", "show"] = "error",
        ignored: Callable[[str], None] = lambda _: None,
        ordinals: projection.Ordinals | None = None,
        verdicts: row_filters.Verdicts | None = None,
    ) -> None:
        self._block = block
        self._collectors = collectors
        self._routes = routes
        self._definitions = definitions
        self._origin_name = origin_name
        self._unrepresentable: Literal["error", "null", "show"] = unrepresentable
        self._ignored = ignored
        self._verdicts = verdicts
        try:
            self._messages = RowMessages(block.rows, skip_bytes=HEADER_BYTES, in_stream=block.in_stream)
        except ProtocolError as error:
            xid, commit_lsn = block.transaction_of(0)
            raise ApplyError(str(error), ApplyContext(origin_name, commit_lsn, xid)) from error
        self._aborted: Bools | None = None
        if block.aborted and self._messages.xids is not None:
            self._aborted = np.isin(self._messages.xids, block.aborted)
        self.positions = projection.BlockPositions(block, self._aborted, ordinals) if ordinals is not None else None

    def decode(self, begin: int, end: int) -> None:
        """Decode rows[begin:end] of the block; no definition changes between them.

        Raises:
            ApplyError: One of them cannot be decoded, or cannot be applied exactly.
        """
        if begin == end:
            return
        ids = self._messages.relation_ids[begin:end]
        for relation_id in np.unique(ids):
            rows = np.flatnonzero(ids == relation_id) + begin
            if self._aborted is not None:
                rows = rows[~self._aborted[rows]]
            if len(rows):
                self._decode_relation(int(relation_id), rows)

    def _decode_relation(self, relation_id: int, rows: Ints) -> None:
        with self._errors_at(int(rows[0])):
            relation = self._definitions.relations.get(relation_id)
            self._routes.at((relation_id,), *self._block.transaction_of(int(rows[0])))
            subscribed, rows = self._route(relation, rows)
        if subscribed is None:
            return
        if not subscribed.actions >= _ROW_ACTIONS:
            tags = [tag for tag, command in COMMANDS.items() if command.lower() in subscribed.actions]
            rows = rows[np.isin(self._messages.tags[rows], tags)]
        if not len(rows):
            return
        self._check_identity(relation, subscribed, rows)
        operations = None
        if subscribed.then is not None and subscribed.then.operations is not None:
            decided = subscribed.then.operations[rows + self._block.first_seq]
            rows, operations = rows[decided != 0], decided[decided != 0]
        elif subscribed.server_filters is not None:
            rows, operations = self._ask(relation, subscribed.server_filters, rows, subscribed.target.qualified_name)
        if len(rows):
            self._collect(relation, subscribed, rows, operations)

    def _route(self, relation: Relation, rows: Ints) -> tuple[Subscribed | None, Ints]:
        """Find the target of a relation's rows, and the rows that are not yet in its copy.

        Raises:
            ApplyError: The relation is a subscribed table that has another name now.
            TargetError: Its changes cannot be applied exactly.
        """
        renamed = self._routes.renamed_table(relation)
        if renamed is not None:
            counting = self._since(rows, renamed.lsn)
            if len(counting):
                raise self._error(renamed.error.message, int(counting[0]), hint=renamed.error.hint)
            return None, counting
        subscribed = self._routes.route(relation)
        if subscribed is None:
            self._ignored(".".join(name_of(relation)))
            self._definitions.leave_out(relation)
            return None, rows
        counting = self._since(rows, subscribed.lsn)
        if len(counting):
            self._routes.remember_relid(relation)
            xid, _ = self._block.transaction_of(int(counting[0]))
            subscribed = self._definitions.with_primary_key(relation, subscribed, xid)
        return subscribed, counting

    def _check_identity(self, relation: Relation, subscribed: Subscribed, rows: Ints) -> None:
        """Stop at the first UPDATE or DELETE whose old tuple lacks a column that the definitions need."""
        tags = self._messages.tags[rows]
        if (tags == INSERT).all():
            return
        refusals = self._routes.identity_refusals(relation, self._definitions.relations.find)
        by_command = {command: refusal for refusal in reversed(refusals) for command in refusal.commands}
        refused = np.isin(tags, [tag for tag, command in COMMANDS.items() if command in by_command])
        if refused.any():
            row = int(rows[refused.argmax()])
            command = COMMANDS[int(self._messages.tags[row])]
            message, hint = by_command[command].message(command), by_command[command].hint
            raise self._error(message, row, relation=subscribed.target.qualified_name, hint=hint)

    def _ask(self, relation: Relation, filters: row_filters.ServerFilters, rows: Ints, name: str) -> tuple[Ints, Bytes]:
        """The rows that pass a server's filters, and their operations after that."""
        with self._errors_at(int(rows[0]), name), self._verdict_errors(name, lambda row: row):
            return filters.passing(self._messages, relation, rows)

    def _check_masks(self, relation: Relation, subscribed: Subscribed) -> None:
        """Raise a NeedsResync if a transaction was prepared, and its rows kept, when the table had other masks."""
        kept, target = self._block.masks, subscribed.target
        if kept is None or target.mode == "handler":
            return
        now = masks_of(subscribed.shape.description)
        was = masks_of(kept.get(target.qualified_name, AS_PUBLISHED.description))
        if any(was.get(column.name) != now.get(column.name) for column in relation.columns):
            raise NeedsResync(
                f'mask of table "{target.qualified_name}" is another than when rows of a prepared transaction were '
                "received",
                (target.namespace, target.name),
            )

    def _collect(self, relation: Relation, subscribed: Subscribed, rows: Ints, operations: Bytes | None) -> None:
        """Decode the values of rows, and add the changes that pass Spark's filters to those of the target.

        Args:
            operations: Of the rows after a server's filters; None if it has none.
        """
        name, first = subscribed.target.qualified_name, int(rows[0])
        key = key_of(relation, subscribed)
        collector = self._collectors.setdefault(subscribed.target.path, ChangeCollector(subscribed))
        filters = subscribed.filters or None
        with self._errors_at(first, name):
            xid, _ = self._block.transaction_of(first)
            self._check_masks(relation, subscribed)
            columns, types = self._definitions.follow(relation, subscribed, collector, xid)
            kept = projection.kept_positions(relation.columns, subscribed)
            kept_columns, kept_key = projection.keep(columns, key, kept)
            # which values must be representable is known after filtering: an UPDATE may become a DELETE
            filtered = filters is not None or operations is not None or subscribed.cut is not None
            policy: Literal["error", "null", "show"] = "show" if filtered else self._unrepresentable
            with self._values_held(rows, name, {relation.columns[k].name for k in key}):
                wanted = kept if filters is None or kept is None else {*kept, *_looked_at(relation, filters).values()}
                table = self._messages.decode(
                    relation, types, rows, unrepresentable=policy, key=key if kept_key else (), wanted=wanted
                )
            table = projection.from_old_tuples(table)
            if filters is not None:
                rows, table, operations = self._filter(relation, filters, rows, table, types, name)
            table = projection.in_target_types(table, types, columns)
            if subscribed.cut is not None:
                rows, table, operations = self._cut(relation, subscribed, subscribed.cut, rows, table, operations)
        collector.columns, collector.key = kept_columns, kept_key
        if not len(rows):
            return
        changed = not batch.inserts_only(table) if operations is None else bool((operations != INSERT).any())
        versioned = subscribed.target.versioned
        keyless = versioned or (subscribed.target.mode == "mirror" and relation.replica_identity != "f")
        if changed and not collector.key and keyless:
            raise self._error(
                f'table "{name}" has changes other than INSERT, and no key to find its rows by',
                first,
                relation=name,
                hint=f"{_KEYLESS_VERSIONS if versioned else _key_hint(relation)}; then copy the table afresh, "
                f"because these changes are from before that: {self._routes.copy_afresh(name)}",
            )
        seq = pa.array(rows + self._block.first_seq)
        olds: Collection[int] = (
            projection.old_positions(columns, relation, subscribed, collector.key) if changed else ()
        )
        positions: dict[str, pa.Array] = {}
        if subscribed.target.every_change and self.positions is not None:
            olds, positions = range(len(columns)), self.positions.of_rows(rows)
        changes = projection.as_changes(table, seq, olds, kept, positions)
        if operations is not None:
            changes = row_filters.with_new_operations(changes, operations)
        changes, lost = row_filters.with_lost_values(changes)
        collector.lost += lost
        with self._values_held(rows, name, {kept_columns[k].name for k in kept_key}):
            changes = row_filters.judged(changes, kept_columns, kept_key, self._unrepresentable)
        with self._errors_at(first, name):
            collector.add(changes)

    def _filter(
        self,
        relation: Relation,
        filters: row_filters.RowFilters,
        rows: Ints,
        table: pa.Table,
        types: Sequence[ColumnType],
        name: str,
    ) -> tuple[Ints, pa.Table, Bytes]:
        """The rows that pass filters, their values, and the operations that they become.

        Spark computes the filters; a server does for rows with a value that Spark has no equal of, if there is one.
        """
        assert self._verdicts is not None  # noqa: S101 - who routes by such filters gives it
        positions = _looked_at(relation, filters)
        operations = self._messages.tags[rows]
        passed = np.zeros(len(rows), np.bool_)
        asks = filters.on_server is not None
        beyond = row_filters.beyond_spark(table, types, positions.values()) if asks else np.zeros_like(passed)
        if filters.on_server is not None and beyond.any():
            passing, become = self._ask(relation, filters.on_server(), rows[beyond], name)
            at = np.searchsorted(rows, passing)
            passed[at], operations[at] = True, become
        here = np.flatnonzero(~beyond)
        if len(here):
            part = table if len(here) == len(rows) else table.take(pa.array(here))
            with self._verdict_errors(name, lambda row: int(rows[here[row]])):
                old_passes, new_passes = self._verdicts.passes(filters, part, positions)
            has_old = part["old"].to_numpy() != NO_OLD
            passed[here], operations[here] = row_filters.what_becomes(operations[here], has_old, old_passes, new_passes)
        if passed.all():
            return rows, table, operations
        return rows[passed], table.filter(pa.array(passed)), operations[passed]

    def _cut(
        self,
        relation: Relation,
        subscribed: Subscribed,
        cut: RangeCut,
        rows: Ints,
        table: pa.Table,
        operations: Bytes | None,
    ) -> tuple[Ints, pa.Table, Bytes | None]:
        """The rows that the ranges of a copy lack, their values, and the operations that they become."""
        firsts = np.array([self._block.first_row_from(lsn) for lsn in cut.lsns])
        if not len(rows) or (rows >= firsts.max()).all():
            return rows, table, operations
        sent = self._messages.tags[rows] if operations is None else operations
        passed, become = cut.left(relation, subscribed.target, rows, table, sent, firsts)
        return rows[passed], table.filter(pa.array(passed)), become[passed]

    def _since(self, rows: Ints, lsn: Lsn) -> Ints:
        """The rows among these whose transactions commit at or after `lsn`."""
        return rows[np.searchsorted(rows, self._block.first_row_from(lsn)) :]

    @contextmanager
    def _errors_at(self, row: int, relation: str | None = None) -> Iterator[None]:
        """Give errors the context of a row."""
        try:
            yield
        except TargetError as error:
            raise self._error(error.message, row, relation=relation, hint=error.hint) from error
        except ProtocolError as error:
            raise self._error(str(error), row, relation=relation) from error

    @contextmanager
    def _verdict_errors(self, relation: str, place: Callable[[int], int]) -> Iterator[None]:
        """Give errors of row filters the context of their row; `place` gives the block's row of the filter's."""
        try:
            yield
        except VerdictError as error:
            message = error.reason if error.column is not None else f"row filter: {error.reason}"
            row = place(error.row)
            raise self._error(message, row, relation=relation, column=error.column, hint=error.hint) from error

    @contextmanager
    def _values_held(self, rows: Ints, relation: str, key: Collection[str]) -> Iterator[None]:
        """Give errors of values that no column can hold the context of their row; `key` names the key's columns."""
        try:
            yield
        except UnrepresentableValue as error:
            row = int(rows[max(error.row, 0)])
            hint = unrepresentable_hint(in_key=error.column in key)
            raise self._error(str(error), row, relation=relation, column=error.column, hint=hint) from error

    def _error(
        self, message: str, row: int, *, relation: str | None = None, column: str | None = None, hint: str = ""
    ) -> ApplyError:
        """An error at a row of the block; its context names the transaction."""
        xid, commit_lsn = self._block.transaction_of(row)
        command = COMMANDS[int(self._messages.tags[row])]
        return ApplyError(
            message, ApplyContext(self._origin_name, commit_lsn, xid, relation, command, column), hint=hint
        )


def _looked_at(relation: Relation, filters: row_filters.RowFilters) -> dict[str, int]:
    """The positions of the columns that filters look at, by name."""
    names = filters.columns
    return {column.name: i for i, column in enumerate(relation.columns) if column.name in names}

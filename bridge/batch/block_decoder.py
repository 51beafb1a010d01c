"""Decodes the rows of a block into the changes of their targets: to which target they go, which count, in what columns.

The steps for the rows of one relation: `Routes` gives the target; rows that the target's copy already has are left out,
then those of actions that are not published, then those that a server's row filter rejects; the others become Arrow
columns, which the target's collector takes.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from bridge.batch.batch import inserts_only
from bridge.batch.collector import ChangeCollector
from bridge.batch.positions import BlockPositions
from bridge.batch.projection import as_changes, from_old_tuples, in_target_types, keep, kept_positions, old_positions
from bridge.batch.routes import key_of, name_of
from bridge.batch.row_filters import PASSED, beyond_spark, with_new_operations
from bridge.effects.events import COMMANDS, INSERT
from bridge.rowfilter.on_server.server_filter import VerdictError
from bridge.runtime.errors import ApplyContext, ApplyError, NeedsResync, TargetError
from bridge.sqltext.keywords import quote_identifier
from bridge.targets.target import unrepresentable_hint
from protocol.bulk.columns import RowMessages
from protocol.codec.walsender import HEADER_BYTES
from protocol.errors import ProtocolError, UnrepresentableValue

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from bridge.batch.decode_block import DecodeBlock
    from bridge.batch.definitions import Definitions
    from bridge.batch.positions import Ordinals
    from bridge.batch.routes import Routes, Subscribed
    from protocol.codec.messages import Relation
    from protocol.lsn import Lsn
    from protocol.values.types import ColumnType
    from protocol.values.value_array import Bools, Bytes, Ints

_KEYLESS_HISTORY = (
    'a history needs a primary key, or a replica identity by an index; or set mode = "changelog" for the table'
)

_ROW_ACTIONS = frozenset({"insert", "update", "delete"})


def _key_hint(relation: Relation) -> str:
    """What to run for a table without a key; a name of pg_catalog's is sent without its schema."""
    table = f"{quote_identifier(relation.namespace or 'pg_catalog')}.{quote_identifier(relation.name)}"
    return f"run on the server: ALTER TABLE {table} ADD PRIMARY KEY (…); or ALTER TABLE {table} REPLICA IDENTITY FULL"


class _Decided(NamedTuple):
    """Which changes a server's filters have let pass, and the operations of all after that."""

    passed: Bools
    operations: Bytes


class BlockDecoder:
    """Decodes one block.

    Args:
        collectors: Take the changes, by their target's path; made as they are needed.
        ordinals: Counts changes from block to block; None if no target keeps every change.

    Attributes:
        positions: Where the block's changes are in the stream; None if no target keeps every change.

    Raises:
        ApplyError: One of the block's messages is not a row message.
    """

    def __init__(
        self,
        block: DecodeBlock,
        collectors: dict[str, ChangeCollector],
        *,
        routes: Routes,
        definitions: Definitions,
        origin_name: str,
        unrepresentable: Literal["error", "null"] = "error",
        ignored: Callable[[str], None] = lambda _: None,
        ordinals: Ordinals | None = None,
    ) -> None:
        self._block = block
        self._collectors = collectors
        self._routes = routes
        self._definitions = definitions
        self._origin_name = origin_name
        self._unrepresentable: Literal["error", "null"] = unrepresentable
        self._ignored = ignored
        try:
            self._messages = RowMessages(block.rows, skip_bytes=HEADER_BYTES, in_stream=block.in_stream)
        except ProtocolError as error:
            xid, commit_lsn = block.transaction_of(0)
            raise ApplyError(str(error), ApplyContext(origin_name, commit_lsn, xid)) from error
        self._aborted: Bools | None = None
        if block.aborted and self._messages.xids is not None:
            self._aborted = np.isin(self._messages.xids, block.aborted)
        self.positions = BlockPositions(block, self._aborted, ordinals) if ordinals is not None else None

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
        rows, operations = self._filter(relation, subscribed, rows)
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
                raise self._error(renamed.error.message, int(counting[0]), hint=renamed.error.hint) from renamed.error
            return None, counting
        subscribed = self._routes.route(relation)
        if subscribed is None:
            self._ignored(".".join(name_of(relation)))
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
            target = subscribed.target
            with self._errors_at(row, target.qualified_name):
                raise NeedsResync(message, (target.namespace, target.name), hint=hint)

    def _filter(self, relation: Relation, subscribed: Subscribed, rows: Ints) -> tuple[Ints, Bytes | None]:
        """The rows that pass a server's filters, and their operations after that.

        Without such filters: all rows, and None. Spark's filters are applied later.
        """
        if subscribed.server_filters is None:
            return rows, None
        name = subscribed.target.qualified_name
        with self._errors_at(int(rows[0]), name):
            try:
                return subscribed.server_filters.passing(self._messages, relation, rows)
            except VerdictError as error:
                raise self._error(f"row filter: {error.reason}", error.row, relation=name) from error

    def _collect(self, relation: Relation, subscribed: Subscribed, rows: Ints, operations: Bytes | None) -> None:
        """Decode the values, and add the changes to those of the target."""
        name, first = subscribed.target.qualified_name, int(rows[0])
        key = key_of(relation, subscribed)
        collector = self._collectors.setdefault(subscribed.target.path, ChangeCollector(subscribed))
        with self._errors_at(first, name):
            xid, _ = self._block.transaction_of(first)
            columns, types = self._definitions.follow(relation, subscribed, collector, xid)
            kept = kept_positions(columns, subscribed)
            kept_columns, kept_key = keep(columns, key, kept, subscribed)
            # which values must be representable is known after filtering: an UPDATE may become a DELETE
            filtered = bool(subscribed.filters) or operations is not None
            policy: Literal["error", "null", "show"] = "show" if filtered else self._unrepresentable
            try:
                table = self._messages.decode(
                    relation, types, rows, unrepresentable=policy, key=key if kept_key else (), wanted=kept
                )
            except UnrepresentableValue as error:
                row = int(rows[error.row]) if error.row >= 0 else first
                hint = unrepresentable_hint(in_key=error.column in {relation.columns[k].name for k in key})
                raise self._error(str(error), row, relation=name, column=error.column, hint=hint) from error
            rows, table, decided = self._decide(relation, subscribed, rows, table, types)
            table = in_target_types(table, types, columns)
        collector.columns, collector.key = kept_columns, kept_key
        if not len(rows):
            return
        changed = not inserts_only(table)
        mode = subscribed.target.mode
        keyless = mode == "history" or (mode == "mirror" and relation.replica_identity != "f")
        if changed and not collector.key and keyless:
            with self._errors_at(first, name):
                raise NeedsResync(
                    f'table "{name}" has changes other than INSERT, and no key to find its rows by',
                    (subscribed.target.namespace, subscribed.target.name),
                    hint=_KEYLESS_HISTORY if mode == "history" else _key_hint(relation),
                )
        seq = pa.array(rows + self._block.first_seq)
        olds: Collection[int] = old_positions(columns, relation, subscribed, collector.key) if changed else ()
        positions: dict[str, pa.Array] = {}
        if subscribed.target.every_change and self.positions is not None:
            olds, positions = range(len(columns)), self.positions.of_rows(rows)
        changes = as_changes(from_old_tuples(table), seq, olds, kept, positions)
        if decided is not None:
            changes = changes.append_column(PASSED, pa.array(decided.passed))
            operations = decided.operations
        if operations is not None:
            changes, lost = with_new_operations(changes, operations)
            collector.lost += lost
        with self._errors_at(first, name):
            collector.add(changes)

    def _decide(
        self, relation: Relation, subscribed: Subscribed, rows: Ints, table: pa.Table, types: Sequence[ColumnType]
    ) -> tuple[Ints, pa.Table, _Decided | None]:
        """Have a server compute the filters for the rows that Spark cannot compute them for.

        Returns:
            The rows without those that do not pass, their values, and what was decided; None if nothing was.
        """
        filters = subscribed.filters
        if not filters or filters.on_server is None:
            return rows, table, None
        names = filters.columns
        filtered = {i for i, column in enumerate(relation.columns) if column.name in names}
        beyond = beyond_spark(table, types, filtered)
        if not beyond.any():
            return rows, table, None
        asked = replace(subscribed, server_filters=filters.on_server())
        passing, become = self._filter(relation, asked, rows[beyond])
        passed = np.isin(rows, passing)
        kept = ~beyond | passed
        operations = self._messages.tags[rows]
        if become is not None:
            operations[passed] = become
        return rows[kept], table.filter(pa.array(kept)), _Decided(passed[kept], operations[kept])

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

    def _error(
        self, message: str, row: int, *, relation: str | None = None, column: str | None = None, hint: str = ""
    ) -> ApplyError:
        """An error at a row of the block; its context names the transaction."""
        xid, commit_lsn = self._block.transaction_of(row)
        command = COMMANDS[int(self._messages.tags[row])]
        return ApplyError(
            message, ApplyContext(self._origin_name, commit_lsn, xid, relation, command, column), hint=hint
        )

"""Forms batches: whole committed transactions, decoded to one table of changes for each target.

Nothing is applied here, and there is no Spark: a batch is a value. Only changes that memory cannot hold go to a `Stage`
on the way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from bridge.apply.batch.batch import Batch
from bridge.apply.batch.block_decoder import Decoding
from bridge.apply.batch.collector import ChangeCollector
from bridge.apply.batch.decode_block import decode_blocks
from bridge.apply.batch.definitions import Definitions
from bridge.apply.batch.projection import as_changes, in_target_types, keep, kept_positions, old_positions
from bridge.apply.batch.routes import name_of
from bridge.apply.batch.server_filters import with_new_operations
from bridge.apply.batch.subscribed import Subscribed, key_of
from bridge.apply.batch.table_changes import inserts_only
from bridge.apply.batch.unchanged_toast import from_old_tuples
from bridge.apply.effects.operations import COMMANDS, INSERT
from bridge.apply.target.target import unrepresentable_hint
from bridge.errors import ApplyContext, ApplyError, TargetError
from bridge.rowfilter.on_server.server_filter import VerdictError
from bridge.track.spool import CHUNK_BYTES
from protocol.errors import ProtocolError, UnrepresentableValue
from protocol.messages import LogicalMessage, Relation, Truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bridge.apply.batch.routes import Routes
    from bridge.apply.batch.table_changes import Stage
    from bridge.apply.evolution.tracker import DefinitionTracker
    from protocol.lsn import Lsn
    from protocol.transactions import Item, Transaction
    from protocol.values.types import ColumnType

ROW_ACTIONS = frozenset({"insert", "update", "delete"})


class Batcher:
    """Forms the batches of one stream; knows the relations that the stream has announced.

    Args:
        origin_name: For error contexts.
        routes: Says which target each relation goes to.
        types: Resolves pairs of type oid and typmod.
        unrepresentable: Whether a value that the target's type cannot hold is an error, or NULL.
        ignored: Called with a table that has changes and is not subscribed.
        stage: Takes changes that memory cannot hold.
        memory_bytes: How much memory the changes of spooled transactions may take before they go to `stage`.
        tracker: Plans how the targets' columns follow the stream. None: as in PostgreSQL's subscriber, a column that
            the target lacks is an error.
    """

    def __init__(
        self,
        origin_name: str,
        routes: Routes,
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        *,
        unrepresentable: Literal["error", "null"] = "error",
        ignored: Callable[[str], None] = lambda _: None,
        stage: Stage | None = None,
        memory_bytes: int = 64 << 20,
        tracker: DefinitionTracker | None = None,
    ) -> None:
        self._origin_name = origin_name
        self._routes = routes
        self._unrepresentable = unrepresentable
        self._ignored = ignored
        self._stage = stage
        self._memory_bytes = memory_bytes
        self._definitions = Definitions(types, tracker)

    def form(self, transactions: Sequence[Item], start_lsn: Lsn, end_lsn: Lsn | None = None) -> Batch:
        """Decode transactions into a batch.

        Args:
            transactions: In the order of their ends; may be empty when `end_lsn` is given.
            start_lsn: The origin's LSN.
            end_lsn: The batch's recorded end, for a batch that is formed again.

        Raises:
            ApplyError: A message or value cannot be decoded, or a target lacks a column. The context names
                transaction, relation and column, and carries the finish LSN.
            StateError: A spool file cannot be read.
        """
        batch = self.attempt(transactions, start_lsn, end_lsn)
        if batch.error is not None:
            raise batch.error
        return batch

    def attempt(self, transactions: Sequence[Item], start_lsn: Lsn, end_lsn: Lsn | None = None) -> Batch:
        """Like `form`, but an ApplyError becomes the `error` of a batch without changes.

        Afterwards all definitions are known that the transactions announced, also where one cannot be decoded.

        Raises:
            StateError: A spool file cannot be read.
        """
        batch = Batch.of(transactions, start_lsn, end_lsn)
        batch.names_before = dict(self._routes.names)
        self._definitions.begin(batch)
        collectors: dict[str, ChangeCollector] = {}
        try:
            for block in decode_blocks(transactions, min(CHUNK_BYTES, self._memory_bytes)):
                self._form(Decoding(block, collectors, self._origin_name), batch)
                if block.spooled and self._stage is not None:
                    self._limit_memory(collectors.values(), self._stage)
        except ApplyError as error:
            batch.error = error
            batch.with_messages.clear()
            self._learn(transactions)
            return batch
        for collector in collectors.values():
            batch.tables += collector.changes(self._stage)
        self._definitions.end(batch)
        batch.relids = dict(self._routes.names.items() - batch.names_before.items())
        return batch

    def rewind(self, batch: Batch) -> None:
        """Forget this batch and every batch that was formed after it: it can be formed again, whole or in parts."""
        self._definitions.rewind(batch)
        self._routes.names = dict(batch.names_before)

    def forget_plan(self, batch: Batch) -> None:
        """Forget what the last batch has changed of the targets' columns and names: it will not be applied."""
        self._definitions.forget_plan(batch)
        self._routes.names = dict(batch.names_before)

    def open_again(self) -> None:
        """Read the targets' columns again: an undo has taken the tables back to the origin's LSN."""
        self._definitions.open_again()

    def _learn(self, transactions: Sequence[Item]) -> None:
        """Take the definitions from transactions that are not decoded: the server does not announce them again."""
        again = False
        for block in decode_blocks(transactions):
            for _, _, message in block.events:
                if isinstance(message, Relation):
                    again |= self._definitions.relations.find(message.relation_id) is not None
                    self._definitions.announce(message)
        self._definitions.unfollow()
        if again:
            self._routes.reread_catalog()

    def _limit_memory(self, collectors: Collection[ChangeCollector], stage: Stage) -> None:
        if sum(collector.memory_bytes for collector in collectors) > self._memory_bytes:
            for collector in collectors:
                collector.stage(stage)

    def _form(self, decoding: Decoding, batch: Batch) -> None:
        begin = 0
        for position, transaction, message in decoding.block.events:
            if isinstance(message, LogicalMessage):
                if not batch.with_messages or batch.with_messages[-1] is not transaction:
                    batch.with_messages.append(transaction)
                continue
            known = isinstance(message, Relation) and self._definitions.relations.find(message.relation_id) is not None
            again = known and message not in transaction.relations and not transaction.in_stream
            if isinstance(message, Relation) and not again and not self._definitions.relations.differs(message):
                continue
            self._decode(decoding, begin, position)
            begin = position
            if isinstance(message, Relation):
                self._definitions.announce(message)
                if known:
                    self._routes.reread_catalog()
            else:
                self._truncate(decoding, message, transaction)
        self._decode(decoding, begin, len(decoding.block.rows))

    def _decode(self, decoding: Decoding, begin: int, end: int) -> None:
        """Decode rows[begin:end] of the block; no definition changes between them."""
        if begin == end:
            return
        messages = decoding.messages
        ids = messages.relation_ids[begin:end]
        for relation_id in np.unique(ids):
            indices = np.flatnonzero(ids == relation_id) + begin
            if decoding.block.aborted and messages.xids is not None:
                indices = indices[~np.isin(messages.xids[indices], decoding.block.aborted)]
            if not len(indices):
                continue
            try:
                relation = self._definitions.relations.get(int(relation_id))
                subscribed, indices = self._route(decoding, relation, indices)
            except TargetError as error:
                raise decoding.failed(error.message, int(indices[0]), hint=error.hint) from error
            except ProtocolError as error:
                raise decoding.failed(str(error), int(indices[0])) from error
            if subscribed is None or not len(indices):
                continue
            if not subscribed.actions >= ROW_ACTIONS:
                tags = [tag for tag, command in COMMANDS.items() if command.lower() in subscribed.actions]
                indices = indices[np.isin(messages.tags[indices], tags)]
            if len(indices):
                self._check_identity(decoding, relation, subscribed, indices)
                self._decode_passing(decoding, relation, subscribed, indices)

    def _decode_passing(
        self, decoding: Decoding, relation: Relation, subscribed: Subscribed, indices: np.ndarray
    ) -> None:
        """Decode the rows that pass a server's filters; with Spark's filters, all rows: Spark filters them later."""
        becomes = None
        if subscribed.server_filters is not None:
            name = subscribed.target.qualified_name
            try:
                indices, becomes = subscribed.server_filters.passing(decoding.messages, relation, indices)
            except VerdictError as error:
                raise decoding.failed(f"row filter: {error.reason}", error.row, relation=name) from error
            except ProtocolError as error:
                raise decoding.failed(str(error), int(indices[0]), relation=name) from error
        if len(indices):
            self._decode_relation(decoding, relation, subscribed, indices, becomes)

    def _decode_relation(
        self,
        decoding: Decoding,
        relation: Relation,
        subscribed: Subscribed,
        indices: np.ndarray,
        becomes: np.ndarray | None,
    ) -> None:
        name = subscribed.target.qualified_name
        at = int(indices[0])
        key = key_of(relation, subscribed)
        collector = decoding.collectors.setdefault(subscribed.target.path, ChangeCollector(subscribed))
        try:
            columns, types = self._definitions.follow(relation, subscribed, collector)
            kept = kept_positions(columns, subscribed)
            # which values must be representable is known after filtering: an UPDATE may become a DELETE
            shown = bool(subscribed.filters) or becomes is not None
            policy: Literal["error", "null", "show"] = "show" if shown else self._unrepresentable
            kept_columns, kept_key = keep(columns, key, kept, subscribed)
            table = decoding.messages.decode(
                relation, types, indices, unrepresentable=policy, key=key if kept_key else (), wanted=kept
            )
            table = in_target_types(table, types, columns)
        except UnrepresentableValue as error:
            at = int(indices[error.row]) if error.row >= 0 else at
            hint = unrepresentable_hint(in_key=error.column in {relation.columns[k].name for k in key})
            raise decoding.failed(str(error), at, relation=name, column=error.column, hint=hint) from error
        except TargetError as error:
            raise decoding.failed(error.message, at, relation=name, hint=error.hint) from error
        except ProtocolError as error:
            raise decoding.failed(str(error), at, relation=name) from error
        collector.columns, collector.key = kept_columns, kept_key
        changed = not inserts_only(table)
        if changed and not collector.key and relation.replica_identity != "f":
            raise decoding.failed(
                f'table "{name}" has changes other than INSERT, and no key to find its rows by',
                at,
                relation=name,
                hint=f"run on the server: ALTER TABLE {name} ADD PRIMARY KEY (…); "
                f"or ALTER TABLE {name} REPLICA IDENTITY FULL;",
            )
        seq = pa.array(indices + decoding.block.first_seq)
        olds = old_positions(columns, relation, subscribed, collector.key) if changed else ()
        changes = as_changes(from_old_tuples(table), seq, olds, kept)
        if becomes is not None:
            changes, lost = with_new_operations(changes, becomes)
            collector.lost += lost
        try:
            collector.add(changes)
        except TargetError as error:
            raise decoding.failed(error.message, at, relation=name, hint=error.hint) from error

    def _check_identity(
        self, decoding: Decoding, relation: Relation, subscribed: Subscribed, indices: np.ndarray
    ) -> None:
        """Stop at the first UPDATE or DELETE whose old tuple lacks a column that the definitions need."""
        tags = decoding.messages.tags[indices]
        if (tags == INSERT).all():
            return
        refusals = self._routes.identity_refusals(relation, self._definitions.relations.find)
        by_command = {command: refusal for refusal in reversed(refusals) for command in refusal.commands}
        refused = np.isin(tags, [tag for tag, command in COMMANDS.items() if command in by_command])
        if refused.any():
            row = int(indices[refused.argmax()])
            command = COMMANDS[int(decoding.messages.tags[row])]
            message, hint = by_command[command].message(command), by_command[command].hint
            raise decoding.failed(message, row, relation=subscribed.target.qualified_name, hint=hint)

    def _route(
        self, decoding: Decoding, relation: Relation, indices: np.ndarray
    ) -> tuple[Subscribed | None, np.ndarray]:
        """Find the target of a relation's rows, and the rows that are not yet in its copy.

        Raises:
            ApplyError: The relation is a subscribed table that has another name now.
            TargetError: Its changes cannot be applied exactly.
        """
        renamed = self._routes.renamed_table(relation)
        if renamed is not None:
            counting = decoding.since(indices, renamed.lsn)
            if len(counting):
                raise decoding.failed(renamed.error.message, int(counting[0]), hint=renamed.error.hint)
            return None, counting
        subscribed = self._routes.route(relation)
        if subscribed is None:
            self._ignored(".".join(name_of(relation)))
            return None, indices
        counting = decoding.since(indices, subscribed.lsn)
        if len(counting):
            self._routes.remember_relid(relation)
        return subscribed, counting

    def _truncate(self, decoding: Decoding, message: Truncate, transaction: Transaction) -> None:
        """Drop the changes that came before it on its tables."""
        context = ApplyContext(self._origin_name, transaction.commit_lsn, transaction.xid, None, "TRUNCATE")
        try:
            relations = [self._definitions.relations.get(relation_id) for relation_id in message.relation_ids]
            for relation in relations:
                renamed = self._routes.renamed_table(relation)
                if renamed is not None and transaction.commit_lsn >= renamed.lsn:
                    raise renamed.error
            emptied = self._routes.truncated(relations)
        except TargetError as error:
            raise ApplyError(error.message, context, hint=error.hint) from error
        except ProtocolError as error:
            raise ApplyError(str(error), context) from error
        for subscribed in emptied:
            if transaction.commit_lsn < subscribed.lsn or "truncate" not in subscribed.actions:
                continue
            target = subscribed.target
            # a root has no definition below where the stream has its partitions
            collector = decoding.collectors.setdefault(
                target.path, ChangeCollector(self._definitions.opened(subscribed))
            )
            for relation in relations:
                if name_of(relation) == (target.namespace, target.name):
                    try:
                        columns, _ = self._definitions.follow(relation, subscribed, collector)
                    except TargetError as error:
                        of_target = replace(context, relation=target.qualified_name)
                        raise ApplyError(error.message, of_target, hint=error.hint) from error
                    kept = kept_positions(columns, subscribed)
                    collector.columns, collector.key = keep(columns, key_of(relation, subscribed), kept, subscribed)
            collector.truncate()

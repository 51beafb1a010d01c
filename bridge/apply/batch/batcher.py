"""Forms batches: whole committed transactions, decoded to one table of changes for each target.

No Spark in here, and nothing is applied: a batch is a value, but for changes too large for memory, which go to a
`Stage` on the way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from bridge.apply.batch.batch import Batch
from bridge.apply.batch.collector import ChangeCollector
from bridge.apply.batch.decode_block import decode_blocks
from bridge.apply.batch.decoding import Decoding
from bridge.apply.batch.projection import cast, chosen, from_rows, old_columns, wanted_columns
from bridge.apply.batch.routes import name_of
from bridge.apply.batch.server_filters import as_what_they_become
from bridge.apply.batch.subscribed import Subscribed, key_of
from bridge.apply.batch.table_changes import inserts_only
from bridge.apply.effects.operations import COMMANDS, INSERT
from bridge.apply.evolution.tracker import learned
from bridge.apply.target.target import TargetColumn, unrepresentable_hint
from bridge.errors import ApplyContext, ApplyError, TargetError
from bridge.rowfilter.on_server.server_filter import VerdictError
from bridge.track.spool import CHUNK_BYTES
from protocol.errors import ProtocolError, UnrepresentableValue
from protocol.messages import LogicalMessage, Relation, Truncate
from protocol.relations import RelationCache

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bridge.apply.batch.collector import Stage
    from bridge.apply.batch.routes import Routes
    from bridge.apply.evolution.tracker import DefinitionTracker
    from protocol.lsn import Lsn
    from protocol.transactions import Item, Transaction
    from protocol.values.types import ColumnType

ROW_ACTIONS = frozenset({"insert", "update", "delete"})


class Batcher:
    """Decodes transactions of one stream; remembers the relations that the stream announced.

    Args:
        origin_name: For error contexts.
        routes: Where the stream's relations go.
        types: Resolves (type oid, typmod) to how its values are decoded.
        unrepresentable: What becomes of a value the target's type cannot hold.
        ignored: Called once for each published table that is not subscribed.
        stage: Where changes go that memory would not hold.
        memory_bytes: How much decoded changes of transactions in spool files may hold before they go there.
        schemas: Has the targets' columns follow the stream; None to have a column that a target lacks be an error, as
            in PostgreSQL's subscriber.
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
        schemas: DefinitionTracker | None = None,
    ) -> None:
        self._origin_name = origin_name
        self._routes = routes
        self._types = types
        self._unrepresentable = unrepresentable
        self._ignored = ignored
        self._stage = stage
        self._memory_bytes = memory_bytes
        self._relations = RelationCache()
        self._schemas = schemas
        self._defined: dict[int, _Defined] = {}

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
        """Like `form`, but an ApplyError becomes the batch's `error`; it has no changes then.

        Either way all definitions that its transactions announced are known afterwards.

        Raises:
            StateError: A spool file cannot be read.
        """
        batch = Batch.of(transactions, start_lsn, end_lsn)
        batch.before = self._relations.session()
        batch.names = dict(self._routes.names)
        if self._schemas is not None:
            batch.schemas = self._schemas.state
        pieces: dict[str, ChangeCollector] = {}
        try:
            for block in decode_blocks(transactions, min(CHUNK_BYTES, self._memory_bytes)):
                self._form(Decoding(block, pieces, self._origin_name), batch)
                if block.spooled and self._stage is not None:
                    self._limit_memory(pieces.values(), self._stage)
        except ApplyError as error:
            batch.error = error
            batch.telling.clear()
            self._learn(transactions)
            return batch
        for piece in pieces.values():
            batch.tables += piece.changes(self._stage)
        if self._schemas is not None:
            batch.columns = learned(batch.schemas, self._schemas.state)
        batch.relids = dict(self._routes.names.items() - batch.names.items())
        return batch

    def rewind(self, batch: Batch) -> None:
        """Forget what was formed since this batch, and the batch itself: it, or parts of it, may be formed again."""
        self._relations = RelationCache()
        for relation in batch.before:
            self._relations.update(relation)
        self.pass_over(batch)

    def pass_over(self, batch: Batch) -> None:
        """Nothing of this batch, which was formed last, is applied: what follows is by what was known before it."""
        self._defined.clear()
        self._routes.names = dict(batch.names)
        if self._schemas is not None:
            self._schemas.back_to(batch.schemas)

    def open_again(self) -> None:
        """The targets were taken back to where the origin is."""
        self._defined.clear()
        if self._schemas is not None:
            self._schemas.open_again()

    def _learn(self, transactions: Sequence[Item]) -> None:
        """Take the definitions of transactions that are not decoded: the server does not announce them again."""
        again = False
        for block in decode_blocks(transactions):
            for _, _, message in block.events:
                if isinstance(message, Relation):
                    again |= self._relations.find(message.relation_id) is not None
                    self._relations.update(message)
        self._defined.clear()
        if again:
            self._routes.announced_again()

    def _limit_memory(self, pieces: Collection[ChangeCollector], stage: Stage) -> None:
        if sum(piece.memory_bytes for piece in pieces) > self._memory_bytes:
            for piece in pieces:
                piece.stage(stage)

    def _form(self, work: Decoding, batch: Batch) -> None:
        begin = 0
        for position, transaction, message in work.block.events:
            if isinstance(message, LogicalMessage):
                if not batch.telling or batch.telling[-1] is not transaction:
                    batch.telling.append(transaction)
                continue
            known = isinstance(message, Relation) and self._relations.find(message.relation_id) is not None
            again = known and message not in transaction.relations and not transaction.in_stream
            if isinstance(message, Relation) and not again and not self._relations.differs(message):
                continue
            self._decode(work, begin, position)
            begin = position
            if isinstance(message, Relation):
                self._relations.update(message)
                self._defined.pop(message.relation_id, None)
                if known:
                    self._routes.announced_again()
            else:
                self._truncate(work, message, transaction)
        self._decode(work, begin, len(work.block.rows))

    def _decode(self, work: Decoding, begin: int, end: int) -> None:
        """Decode the block's rows[begin:end], which stand under one set of relation definitions."""
        if begin == end:
            return
        messages = work.messages
        ids = messages.relation_ids[begin:end]
        for relation_id in np.unique(ids):
            indices = np.flatnonzero(ids == relation_id) + begin
            if work.block.aborted and messages.xids is not None:
                indices = indices[~np.isin(messages.xids[indices], work.block.aborted)]
            if not len(indices):
                continue
            try:
                relation = self._relations.get(int(relation_id))
                subscribed, indices = self._route(work, relation, indices)
            except TargetError as error:
                raise work.failed(error.message, int(indices[0]), hint=error.hint) from error
            except ProtocolError as error:
                raise work.failed(str(error), int(indices[0])) from error
            if subscribed is None or not len(indices):
                continue
            if not subscribed.actions >= ROW_ACTIONS:
                tags = [tag for tag, command in COMMANDS.items() if command.lower() in subscribed.actions]
                indices = indices[np.isin(messages.tags[indices], tags)]
            if len(indices):
                self._check_identity(work, relation, subscribed, indices)
                self._decode_passing(work, relation, subscribed, indices)

    def _decode_passing(self, work: Decoding, relation: Relation, subscribed: Subscribed, indices: np.ndarray) -> None:
        """Decode what passes, if it is a server that tells; else all, of which Spark tells."""
        becomes = None
        if subscribed.server_filters is not None:
            name = subscribed.target.qualified_name
            try:
                indices, becomes = subscribed.server_filters.passing(work.messages, relation, indices)
            except VerdictError as error:
                raise work.failed(f"row filter: {error.reason}", error.row, relation=name) from error
            except ProtocolError as error:
                raise work.failed(str(error), int(indices[0]), relation=name) from error
        if len(indices):
            self._decode_relation(work, relation, subscribed, indices, becomes)

    def _decode_relation(
        self,
        work: Decoding,
        relation: Relation,
        subscribed: Subscribed,
        indices: np.ndarray,
        becomes: np.ndarray | None,
    ) -> None:
        name = subscribed.target.qualified_name
        at = int(indices[0])
        key = key_of(relation, subscribed)
        pieces = work.pieces.setdefault(subscribed.target.path, ChangeCollector(subscribed))
        try:
            columns, types = self._define(relation, subscribed, pieces)
            wanted = wanted_columns(columns, subscribed)
            # what has to be held is known when rows have been filtered: of an UPDATE that becomes a DELETE not the new
            shown = bool(subscribed.filters) or becomes is not None
            policy: Literal["error", "null", "show"] = "show" if shown else self._unrepresentable
            own, own_key = chosen(columns, key, wanted, subscribed)
            table = work.messages.decode(
                relation, types, indices, unrepresentable=policy, key=key if own_key else (), wanted=wanted
            )
            table = cast(table, types, columns)
        except UnrepresentableValue as error:
            at = int(indices[error.row]) if error.row >= 0 else at
            hint = unrepresentable_hint(in_key=error.column in {relation.columns[k].name for k in key})
            raise work.failed(str(error), at, relation=name, column=error.column, hint=hint) from error
        except TargetError as error:
            raise work.failed(error.message, at, relation=name, hint=error.hint) from error
        except ProtocolError as error:
            raise work.failed(str(error), at, relation=name) from error
        pieces.columns, pieces.key = own, own_key
        changed = not inserts_only(table)
        if changed and not pieces.key and relation.replica_identity != "f":
            raise work.failed(
                f'table "{name}" has changes other than INSERT, and no key to find its rows by',
                at,
                relation=name,
                hint=f"run on the server: ALTER TABLE {name} ADD PRIMARY KEY (…); "
                f"or ALTER TABLE {name} REPLICA IDENTITY FULL;",
            )
        seq = pa.array(indices + work.block.first_seq)
        olds = old_columns(columns, relation, subscribed, pieces.key) if changed else ()
        changes = from_rows(table, seq, olds, wanted)
        if becomes is not None:
            changes, lost = as_what_they_become(changes, becomes)
            pieces.lost += lost
        try:
            pieces.add(changes)
        except TargetError as error:
            raise work.failed(error.message, at, relation=name, hint=error.hint) from error

    def _check_identity(self, work: Decoding, relation: Relation, subscribed: Subscribed, indices: np.ndarray) -> None:
        """Stop at the first change that the definitions cannot take rightly, as its old tuple has too little."""
        tags = work.messages.tags[indices]
        if (tags == INSERT).all():
            return
        refusals = self._routes.refusals(relation, self._relations.find)
        by_command = {command: refusal for refusal in reversed(refusals) for command in refusal.commands}
        refused = np.isin(tags, [tag for tag, command in COMMANDS.items() if command in by_command])
        if refused.any():
            row = int(indices[refused.argmax()])
            command = COMMANDS[int(work.messages.tags[row])]
            message, hint = by_command[command].message(command), by_command[command].hint
            raise work.failed(message, row, relation=subscribed.target.qualified_name, hint=hint)

    def _route(self, work: Decoding, relation: Relation, indices: np.ndarray) -> tuple[Subscribed | None, np.ndarray]:
        """Where a relation's rows go, and those of them that count there.

        Raises:
            ApplyError: It is a table of ours that has another name now.
            TargetError: They cannot be taken rightly.
        """
        renamed = self._routes.renamed(relation)
        if renamed is not None:
            counting = work.since(indices, renamed.lsn)
            if len(counting):
                raise work.failed(renamed.error.message, int(counting[0]), hint=renamed.error.hint)
            return None, counting
        subscribed = self._routes.find(relation)
        if subscribed is None:
            self._ignored(".".join(name_of(relation)))
            return None, indices
        counting = work.since(indices, subscribed.lsn)
        if len(counting):
            self._routes.taken(relation)
        return subscribed, counting

    def _define(self, relation: Relation, subscribed: Subscribed, pieces: ChangeCollector) -> _Defined:
        """A definition's columns; what they make of the target's is told to its pieces, once.

        Raises:
            TargetError: The target lacks one, and does not follow.
        """
        target = subscribed.target
        defined = self._defined.get(relation.relation_id)
        if defined is None:
            types = self._types([(column.type_oid, column.typmod) for column in relation.columns])
            named = zip(relation.columns, types, strict=True)
            columns = tuple(TargetColumn(column.name, resolved) for column, resolved in named)
            published = subscribed.columns
            if self._schemas is None:
                wanted = [column for column in columns if published is None or column.name in published]
                standing = {column.name: column for column in target.check(wanted)}
                columns = tuple(standing.get(column.name, column) for column in columns)
            else:
                key = {relation.columns[k].name for k in key_of(relation, subscribed)}
                found = self._schemas.plan(relation, types, target, wanted=published, key=key)
                columns = found.columns
                pieces.alter(found.changes)
            defined = self._defined[relation.relation_id] = _Defined(columns, types)
        pieces.subscribed = self._opened(subscribed)
        return defined

    def _opened(self, subscribed: Subscribed) -> Subscribed:
        """With the target's columns as they will be by then."""
        if self._schemas is None:
            return subscribed
        return replace(subscribed, target=self._schemas.opened(subscribed.target))

    def _truncate(self, work: Decoding, message: Truncate, transaction: Transaction) -> None:
        """What came before it on these tables is void."""
        context = ApplyContext(self._origin_name, transaction.commit_lsn, transaction.xid, None, "TRUNCATE")
        try:
            relations = [self._relations.get(relation_id) for relation_id in message.relation_ids]
            for relation in relations:
                renamed = self._routes.renamed(relation)
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
            # a root whose partitions the stream has is not defined below
            pieces = work.pieces.setdefault(target.path, ChangeCollector(self._opened(subscribed)))
            for relation in relations:
                if name_of(relation) == (target.namespace, target.name):
                    try:
                        columns, _ = self._define(relation, subscribed, pieces)
                    except TargetError as error:
                        of_target = replace(context, relation=target.qualified_name)
                        raise ApplyError(error.message, of_target, hint=error.hint) from error
                    wanted = wanted_columns(columns, subscribed)
                    pieces.columns, pieces.key = chosen(columns, key_of(relation, subscribed), wanted, subscribed)
            pieces.truncate()


class _Defined(NamedTuple):
    """A relation's columns as the target has them, and how their values are read."""

    columns: tuple[TargetColumn, ...]
    types: list[ColumnType]

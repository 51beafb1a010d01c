"""Forms batches: whole committed transactions, decoded to one table of changes for each target.

Nothing is applied here, and there is no Spark: a batch is a value. Changes that memory shall not hold are written to
files on the way.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from pgbridge.bridge.batch.batch import Batch
from pgbridge.bridge.batch.block_decoder import BlockDecoder
from pgbridge.bridge.batch.collector import ChangeCollector
from pgbridge.bridge.batch.decode_block import DecodeBlock, decode_blocks
from pgbridge.bridge.batch.definitions import Definitions
from pgbridge.bridge.batch.projection import BlockPositions, Ordinals, keep, kept_positions
from pgbridge.bridge.batch.routes import Routes, Subscribed, key_of, name_of
from pgbridge.bridge.runtime.errors import ApplyContext, ApplyError, TargetError
from pgbridge.bridge.track.spool import CHUNK_BYTES
from pgbridge.protocol.codec.messages import LogicalMessage, Relation, Truncate
from pgbridge.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pgbridge.bridge.batch.row_filters import Verdicts
    from pgbridge.bridge.effects.divided import Spill
    from pgbridge.bridge.evolution.tracker import DefinitionTracker
    from pgbridge.bridge.publication.tables import PrimaryKey
    from pgbridge.protocol.lsn import Lsn
    from pgbridge.protocol.stream.transactions import Event, Item, Transaction
    from pgbridge.protocol.values.types import ColumnType


class Batcher:
    """Forms the batches of one stream; knows the relations that the stream has announced.

    Args:
        unrepresentable: Whether a value that the target's type cannot hold is an error, or NULL; "show": NULL, with the
            value's text beside it.
        ignored: Called with a table that has changes and is not subscribed.
        spill: Takes the changes of spooled transactions that memory shall not hold; None if it holds them all.
        verdicts: Computes row filters that no server computes; None where there are none.
        primary_key: Returns a table's primary key in the publisher's present catalog, for a transaction (`settled`);
            None: the routes know it.

    Attributes:
        may_filter: Whether rows may be filtered here.
    """

    def __init__(  # noqa: PLR0913 - what a stream has, and what its catalog says
        self,
        origin_name: str,
        routes: Routes,
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        *,
        unrepresentable: Literal["error", "null", "show"] = "error",
        ignored: Callable[[str], None] = lambda _: None,
        spill: Spill | None = None,
        verdicts: Verdicts | None = None,
        tracker: DefinitionTracker | None = None,
        primary_key: Callable[[int, int], PrimaryKey | None] | None = None,
    ) -> None:
        self.may_filter = routes.may_filter
        self._every_change = routes.every_change
        self._origin_name = origin_name
        self._routes = routes
        self._spill = spill
        self._definitions = Definitions(types, tracker, primary_key)
        self._decoder = partial(
            BlockDecoder,
            routes=routes,
            definitions=self._definitions,
            origin_name=origin_name,
            unrepresentable=unrepresentable,
            ignored=ignored,
            verdicts=verdicts,
        )

    def form(self, transactions: Sequence[Item], start_lsn: Lsn) -> Batch:
        """Decode transactions, in the order of their ends, into a batch.

        Raises:
            ApplyError: A message or value cannot be decoded, or a target lacks a column. The context names
                transaction, relation and column, and carries the finish LSN.
            StateError: A spool file cannot be read.
        """
        batch = self.attempt(transactions, start_lsn)
        if batch.error is not None:
            raise batch.error
        return batch

    def attempt(self, transactions: Sequence[Item], start_lsn: Lsn) -> Batch:
        """Like `form`, but an ApplyError becomes the `error` of a batch without changes.

        Afterwards all definitions are known that the transactions announced, also where one cannot be decoded. An
        unreadable spool file is a StateError here, too.
        """
        batch = self._begun(transactions, start_lsn)
        collectors: dict[str, ChangeCollector] = {}
        ordinals = Ordinals() if self._every_change else None
        try:
            spill = self._spill
            for block in decode_blocks(transactions, min(CHUNK_BYTES, spill.memory_bytes if spill else CHUNK_BYTES)):
                self._decode(block, collectors, batch, ordinals)
                if block.spooled and spill is not None:
                    _limit_memory(collectors.values(), spill)
        except ApplyError as error:
            return self._failed(batch, error)
        for collector in collectors.values():
            batch.tables += collector.changes()
        self._definitions.end(batch)
        batch.relids = dict(self._routes.names.items() - batch.names_before.items())
        return batch

    def refuse(self, transactions: Sequence[Item], start_lsn: Lsn, error: ApplyError) -> Batch:
        """Return the batch of `attempt` for transactions that must not be formed: they are not decoded."""
        return self._failed(self._begun(transactions, start_lsn), error)

    def _begun(self, transactions: Sequence[Item], start_lsn: Lsn) -> Batch:
        batch = Batch.of(transactions, start_lsn)
        batch.names_before = dict(self._routes.names)
        self._routes.begin()
        self._definitions.begin(batch)
        return batch

    def _failed(self, batch: Batch, error: ApplyError) -> Batch:
        batch.error = error
        batch.with_messages.clear()
        self._learn(batch.items)
        return batch

    def rewind(self, batch: Batch) -> None:
        """Forget this batch and every batch that was formed after it: it can be formed again, whole or in parts."""
        self._definitions.rewind(batch)
        self._routes.names = dict(batch.names_before)

    def forget_plan(self, batch: Batch) -> None:
        """Forget what the last batch has changed of the targets' columns and names: it will not be applied."""
        self._definitions.forget_plan(batch)
        self._routes.names = dict(batch.names_before)

    def _learn(self, transactions: Sequence[Item]) -> None:
        """Take the definitions of transactions that are not decoded: the server does not announce them again."""
        known = False
        for block in decode_blocks(transactions):
            for _, _, message in block.events:
                if isinstance(message, Relation):
                    known |= self._definitions.relations.find(message.relation_id) is not None
                    self._definitions.announce(message)
        self._definitions.unfollow()
        if known:
            self._routes.reread_catalog()

    def _decode(
        self, block: DecodeBlock, collectors: dict[str, ChangeCollector], batch: Batch, ordinals: Ordinals | None
    ) -> None:
        """Decode a block's rows, from one definition or TRUNCATE to the next."""
        decoder = self._decoder(block, collectors, ordinals=ordinals)
        begin = 0
        for event, (position, transaction, message) in enumerate(block.events):
            if isinstance(message, LogicalMessage):
                if not batch.with_messages or batch.with_messages[-1] is not transaction:
                    batch.with_messages.append(transaction)
                continue
            known = isinstance(message, Relation) and self._definitions.relations.find(message.relation_id) is not None
            # outside of streams, pgoutput announces a relation again only if something about the table has changed,
            # though it may look as before
            changed = known and not transaction.in_stream and not _is_carried(message, transaction)
            if isinstance(message, Relation) and not changed and not self._definitions.relations.differs(message):
                if transaction.in_stream:  # it may have changed, and look as before
                    decoder.decode(begin, position)
                    begin = position
                    self._definitions.announce(message)
                    self._routes.announced(
                        message, transaction.xid, again=partial(_announced_again, block, event, False)
                    )
                continue
            decoder.decode(begin, position)
            begin = position
            if isinstance(message, Relation):
                self._definitions.announce(message)
                if known:
                    self._routes.reread_catalog()
                self._routes.announced(message, transaction.xid, again=partial(_announced_again, block, event, changed))
            else:
                as_change = None
                if decoder.positions is not None:
                    as_change = partial(_keep_truncate, decoder.positions, event, block.first_seq + position)
                batch.emptied.append(self._truncate(collectors, message, transaction, as_change))
        decoder.decode(begin, len(block.rows))

    def _truncate(
        self,
        collectors: dict[str, ChangeCollector],
        message: Truncate,
        transaction: Transaction,
        as_change: Callable[[ChangeCollector, int], None] | None,
    ) -> list[Subscribed]:
        """Empty the targets of a TRUNCATE: the changes before it do not count, unless every change is kept.

        Returns all tables that it is routed to, also those that have it already.
        """
        context = ApplyContext(self._origin_name, transaction.commit_lsn, transaction.xid, None, "TRUNCATE")
        try:
            relations = [self._definitions.relations.get(relation_id) for relation_id in message.relation_ids]
            self._routes.at(message.relation_ids, transaction.xid, transaction.commit_lsn, truncated=True)
            for relation in relations:
                renamed = self._routes.renamed_table(relation)
                if renamed is not None and transaction.commit_lsn >= renamed.lsn:
                    raise renamed.error
            emptied = self._routes.truncated(relations)
        except TargetError as error:
            raise ApplyError(error.message, context, hint=error.hint) from error
        except ProtocolError as error:
            raise ApplyError(str(error), context) from error
        for number, route in enumerate(emptied):
            subscribed = route
            if transaction.commit_lsn < subscribed.lsn or "truncate" not in subscribed.actions:
                continue
            target = subscribed.target
            # no relation below defines a root if the stream has its partitions
            collector = collectors.setdefault(
                target.path, ChangeCollector(self._definitions.with_planned_schema(subscribed))
            )
            for relation in relations:
                if name_of(relation) == (target.namespace, target.name):
                    subscribed = self._definitions.with_primary_key(relation, subscribed, transaction.xid)
                    with _target_errors(replace(context, relation=target.qualified_name)):
                        columns, _ = self._definitions.follow(relation, subscribed, collector, transaction.xid)
                    kept = kept_positions(relation.columns, subscribed)
                    collector.columns, collector.key = keep(columns, key_of(relation, subscribed), kept)
            if target.every_change and as_change is not None:
                with _target_errors(replace(context, relation=target.qualified_name)):
                    as_change(collector, number)
            else:
                collector.truncate()
        return emptied


def _is_carried(message: Event, transaction: Transaction) -> bool:
    """Whether a definition is one that a transaction carries, and was announced before; its own may look the same."""
    carried = any(message is relation for relation in transaction.relations)
    return carried and isinstance(message, Relation) and message.relation_id not in transaction.unseen


def _announced_again(block: DecodeBlock, event: int, changed: bool) -> bool:
    """Whether a transaction's own ALTER TABLE can have come before a definition: it is not the first of several.

    `changed`: not even the first one would be sent if nothing had changed.
    """
    _, transaction, message = block.events[event]
    assert isinstance(message, Relation)  # noqa: S101 - as the caller knows
    return changed or not any(
        isinstance(other, Relation) and other.relation_id == message.relation_id and later is transaction
        for _, later, other in block.events[event + 1 :]
    )


def _keep_truncate(positions: BlockPositions, event: int, seq: int, collector: ChangeCollector, number: int) -> None:
    collector.keep_truncate(seq, positions.of_truncate(event, number))


def _limit_memory(collectors: Collection[ChangeCollector], spill: Spill) -> None:
    if sum(collector.memory_bytes for collector in collectors) > spill.memory_bytes:
        for collector in collectors:
            collector.spill(spill)


@contextmanager
def _target_errors(context: ApplyContext) -> Iterator[None]:
    """Give a TargetError its context."""
    try:
        yield
    except TargetError as error:
        raise ApplyError(error.message, context, hint=error.hint) from error

"""The definitions that a stream has announced (Relation messages), and what they make of the targets' columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pgbridge.bridge.batch.routes import Followed, Subscribed, key_of, name_of
from pgbridge.bridge.evolution.tracker import DefinitionTracker, newly_known
from pgbridge.bridge.publication.published_table import one_name
from pgbridge.bridge.publication.shape import TEXT
from pgbridge.bridge.runtime.errors import NeedsResync, OwnColumnError
from pgbridge.bridge.targets.target import Target, TargetColumn
from pgbridge.protocol.stream.relations import RelationCache
from pgbridge.protocol.values.types import ColumnType, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pgbridge.bridge.batch.batch import Batch
    from pgbridge.bridge.batch.collector import ChangeCollector
    from pgbridge.bridge.evolution.alterations import Alteration
    from pgbridge.bridge.publication.tables import PrimaryKey
    from pgbridge.protocol.codec.messages import Relation


class RelationColumns(NamedTuple):
    """The columns of a relation.

    Attributes:
        columns: The columns with their types in the target.
        types: The types that their values are read by.
    """

    columns: tuple[TargetColumn, ...]
    types: list[ColumnType]


class Definitions:
    """The definitions of one stream, up to where its batches are formed.

    A `tracker` plans how the targets' columns follow the stream. Without one, a column that the target lacks is an
    error, as in PostgreSQL's subscriber.
    """

    def __init__(
        self,
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        tracker: DefinitionTracker | None,
        primary_key: Callable[[int, int], PrimaryKey | None] | None = None,
    ) -> None:
        self.relations = RelationCache()
        self._primary_key = primary_key
        self._keys: dict[int, PrimaryKey | None] = {}  # by the relid of the message
        self._types = types
        self._tracker = tracker
        self._followed: dict[int, RelationColumns] = {}  # by relid
        self._followed_in: dict[int, list[Followed]] = {}  # the batch's

    def announce(self, relation: Relation) -> None:
        """Take a Relation message: it defines the rows after it."""
        self.relations.update(relation)
        self._followed.pop(relation.relation_id, None)
        self._keys.pop(relation.relation_id, None)

    def begin(self, batch: Batch) -> None:
        """Note in a batch what is known before it."""
        batch.relations_before = self.relations.session()
        self._followed_in = batch.followed
        # a key that was not settled may be by now
        self._keys = {relid: key for relid, key in self._keys.items() if key is None or key.settled}
        if self._tracker is not None:
            batch.columns_before = self._tracker.state

    def end(self, batch: Batch) -> None:
        """Note in a batch what is known of the tables' columns after it."""
        if self._tracker is not None:
            batch.columns = newly_known(batch.columns_before, self._tracker.state)

    def rewind(self, batch: Batch) -> None:
        """Forget a batch and all after it, so that it can be formed again."""
        self.relations = RelationCache()
        for relation in batch.relations_before:
            self.relations.update(relation)
        self.forget_plan(batch)

    def unfollow(self) -> None:
        """Forget which definitions the targets follow: each is followed again when rows come that it defines."""
        self._followed.clear()
        self._keys.clear()

    def forget_plan(self, batch: Batch) -> None:
        """Forget what a batch has changed of the targets' columns: it will not be applied."""
        self.unfollow()
        if self._tracker is not None:
            self._tracker.restore(batch.columns_before)

    def with_primary_key(self, relation: Relation, subscribed: Subscribed, xid: int) -> Subscribed:
        """Return a subscribed table with the primary key that it had for a transaction; none if that is not proved.

        Under REPLICA IDENTITY FULL it finds rows faster than all columns do, and as exactly. The server announces a
        definition again after a key was added or dropped, so what is proved for a transaction counts until then.
        """
        if self._primary_key is None or relation.replica_identity != "f":
            return subscribed
        if relation.relation_id not in self._keys:
            own = name_of(relation) == (subscribed.target.namespace, subscribed.target.name)
            relid = relation.relation_id if own or subscribed.relid is None else subscribed.relid
            self._keys[relation.relation_id] = key = self._primary_key(relid, xid)
            if key is not None and key.settled:  # it was not, perhaps: its columns are to be checked
                self._followed.pop(relation.relation_id, None)
        key = self._keys[relation.relation_id]
        published = subscribed.columns
        if key is None or not key.settled or not (published is None or published.issuperset(key.columns)):
            return replace(subscribed, primary_key=())
        # rows are not found by what is masked
        masked = any(subscribed.shape.mask(name) is not None for name in key.columns)
        return replace(subscribed, primary_key=() if masked else key.columns)

    def leave_out(self, relation: Relation) -> None:
        """Note that rows under a definition go to no table."""
        self._note(Followed(relation, None, ()))

    def _note(self, followed: Followed) -> None:
        before = self._followed_in.setdefault(followed.relation.relation_id, [])
        same = (entry.relation is followed.relation and entry.subscribed == followed.subscribed for entry in before)
        if followed.alterations or not any(same):
            before.append(followed)

    def follow(
        self, relation: Relation, subscribed: Subscribed, collector: ChangeCollector, xid: int | None = None
    ) -> RelationColumns:
        """Have a target follow a definition. Its collector gets the alterations, once.

        `xid` is the first transaction that has rows under it.

        Raises:
            NeedsResync: It cannot, however the target is altered.
            TargetError: It cannot as the target is.
        """
        target = subscribed.target
        alterations: tuple[Alteration, ...] = ()
        relation_columns = self._followed.get(relation.relation_id)
        if relation_columns is None:
            shape = subscribed.shape
            types = self._types(
                [
                    (column.type_oid, column.typmod) if shape.mask(column.name) is None else TEXT
                    for column in relation.columns
                ]
            )
            named = zip(relation.columns, types, strict=True)
            columns = tuple(TargetColumn(shape.name(column.name), resolved) for column, resolved in named)
            published = None if subscribed.columns is None else {shape.name(name) for name in subscribed.columns}
            why = one_name(target.qualified_name, [column.name for column in relation.columns], shape)
            if why is not None:
                raise NeedsResync(why.reason, (target.namespace, target.name), hint=why.hint)
            if target.mode == "handler":
                pass  # there is no table that has to follow
            elif self._tracker is None:
                replicated = [column for column in columns if published is None or column.name in published]
                checked = {column.name: column for column in target.check(replicated)}
                columns = tuple(checked.get(column.name, column) for column in columns)
                collector.alter(subscribed.then.added if subscribed.then is not None else ())
            else:
                key = {relation.columns[k].name for k in key_of(relation, subscribed)}
                plan = self._tracker.plan(
                    *(relation, types, target),
                    replicated=subscribed.columns,
                    key=key,
                    shape=shape,
                    xid=xid,
                    root=subscribed.relid,
                )
                columns, alterations = plan.columns, plan.alterations
                collector.alter(alterations)
            types = [
                replace(type_.parsed_for(column.type.arrow), place=column.type.place)
                for type_, column in zip(types, columns, strict=True)
            ]
            if target.mode not in {"changelog", "handler"}:
                identity = [columns[k] for k in key_of(relation, subscribed)]
                _check_key(target, identity)
                names = {column.name for column in columns if published is None or column.name in published}
                try:
                    target.check_filled(names, keyed=bool(identity) or relation.replica_identity != "f")
                except OwnColumnError as error:
                    if error.alterable:
                        raise
                    raise NeedsResync(error.message, (target.namespace, target.name), hint=error.hint) from error
            relation_columns = self._followed[relation.relation_id] = RelationColumns(columns, types)
        self._note(Followed(relation, subscribed, alterations))
        collector.subscribed = self.with_planned_schema(subscribed)
        return relation_columns

    def with_planned_schema(self, subscribed: Subscribed) -> Subscribed:
        """Return a subscribed table whose target has its columns after all plans so far."""
        if self._tracker is None:
            return subscribed
        return replace(subscribed, target=self._tracker.with_planned_schema(subscribed.target))


def _check_key(target: Target, key: Sequence[TargetColumn]) -> None:
    """Raise a NeedsResync if rows cannot be found by the key's columns: Spark compares no VARIANT."""
    for column in key:
        if column.type.place is Place.VARIANT:
            raise NeedsResync(
                f'column "{column.name}" identifies the rows of table "{target.qualified_name}", but is VARIANT in the '
                f"Delta table at {target.path}",
                (target.namespace, target.name),
                hint="give the table a replica identity without the column; or move the Delta table away: in a new one "
                "a column of the key is a string",
            )

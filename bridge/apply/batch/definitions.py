"""The definitions that a stream has announced (Relation messages), and what they make of the targets' columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bridge.apply.batch.subscribed import key_of
from bridge.apply.evolution.tracker import newly_known
from bridge.apply.target.target import TargetColumn
from protocol.relations import RelationCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bridge.apply.batch.batch import Batch
    from bridge.apply.batch.collector import ChangeCollector
    from bridge.apply.batch.subscribed import Subscribed
    from bridge.apply.evolution.tracker import DefinitionTracker
    from protocol.messages import Relation
    from protocol.values.types import ColumnType


class Definition(NamedTuple):
    """The columns of a relation as the target has them, and the types that their values are read by."""

    columns: tuple[TargetColumn, ...]
    types: list[ColumnType]


class Definitions:
    """The definitions of one stream, up to where its batches are formed.

    Args:
        types: Resolves pairs of type oid and typmod.
        tracker: Plans how the targets' columns follow the stream. None: as in PostgreSQL's subscriber, a column that
            the target lacks is an error.

    Attributes:
        relations: The relations that the stream has announced.
    """

    def __init__(
        self,
        types: Callable[[Sequence[tuple[int, int]]], list[ColumnType]],
        tracker: DefinitionTracker | None,
    ) -> None:
        self.relations = RelationCache()
        self._types = types
        self._tracker = tracker
        self._followed: dict[int, Definition] = {}  # by relid

    def announce(self, relation: Relation) -> None:
        """Take a Relation message: the rows after it stand under this definition."""
        self.relations.update(relation)
        self._followed.pop(relation.relation_id, None)

    def begin(self, batch: Batch) -> None:
        """Note in a batch what is known before it."""
        batch.relations_before = self.relations.session()
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
        """Have each definition followed anew, when rows under it come."""
        self._followed.clear()

    def forget_plan(self, batch: Batch) -> None:
        """Forget what a batch has changed of the targets' columns: it will not be applied."""
        self.unfollow()
        if self._tracker is not None:
            self._tracker.restore(batch.columns_before)

    def open_again(self) -> None:
        """Read the targets' columns again: an undo has taken the tables back to the origin's LSN."""
        self.unfollow()
        if self._tracker is not None:
            self._tracker.reload()

    def follow(self, relation: Relation, subscribed: Subscribed, collector: ChangeCollector) -> Definition:
        """Have a target follow a definition; its collector hears once what changes in the target.

        Raises:
            TargetError: The target lacks a column, and cannot follow.
        """
        target = subscribed.target
        found = self._followed.get(relation.relation_id)
        if found is None:
            types = self._types([(column.type_oid, column.typmod) for column in relation.columns])
            named = zip(relation.columns, types, strict=True)
            columns = tuple(TargetColumn(column.name, resolved) for column, resolved in named)
            published = subscribed.columns
            if self._tracker is None:
                replicated = [column for column in columns if published is None or column.name in published]
                checked = {column.name: column for column in target.check(replicated)}
                columns = tuple(checked.get(column.name, column) for column in columns)
            else:
                key = {relation.columns[k].name for k in key_of(relation, subscribed)}
                plan = self._tracker.plan(relation, types, target, wanted=published, key=key)
                columns = plan.columns
                collector.alter(plan.alterations)
            found = self._followed[relation.relation_id] = Definition(columns, types)
        collector.subscribed = self.opened(subscribed)
        return found

    def opened(self, subscribed: Subscribed) -> Subscribed:
        """The subscribed table, its target with the columns that it will have then."""
        if self._tracker is None:
            return subscribed
        return replace(subscribed, target=self._tracker.with_planned_schema(subscribed.target))

"""Routes the changes of a relation by publications that are re-applied to the stream, from a definitions file."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from pgbridge.bridge.batch.routes import RenamedTable, Routes, Subscribed, name_of
from pgbridge.bridge.batch.row_filters import FilterCompiler, RowFilters, ServerFilters
from pgbridge.bridge.publication.replica_identity import Refusal, missing_partition_key, partition_refusal, refusals_of
from pgbridge.bridge.publication.routing_then import Parents, PartitionFacts, RoutingThen
from pgbridge.bridge.publication.tables import CatalogRelation, with_replica_identity
from pgbridge.bridge.runtime.errors import NeedsResync, PublicationError, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pgbridge.bridge.publication.published_table import Entry
    from pgbridge.bridge.publication.routing import Routing
    from pgbridge.protocol.codec.messages import Relation
    from pgbridge.protocol.lsn import Lsn


class ReappliedRoutes(Routes):
    """Gives each relation the actions, root, row filters and column list of the re-applied publications.

    Args:
        refresh: Applies the publications to the catalog as it is now.
        facts: Who knows what of partitions.

    Raises:
        ConfigError: A row filter cannot be computed exactly as PostgreSQL computes it.
    """

    may_filter: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - as `Routes`, and the publications
        self,
        subscribed: Mapping[tuple[str, str], Subscribed],
        routing: Routing,
        filter_compiler: FilterCompiler,
        refresh: Callable[[], Routing],
        *,
        facts: PartitionFacts | None = None,
        subscription: str = "",
        changed: Callable[[], None] = lambda: None,
        others: Callable[[str, str], Subscribed] | None = None,
        waiting: Mapping[int, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        super().__init__(subscribed, subscription=subscription, changed=changed, others=others, waiting=waiting)
        self._filter_compiler = filter_compiler
        self._refresh = refresh
        self._then = RoutingThen(routing, facts or PartitionFacts())
        self._forget()
        for entry in routing.targets.values():
            self._filter_compiler.compile(entry)

    def _forget(self) -> None:
        self._routed: dict[int, dict[Parents, tuple[Relation, Subscribed | None]]] = defaultdict(dict)
        self._renamed: dict[int, dict[Parents, tuple[Relation, RenamedTable | None]]] = defaultdict(dict)

    @property
    def _routing(self) -> Routing:
        return self._then.routing

    def begin(self) -> None:
        """As `Routes.begin`."""
        self._then.begin()

    def announced(self, relation: Relation, xid: int, *, again: Callable[[], bool]) -> None:
        """As `Routes.announced`."""
        self._routed.pop(relation.relation_id, None)
        self._renamed.pop(relation.relation_id, None)
        self._then.announced(relation.relation_id, xid, again=again)

    def at(self, relids: Collection[int], xid: int, lsn: Lsn, *, truncated: bool = False) -> None:
        """As `Routes.at`."""
        self._then.at(relids, xid, lsn, truncated=truncated)

    def route(self, relation: Relation) -> Subscribed | None:
        """The subscribed table that a relation's changes go to, as it is published; None for no table.

        Raises:
            NeedsResync: The publications cannot be applied to the table as the stream has it.
            TargetError: They contradict each other.
        """
        definition, table = self._routed[relation.relation_id].get(self._then.parents, (None, None))
        if definition != relation:
            try:
                table = self._route(relation)
            except PublicationError as error:
                raise TargetError(str(error)) from error
            self._routed[relation.relation_id][self._then.parents] = relation, table
        return table

    def renamed_table(self, relation: Relation) -> RenamedTable | None:
        """As `Routes.renamed_table`; for a root, which the stream does not announce, by its name in the catalog."""
        definition, renamed = self._renamed[relation.relation_id].get(self._then.parents, (None, None))
        if definition != relation:
            renamed = self._find_renamed(relation)  # may read the catalog again
            self._renamed[relation.relation_id][self._then.parents] = relation, renamed
        return renamed

    def _find_renamed(self, relation: Relation) -> RenamedTable | None:
        known = self._in_catalog(relation)
        try:
            entry = self._routing.route(known)
        except PublicationError:  # `route` will report it
            return None
        above = (known, *self._routing.relations.ancestors(known)) if entry is None else (entry.target,)
        names = (
            (table.relid, name_of(relation) if table.relid == relation.relation_id else (table.namespace, table.name))
            for table in above
        )
        return next((renamed for name in names if (renamed := self._renamed_from(*name)) is not None), None)

    def truncated(self, relations: Sequence[Relation]) -> list[Subscribed]:
        """The subscribed tables that one TRUNCATE message empties, as they are published."""
        known = [self._in_catalog(relation) for relation in relations]  # may read the catalog again
        announced = {name_of(relation): relation for relation in relations}
        emptied: list[Subscribed] = []
        for entry in (self._routing.entry(target) for target in self._routing.truncated(known)):
            if entry is None:
                continue
            own = announced.get((entry.target.namespace, entry.target.name))
            table = self.route(own) if own is not None else self._as_published(entry)
            if table is not None:
                emptied.append(table)
        return emptied

    def identity_refusals(
        self, relation: Relation, definition_of: Callable[[int], Relation | None]
    ) -> Sequence[Refusal]:
        """The UPDATEs and DELETEs that the server would refuse if it had the publications itself.

        If the stream publishes via the root, it does not say from which partition a change comes: then every partition
        counts that it has announced.
        """
        known = self._in_catalog(relation)
        refusals: list[Refusal] = []
        entry = self._routing.route(known)
        if entry is not None and relation.replica_identity != "f":
            of_partition = partition_refusal(replace(entry, source=known), _identity(relation), self._routing.relations)
            refusals += [of_partition] if of_partition is not None else []
        for leaf in self._routing.relations.leaves(known) or (known,):
            message = relation if leaf is known else definition_of(leaf.relid)
            if message is not None:
                refusals += refusals_of(
                    self._routing, with_replica_identity(leaf, message), self._filter_compiler.columns_of
                )
        return refusals

    def reread_catalog(self) -> None:
        """Apply the publications to the catalog again: partitions or a replica identity may have changed."""
        super().reread_catalog()
        self._then.use(self._refresh())
        self._forget()

    def _in_catalog(self, relation: Relation) -> CatalogRelation:
        """The table in the catalog, which is read again if the table is new, was dropped, or is another's partition."""
        for again in (False, True):
            if again:
                self.reread_catalog()
            known = self._then.find(relation)
            if known is not None and (again or not self._then.is_outdated(known)):
                return self._as_named_then(known, relation)
        self._forget()
        return self._then.include_dropped(relation)

    def _as_named_then(self, known: CatalogRelation, relation: Relation) -> CatalogRelation:
        """Give a followed table that has been renamed since the name that it had, which the definitions have."""
        name = name_of(relation)
        if (known.namespace, known.name) == name or self.names.get(known.relid) != name:
            return known
        self._forget()
        return self._then.include_renamed(known.relid, *name)

    def _route(self, relation: Relation) -> Subscribed | None:
        known = self._in_catalog(relation)  # may read the catalog again
        self._then.doubt(known, relation)
        entry = self._routing.route(known)
        if entry is None:
            return None
        table = self._as_published(entry)
        if table is None:
            return None
        filters = table.filters or table.server_filters
        filter_columns = filters.columns if filters else frozenset()
        try:
            columns = _published_columns(entry, [column.name for column in relation.columns], filter_columns)
        except PublicationError as error:
            # what the definitions publish now was not in the stream then
            raise NeedsResync(error.message, (table.target.namespace, table.target.name), hint=error.hint) from error
        missing = missing_partition_key(replace(entry, source=known), _identity(relation), self._routing.relations)
        return replace(table, columns=columns, within_partition=bool(missing))

    def _as_published(self, entry: Entry) -> Subscribed | None:
        """An entry's target as the entry publishes it; None if it is not subscribed, or its copy is not complete."""
        target = entry.target
        # by its oid: if the stream lags, the catalog may already have another name
        subscribed = self.table(*self.names.get(target.relid, (target.namespace, target.name)))
        if subscribed is None:
            return None
        filters = self._filter_compiler.compile(entry)
        return replace(
            subscribed,
            actions=frozenset(entry.actions),
            columns=frozenset(entry.column_names),
            filters=filters if isinstance(filters, RowFilters) else None,
            server_filters=filters if isinstance(filters, ServerFilters) else None,
        )


def _identity(relation: Relation) -> frozenset[str]:
    return frozenset(column.name for column in relation.columns if column.is_key)


def _published_columns(entry: Entry, names: Sequence[str], filter_columns: frozenset[str]) -> frozenset[str]:
    """The published columns among the columns in the stream (`names`); the catalog may already have others.

    Raises:
        PublicationError: The stream lacks a column of the column list, or one that a row filter looks at.
    """
    if gone := sorted(filter_columns.difference(names)):
        raise PublicationError(
            f'the stream does not carry column "{gone[0]}" of table "{entry.source.qualified_name}", '
            "which a row filter looks at",
        )
    if entry.listed:
        entry.projection(names)
        return frozenset(entry.column_names)
    left_out = {column.name for column in entry.target.columns}.difference(entry.column_names)
    return frozenset(names).difference(left_out)

"""To which target a relation of the stream goes, and as what: the server's publications, or re-applied definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bridge import remedies
from bridge.apply.batch.row_filters import RowFilters
from bridge.apply.batch.server_filters import ServerFilters
from bridge.errors import PublicationError, TargetError
from bridge.publication.replica_identity import refusals_of
from bridge.publication.tables import from_relation_message, with_replica_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bridge.apply.batch.row_filters import FilterMaker
    from bridge.apply.batch.subscribed import Subscribed
    from bridge.publication.entry import Entry
    from bridge.publication.replica_identity import Refusal
    from bridge.publication.routing import Routing
    from bridge.publication.tables import CatalogRelation
    from protocol.lsn import Lsn
    from protocol.messages import Relation


class RenamedTable(NamedTuple):
    """A table of ours that has another name in the stream.

    Attributes:
        lsn: Its changes count from here on (`srsublsn`); under another name it may have been before.
        error: That they cannot be applied, and what to do.
    """

    lsn: Lsn
    error: TargetError


class Routes:
    """What the server publishes is taken as it comes: each relation goes to the target of its name.

    Args:
        subscribed: The tables that follow the stream, by (namespace, name).
        cut_identities: Looks again at which tables have a replica identity that is not wholly published
            (`Subscribed.cut_identity`).
        subscription: For the command that is the remedy.
        replaced: Called with a table that is another one of the same name from now on, as after DROP and CREATE, and
            with the command that copies it afresh.

    Attributes:
        names: What the tables are called here, by the relids under which the stream has them.
    """

    def __init__(
        self,
        subscribed: Mapping[tuple[str, str], Subscribed],
        cut_identities: Callable[[], Mapping[tuple[str, str], frozenset[str]]] | None = None,
        *,
        subscription: str = "",
        replaced: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self.subscribed = subscribed
        self._cut_identities = cut_identities
        self._keys: dict[int, frozenset[str]] = {}
        self._subscription = subscription
        self._replaced = replaced
        self.names = {table.relid: name for name, table in subscribed.items() if table.relid is not None}

    def route(self, relation: Relation) -> Subscribed | None:
        """Where a relation's changes go; None when they go nowhere.

        Raises:
            TargetError: They cannot be taken rightly.
        """
        if self._cut_identities is not None and self._key_shrank(relation):
            cut = self._cut_identities()
            self.subscribed = {
                name: replace(found, cut_identity=cut.get(name, frozenset())) for name, found in self.subscribed.items()
            }
        return self.subscribed.get(name_of(relation))

    def _key_shrank(self, relation: Relation) -> bool:
        """The key has fewer columns than it had: it is another one, or they are not published any more."""
        key = frozenset(column.name for column in relation.columns if column.is_key)
        before = self._keys.get(relation.relation_id, key)
        self._keys[relation.relation_id] = key
        return key < before

    def renamed_table(self, relation: Relation) -> RenamedTable | None:
        """Whether a relation is a table of ours that has another name now: a native subscriber stops there."""
        return self._renamed_from(relation.relation_id, name_of(relation))

    def _renamed_from(self, relid: int, name: tuple[str, str]) -> RenamedTable | None:
        ours = self.names.get(relid, name)
        if ours == name or ours not in self.subscribed:
            return None
        old, new = ".".join(ours), ".".join(name)
        if name in self.subscribed:
            message = f'table "{old}" has the name of "{new}" now, which is another table of the subscription'
            hint = f"copy both afresh: {remedies.resync(self._subscription, old, new)}"
        else:
            message = f'logical replication target relation "{new}" does not exist'
            hint = (
                f'table "{old}" was renamed. To go on with it under its new name, copied afresh, run: '
                f"{remedies.refresh(self._subscription)}; or give it its old name back, and run: "
                f"{remedies.resync(self._subscription, old)}"
            )
        return RenamedTable(self.subscribed[ours].lsn, TargetError(message, hint=hint))

    def remember_relid(self, relation: Relation) -> None:
        """A relation's changes go where `route` has said: take note of its relid, which may be another than before."""
        name = name_of(relation)
        if relation.relation_id in self.names or name not in self.subscribed:
            return
        before = [relid for relid, ours in self.names.items() if ours == name]
        for relid in before:
            del self.names[relid]
        self.names[relation.relation_id] = name
        if before:
            self._replaced(".".join(name), remedies.resync(self._subscription, ".".join(name)))

    def truncated(self, relations: Sequence[Relation]) -> list[Subscribed]:
        """Which targets one TRUNCATE message empties, as far as that is published."""
        return [found for relation in relations if (found := self.route(relation)) is not None]

    def identity_refusals(
        self, relation: Relation, definition_of: Callable[[int], Relation | None]
    ) -> Sequence[Refusal]:
        """UPDATEs and DELETEs of a relation that cannot be taken rightly, by the replica identity they came with.

        Args:
            relation: As the stream has it.
            definition_of: Gives the latest definition that the stream has of an oid.
        """
        del relation, definition_of
        return ()

    def reread_catalog(self) -> None:
        """The server has sent a definition that it had sent before: something about the table has changed."""


class ReappliedRoutes(Routes):
    """Definitions re-applied to the stream: action, root, row filter and column list of each relation.

    Args:
        subscribed: The targets that follow the stream, by (namespace, name).
        routing: The definitions on the server's tables.
        filters: Makes the row filters of what the definitions publish.
        refresh: Gives the routing on the tables as they are now.
        subscription: As in `Routes`.
        replaced: As in `Routes`.

    Raises:
        ConfigError: A row filter cannot be computed exactly as PostgreSQL computes it.
    """

    def __init__(
        self,
        subscribed: Mapping[tuple[str, str], Subscribed],
        routing: Routing,
        filters: FilterMaker,
        refresh: Callable[[], Routing],
        *,
        subscription: str = "",
        replaced: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        super().__init__(subscribed, subscription=subscription, replaced=replaced)
        self._filters = filters
        self._refresh = refresh
        self._use(routing)
        for entry in routing.targets.values():
            self._filters.of(entry)

    def _use(self, routing: Routing) -> None:
        self._routing = routing
        self._routed: dict[int, tuple[Relation, Subscribed | None]] = {}
        self._renamed: dict[int, tuple[Relation, RenamedTable | None]] = {}

    def route(self, relation: Relation) -> Subscribed | None:
        """Where a relation's changes go, and as what; None when they go nowhere.

        Raises:
            TargetError: The definitions do not go with how the stream has the table.
        """
        by, found = self._routed.get(relation.relation_id, (None, None))
        if by != relation:
            try:
                found = self._route(relation)
            except PublicationError as error:
                raise TargetError(str(error)) from error
            self._routed[relation.relation_id] = relation, found
        return found

    def renamed_table(self, relation: Relation) -> RenamedTable | None:
        """As `Routes.renamed_table`; of a root, whose own name the stream does not have, by the catalog's."""
        by, renamed = self._renamed.get(relation.relation_id, (None, None))
        if by != relation:
            renamed = self._find_renamed(relation)  # may look at the catalog again
            self._renamed[relation.relation_id] = relation, renamed
        return renamed

    def _find_renamed(self, relation: Relation) -> RenamedTable | None:
        known = self._known(relation)
        try:
            entry = self._routing.route(known)
        except PublicationError:  # which `route` is to tell of
            return None
        above = (known, *self._routing.relations.ancestors(known)) if entry is None else (entry.target,)
        names = (
            (table.relid, name_of(relation) if table.relid == relation.relation_id else (table.namespace, table.name))
            for table in above
        )
        return next((found for name in names if (found := self._renamed_from(*name)) is not None), None)

    def truncated(self, relations: Sequence[Relation]) -> list[Subscribed]:
        """Which targets one TRUNCATE message empties."""
        known = [self._known(relation) for relation in relations]  # may look at the catalog again
        announced = {name_of(relation): relation for relation in relations}
        emptied: list[Subscribed] = []
        for entry in (self._routing.entry(target) for target in self._routing.truncated(known)):
            if entry is None:
                continue
            own = announced.get((entry.target.namespace, entry.target.name))
            found = self.route(own) if own is not None else self._as_published(entry)
            if found is not None:
                emptied.append(found)
        return emptied

    def identity_refusals(
        self, relation: Relation, definition_of: Callable[[int], Relation | None]
    ) -> Sequence[Refusal]:
        """What the server would refuse, were the definitions its own publications.

        A stream that has partitions under their root's name does not tell of which of them a change is: each that
        it has announced counts.
        """
        known = self._known(relation)
        found: list[Refusal] = []
        for leaf in self._routing.relations.leaves(known) or (known,):
            message = relation if leaf is known else definition_of(leaf.relid)
            if message is not None:
                found += refusals_of(self._routing, with_replica_identity(leaf, message), self._filters.columns_of)
        return found

    def reread_catalog(self) -> None:
        """Look at the catalog again: a partition may have come or gone, a replica identity may be another."""
        self._use(self._refresh())

    def _known(self, relation: Relation) -> CatalogRelation:
        """The table as the catalog has it; one that is newer than what is known, or was dropped, is looked for."""
        for again in (False, True):
            if again:
                self.reread_catalog()
            found = self._routing.find(relation.relation_id, *name_of(relation))
            if found is not None:
                return found
        gone = from_relation_message(relation)
        self._use(self._routing.including(gone))
        return gone

    def _route(self, relation: Relation) -> Subscribed | None:
        known = self._known(relation)  # may look at the catalog again
        entry = self._routing.route(known)
        if entry is None:
            return None
        found = self._as_published(entry)
        if found is None:
            return None
        filters = found.filters or found.server_filters
        looked_at = filters.columns if filters else frozenset()
        columns = _published_columns(entry, [column.name for column in relation.columns], looked_at)
        return replace(found, columns=columns)

    def _as_published(self, entry: Entry) -> Subscribed | None:
        """An entry's target as the entry publishes it; None where it does not follow the stream."""
        target = entry.target
        # by its oid, for a stream that lags: the catalog may have another name by now
        subscribed = self.subscribed.get(self.names.get(target.relid, (target.namespace, target.name)))
        if subscribed is None:
            return None
        filters = self._filters.of(entry)
        return replace(
            subscribed,
            actions=frozenset(entry.actions),
            columns=frozenset(entry.column_names),
            filters=filters if isinstance(filters, RowFilters) else None,
            server_filters=filters if isinstance(filters, ServerFilters) else None,
        )


def _published_columns(entry: Entry, names: Sequence[str], looked_at: frozenset[str]) -> frozenset[str]:
    """Names of the published columns of a relation as the stream has it, where its catalog may have others by now.

    Raises:
        PublicationError: A column of the column list is not there.
        TargetError: One that the row filters look at is not there.
    """
    if gone := sorted(looked_at.difference(names)):
        raise TargetError(
            f'the stream does not carry column "{gone[0]}" of table "{entry.source.qualified_name}", '
            "which a row filter looks at",
        )
    if entry.listed:
        entry.projection(names)  # raises: one is not there
        return frozenset(entry.column_names)
    left_out = {column.name for column in entry.target.columns}.difference(entry.column_names)
    return frozenset(names).difference(left_out)


def name_of(relation: Relation) -> tuple[str, str]:
    """(namespace, name); the namespace is empty in the message for pg_catalog."""
    return relation.namespace or "pg_catalog", relation.name

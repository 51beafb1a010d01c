"""What is published, as which table, and how: PostgreSQL's decisions per relation, from publications and tables.

The counterpart of pgoutput's RelationSyncEntry, worked out ahead for every table: action published, then root, then
row filter, then column list. Pure: a change of the catalog makes a new `Routing`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from bridge.errors import PublicationError
from bridge.publication.membership import resolve_all
from bridge.publication.publication import DML
from bridge.publication.published_table import PublishedColumn, PublishedTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bridge.publication.membership import Membership
    from bridge.publication.publication import Action, Publication
    from bridge.publication.tables import CatalogColumn, CatalogRelation, Relations


@dataclass(frozen=True, slots=True)
class Entry:
    """How the changes of one table are published.

    Attributes:
        source: The table whose rows change.
        target: The table they are published as: itself, or a partitioned table above it.
        publications: Those that publish it as this target, by whose filters and lists it goes.
        actions: What any publication publishes of the source. May hold an action that none of `publications` has;
            pgoutput publishes that one unfiltered.
        filters: For each DML action that is published, expressions over the target's columns, any of which lets a
            row pass; empty when every row passes.
        copy_filters: The same for the initial copy, which asks for no action.
        columns: The published columns of the target, in its order.
        listed: By a column list: a column that comes later is not among them.
    """

    source: CatalogRelation
    target: CatalogRelation
    publications: tuple[str, ...]
    actions: frozenset[Action]
    filters: Mapping[Action, tuple[str, ...]]
    copy_filters: tuple[str, ...]
    columns: tuple[CatalogColumn, ...]
    listed: bool = True

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the published columns, in the target's order."""
        return tuple(column.name for column in self.columns)

    @property
    def relabelled(self) -> bool:
        """Its changes are another table's."""
        return self.source.relid != self.target.relid

    def projection(self, names: Sequence[str]) -> tuple[int, ...]:
        """Where the published columns are among the columns of a Relation message, whatever their order there.

        Raises:
            PublicationError: One is not there.
        """
        positions = {name: position for position, name in enumerate(names)}
        if missing := [name for name in self.column_names if name not in positions]:
            listed = ", ".join(f'"{name}"' for name in missing)
            raise PublicationError(
                f'the stream does not carry column {listed} of table "{self.source.qualified_name}", '
                f'which publication "{self.publications[0]}" publishes',
                hint="publish the whole table on the server, or leave the column out of the definitions",
            )
        return tuple(positions[name] for name in self.column_names)

    def same_rules(self, other: Entry) -> bool:
        """Whether a change may be taken for one of the other's source."""
        return (self.target.relid, self.actions, self.filters) == (other.target.relid, other.actions, other.filters)


class Routing:
    """All decisions for some publications on some tables.

    Args:
        publications: Of a file, or the server's own.
        relations: The server's tables.
        missing_ok: A table of a publication that is not there is passed over.

    Raises:
        PublicationError: The publications do not fit the tables, or not each other.
    """

    def __init__(self, publications: Iterable[Publication], relations: Relations, *, missing_ok: bool = False) -> None:
        self.relations = relations
        self.memberships = resolve_all(publications, relations, missing_ok=missing_ok)
        self._entries: dict[int, Entry] = {}
        for relation in relations.publishable:
            entry = self._entry(relation)
            if entry is not None:
                self._entries[relation.relid] = entry

    # --- by the table whose rows change -------------------------------------------------------------------------------

    def entry(self, relation: CatalogRelation) -> Entry | None:
        """How a table's changes are published; None when they are not."""
        return self._entries.get(relation.relid)

    def find(self, relation_id: int, namespace: str, name: str) -> CatalogRelation | None:
        """The table of a Relation message; None for one that is newer than what is known here.

        By its oid, which a rename between the change and now leaves alone; else by name.
        """
        return self.relations.by_relid.get(relation_id) or self.relations.by_name.get((namespace, name))

    def route(self, relation: CatalogRelation) -> Entry | None:
        """How changes are to be taken that the stream has under a table's name.

        As `entry`, but for a partitioned table: the stream, from a publication with publish_via_partition_root, has
        the changes of all its partitions under its name.

        Raises:
            PublicationError: These publications treat its partitions differently, or as tables of their own.
        """
        own = self.entry(relation)
        leaves = self.relations.leaves(relation)
        if relation.relkind != "p" or not leaves:
            return own
        entries = [self.entry(leaf) for leaf in leaves]
        first = entries[0]
        if first is None and not any(entries):
            return None
        above = {relation.relid, *(ancestor.relid for ancestor in self.relations.ancestors(relation))}
        for leaf, entry in zip(leaves, entries, strict=True):
            if first is None or entry is None or entry.target.relid not in above or not entry.same_rules(first):
                raise PublicationError(
                    f'the stream has the changes of partition "{leaf.qualified_name}" under the name of its root '
                    f'"{relation.qualified_name}", and these publications do not publish all its partitions as one',
                    hint="subscribe to a publication on the server with publish_via_partition_root = false",
                )
        return first and replace(first, source=relation)

    def truncated(self, relations: Sequence[CatalogRelation]) -> list[CatalogRelation]:
        """Which targets one TRUNCATE message empties.

        A table published as itself is emptied where `truncate` is published; one below a root that is published in
        its place is not, as in pgoutput. A stream of partitions does not tell TRUNCATE of their root from TRUNCATE
        of them all in one statement: both are taken for the root's. Nor does it tell of which partitions the root had
        then: one that came since, and that the catalog has now, makes its TRUNCATE look like that of some partitions.
        """
        named = {relation.relid for relation in relations}
        emptied = named | {leaf.relid for relation in relations for leaf in self.relations.leaves(relation)}
        found: list[CatalogRelation] = []
        for relation in relations:
            entry = self.entry(relation)
            if entry is None or entry.target in found:
                continue
            leaves = self.relations.leaves(entry.target)
            whole = entry.target.relid in named or (bool(leaves) and all(leaf.relid in emptied for leaf in leaves))
            of_target = self.entry(entry.target)
            if whole and of_target is not None and "truncate" in of_target.actions:
                found.append(entry.target)
        return found

    def including(self, relation: CatalogRelation) -> Routing:
        """The same with a table that the catalog does not have any more (`tables.from_relation_message`)."""
        publications = [member.publication for member in self.memberships]
        return Routing(publications, self.relations.including(relation), missing_ok=True)

    # --- by target ----------------------------------------------------------------------------------------------------

    @cached_property
    def targets(self) -> Mapping[tuple[str, str], Entry]:
        """What subscribers get, by (namespace, name): each target with its own entry.

        As `pg_get_publication_tables` of all publications together: no table below one that is published in its
        place.
        """
        published = {relid: table for member in self.memberships for relid, table in self._published(member).items()}
        found = {}
        for relid in published:
            entry = self._entries.get(relid)
            if entry is not None and not entry.relabelled:
                found[entry.target.namespace, entry.target.name] = entry
        return dict(sorted(found.items()))

    def sources(self, target: CatalogRelation) -> tuple[CatalogRelation, ...]:
        """The tables whose changes come to a target, without the target itself when it is partitioned."""
        entries = [self.entry(leaf) for leaf in self.relations.leaves(target)]
        return tuple(entry.source for entry in entries if entry is not None and entry.target.relid == target.relid)

    def tables(self) -> list[PublishedTable]:
        """The targets as `Publisher.tables` gives them: what the initial copy needs."""
        return [_published_table(entry) for entry in self.targets.values()]

    def _published(self, member: Membership) -> Mapping[int, CatalogRelation]:
        return member.published(self.relations)

    def _entry(self, relation: CatalogRelation) -> Entry | None:
        """`get_rel_sync_entry`."""
        target, level = relation, 0
        actions: set[Action] = set()
        by: list[Membership] = []
        for member in self.memberships:
            published_as = member.publish_as(relation, self.relations)
            if published_as is None or (relation.relkind == "p" and not member.publication.via_root):
                continue
            actions |= member.publication.actions
            if published_as[1] < level:
                continue
            if published_as[1] > level:
                by.clear()
            target, level = published_as
            by.append(member)
        if not by:
            return None
        return Entry(
            relation,
            target,
            tuple(member.publication.name for member in by),
            frozenset(actions),
            {action: _filters(by, target, action) for action in DML if action in actions},
            _filters(by, target, None),
            _columns(by, target),
            listed=any(member.column_list(target) is not None for member in by),
        )


def _filters(members: Sequence[Membership], target: CatalogRelation, action: Action | None) -> tuple[str, ...]:
    """`pgoutput_row_filter_init` for one action, or for the copy (`fetch_remote_table_info`)."""
    filters = [
        member.row_filter(target) for member in members if action is None or action in member.publication.actions
    ]
    found = tuple(dict.fromkeys(text for text in filters if text is not None))
    return () if None in filters else found


def _columns(members: Sequence[Membership], target: CatalogRelation) -> tuple[CatalogColumn, ...]:
    """`check_and_init_gencol` and `pgoutput_column_list_init`."""
    unlisted = [member.publication for member in members if member.column_list(target) is None]
    generated = {publication.generated_columns for publication in unlisted}
    if len(generated) > 1 and any(column.generated for column in target.columns):
        raise PublicationError(
            f'cannot use different values of publish_generated_columns for table "{target.qualified_name}" '
            "in different publications"
        )
    lists = [member.columns(target) for member in members]
    if any(names != lists[0] for names in lists):
        raise PublicationError(
            f'cannot use different column lists for table "{target.qualified_name}" in different publications',
            hint="give the table the same column list in every publication of the subscription",
        )
    return tuple(column for column in target.columns if column.name in lists[0])


def _published_table(entry: Entry) -> PublishedTable:
    target = entry.target
    left_out = (column for column in target.columns if column not in entry.columns)
    return PublishedTable(
        target.relid,
        target.namespace,
        target.name,
        target.relkind,
        target.replica_identity,
        tuple(map(_published_column, entry.columns)),
        entry.copy_filters,
        tuple(_published_column(c) for c in left_out if c.in_primary_key or c.in_replica_identity_index),
    )


def _published_column(column: CatalogColumn) -> PublishedColumn:
    return PublishedColumn(
        column.name, column.type_oid, column.typmod, column.in_primary_key, column.in_replica_identity_index
    )

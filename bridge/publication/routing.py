"""Decides, as PostgreSQL does, under which name and by which rules each table is published.

Worked out ahead for every table, in pgoutput's order (`get_rel_sync_entry`): action published, then root, then row
filter, then column list. Pure: when the catalog changes, a new `Routing` is made.

publish_via_partition_root says as which table a partition's changes are published. And the other way round: how changes
are published that the stream has under the name of a partitioned table, because the server's publications say so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from pgbridge.bridge.publication.membership import Membership, resolve_all
from pgbridge.bridge.publication.publication import DML, Action, Publication
from pgbridge.bridge.publication.published_table import Entry, PublishedTable
from pgbridge.bridge.runtime.errors import PublicationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pgbridge.bridge.publication.tables import CatalogColumn, CatalogRelation, Relations


def publish_as(
    member: Membership, relation: CatalogRelation, relations: Relations
) -> tuple[CatalogRelation, int] | None:
    """Return the table as which a publication publishes a table's changes: the topmost ancestor that it has, or itself.

    Returns:
        The table, and how many levels it is above `relation`; None if the publication does not publish the changes.
    """
    ancestors = relations.ancestors(relation)
    if member.publication.all_tables:
        if (ancestors[-1] if ancestors else relation).relid in member.excluded:
            return None  # EXCEPT can name a root, but none of its partitions
        if member.publication.via_root and ancestors:
            return ancestors[-1], len(ancestors)
        return relation, 0
    levels = [level for level, ancestor in enumerate(ancestors, 1) if member.has(ancestor)]
    if levels and member.publication.via_root:
        return ancestors[levels[-1] - 1], levels[-1]
    return (relation, 0) if levels or member.has(relation) else None


def published_as_themselves(member: Membership, relations: Relations) -> dict[int, CatalogRelation]:
    """The tables that subscribers of a publication get, by relid: `pg_get_publication_tables` of its name alone."""
    published: dict[int, CatalogRelation] = {}
    for relation in relations.publishable:
        published_as = publish_as(member, relation, relations)
        if published_as is None or (relation.relkind == "p" and not member.publication.via_root):
            continue
        if published_as[1] == 0:
            published[relation.relid] = relation
    return published


def entry_of_root(
    root: CatalogRelation, entries: Sequence[tuple[CatalogRelation, Entry | None]], relations: Relations
) -> Entry | None:
    """How changes are published that the stream has under a partitioned table's name.

    Args:
        root: The partitioned table.
        entries: Its leaves, each with its entry.
        relations: The server's tables.

    Returns:
        The leaves' common entry with `root` as its source; None if no leaf is published.

    Raises:
        PublicationError: The publications treat the leaves differently, or publish them as tables of their own.
    """
    first = entries[0][1]
    if first is None and not any(entry for _, entry in entries):
        return None
    above = {root.relid, *(ancestor.relid for ancestor in relations.ancestors(root))}
    for leaf, entry in entries:
        if first is None or entry is None or entry.target.relid not in above or not entry.same_rules(first):
            raise PublicationError(
                f'the stream has the changes of partition "{leaf.qualified_name}" under the name of its root '
                f'"{root.qualified_name}", and these publications do not publish all its partitions as one',
                hint="subscribe to a publication on the server with publish_via_partition_root = false",
            )
    return first and replace(first, source=root)


# --- The columns of a table that several publications publish (`check_and_init_gencol`, `pgoutput_column_list_init`).
#


def published_columns(members: Sequence[Membership], target: CatalogRelation) -> tuple[CatalogColumn, ...]:
    """The published columns, in the table's order.

    Raises:
        PublicationError: The publications publish different columns.
    """
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


# --- The row filters of a table that several publications publish, per action (`pgoutput_row_filter_init`) ------------
# A row passes if one of the filters passes it. A publication without a filter, or of all tables, or of the table's
# schema, passes every row, whatever the others say.


def action_filters(
    members: Sequence[Membership], target: CatalogRelation, actions: Collection[Action]
) -> dict[Action, tuple[str, ...]]:
    """The row filters for each of these actions that is DML; none where every row passes."""
    return {
        action: _combined([member for member in members if action in member.publication.actions], target)
        for action in DML
        if action in actions
    }


def copy_filters(members: Sequence[Membership], target: CatalogRelation) -> tuple[str, ...]:
    """The row filters of the initial copy, which disregards `publish` (`fetch_remote_table_info`)."""
    return _combined(members, target)


def _combined(members: Sequence[Membership], target: CatalogRelation) -> tuple[str, ...]:
    filters = [member.row_filter(target) for member in members]
    texts = tuple(dict.fromkeys(text for text in filters if text is not None))
    return () if None in filters else texts


# --- As which table and how each table is published -------------------------------------------------------------------


class Routing:
    """All decisions for some publications on some tables.

    Args:
        publications: Those of a file, or the server's own.
        relations: The server's tables.
        missing_ok: Pass over a publication's tables that do not exist.

    Raises:
        PublicationError: The publications contradict the tables or each other.
    """

    def __init__(
        self,
        publications: Iterable[Publication],
        relations: Relations,
        *,
        missing_ok: bool = False,
        followed: Collection[tuple[str, str]] = (),
    ) -> None:
        self.relations = relations
        self.memberships = resolve_all(publications, relations, missing_ok=missing_ok, followed=followed)
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
        """The table of a Relation message; None if it is newer than these relations.

        Found by its OID, which a rename since the change does not alter; else by its name.
        """
        return self.relations.by_relid.get(relation_id) or self.relations.by_name.get((namespace, name))

    def route(self, relation: CatalogRelation) -> Entry | None:
        """How changes are published that the stream has under a table's name.

        As `entry`, but under the name of a partitioned table the stream has the changes of all its partitions, from a
        publication with publish_via_partition_root.

        Raises:
            PublicationError: These publications treat its partitions differently, or publish them as tables of their
                own.
        """
        leaves = self.relations.leaves(relation)
        if relation.relkind != "p" or not leaves:
            return self.entry(relation)
        return entry_of_root(relation, [(leaf, self.entry(leaf)) for leaf in leaves], self.relations)

    def truncated(self, relations: Sequence[CatalogRelation]) -> list[CatalogRelation]:
        """The targets that one TRUNCATE message empties.

        A table published as itself is emptied if `truncate` is published; a partition published as its root is not, as
        in pgoutput. A stream of partitions does not distinguish TRUNCATE of their root from TRUNCATE of all partitions
        in one statement: both empty the root.
        """
        named = {relation.relid for relation in relations}
        emptied = named | {leaf.relid for relation in relations for leaf in self.relations.leaves(relation)}
        truncated_relations: list[CatalogRelation] = []
        for relation in relations:
            entry = self.entry(relation)
            if entry is None or entry.target in truncated_relations:
                continue
            leaves = self.relations.leaves(entry.target)
            whole = entry.target.relid in named or (bool(leaves) and all(leaf.relid in emptied for leaf in leaves))
            of_target = self.entry(entry.target)
            if whole and of_target is not None and "truncate" in of_target.actions:
                truncated_relations.append(entry.target)
        return truncated_relations

    def including(self, relation: CatalogRelation) -> Routing:
        """The same with a table that was dropped (`tables.from_relation_message`)."""
        publications = [member.publication for member in self.memberships]
        return Routing(publications, self.relations.including(relation), missing_ok=True)

    def with_parents(self, parents: Mapping[int, int | None]) -> Routing:
        """The same as of when some tables had other parents (`routing_then.parents_then`)."""
        publications = [member.publication for member in self.memberships]
        return Routing(publications, self.relations.with_parents(parents), missing_ok=True)

    # --- by target ----------------------------------------------------------------------------------------------------

    @cached_property
    def targets(self) -> Mapping[tuple[str, str], Entry]:
        """The tables that subscribers get, by (namespace, name): each target with its own entry.

        As `pg_get_publication_tables` of all publications together: without the partitions of a table that is
        published in their place.
        """
        published = {relid for member in self.memberships for relid in published_as_themselves(member, self.relations)}
        entries = {}
        for relid in published:
            entry = self._entries.get(relid)
            if entry is not None and not entry.via_root:
                entries[entry.target.namespace, entry.target.name] = entry
        return dict(sorted(entries.items()))

    def sources(self, target: CatalogRelation) -> tuple[CatalogRelation, ...]:
        """The tables whose changes are published as those of a target; a partitioned target itself is not one."""
        entries = [self.entry(leaf) for leaf in self.relations.leaves(target)]
        return tuple(entry.source for entry in entries if entry is not None and entry.target.relid == target.relid)

    def tables(self) -> list[PublishedTable]:
        """The targets as `Publisher.tables` describes them; the initial copy needs them."""
        return [entry.published_table() for entry in self.targets.values()]

    def _entry(self, relation: CatalogRelation) -> Entry | None:
        """`get_rel_sync_entry`."""
        target, level = relation, 0
        actions: set[Action] = set()
        members: list[Membership] = []
        for member in self.memberships:
            published_as = publish_as(member, relation, self.relations)
            if published_as is None or (relation.relkind == "p" and not member.publication.via_root):
                continue
            actions |= member.publication.actions
            if published_as[1] < level:
                continue
            if published_as[1] > level:
                members.clear()
            target, level = published_as
            members.append(member)
        if not members:
            return None
        return Entry(
            relation,
            target,
            tuple(member.publication.name for member in members),
            frozenset(actions),
            action_filters(members, target, actions),
            copy_filters(members, target),
            published_columns(members, target),
            listed=any(member.column_list(target) is not None for member in members),
        )

"""publish_via_partition_root: as which table a partition's changes are published.

And the other way round: how changes are published that the stream has under the name of a partitioned table, because
the server's publications say publish_via_partition_root.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bridge.runtime.errors import PublicationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.publication.entry import Entry
    from bridge.publication.membership import Membership
    from bridge.publication.tables import CatalogRelation, Relations


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

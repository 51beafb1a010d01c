"""Whether a partition's replica identity identifies rows of the table that it is published as.

An index of a partition is unique within that partition. Only if it has the partition key does each of its keys belong
to one partition, and so to one row of the whole table. PostgreSQL asks that of the primary key of a partitioned table;
a partition's own primary key may do without. A publication with publish_via_partition_root sends the root's identity,
and the subscriber stops at an UPDATE or DELETE if the root has none (`check_relation_updatable` in worker.c). A stream
of partitions, whose changes definitions publish as those of the root, has the partitions' identities instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bridge.publication.replica_identity import Refusal

if TYPE_CHECKING:
    from collections.abc import Collection

    from bridge.publication.entry import Entry
    from bridge.publication.routing import Routing
    from bridge.publication.tables import Relations


def missing_partition_key(entry: Entry, identity: Collection[str], relations: Relations) -> tuple[str, ...]:
    """The parts of the partition key that an identity lacks; none if it identifies rows of the entry's target.

    Args:
        entry: As which table changes are published, with the table that the stream names as its source.
        identity: Names of the columns in the source's replica identity, as the stream has them.
        relations: The server's tables. Partition keys never change, but their columns may be renamed: a name in the
            identity that the source does not have any more may be one of them.

    Returns:
        Columns, and "(expression)" for an expression, of which no identity can have the value.
    """
    if not entry.via_root:
        return ()
    wanted: dict[str, None] = {}
    for above in relations.ancestors(entry.source):
        wanted.update(dict.fromkeys(above.partition_key))
        if above.relid == entry.target.relid:
            break
    columns = {column.name for column in entry.source.columns}
    missing = tuple(name for name in wanted if name not in identity)
    renamed = [name for name in identity if name not in columns]
    return missing if len(missing) > len(renamed) else ()


def partition_refusal(entry: Entry, identity: Collection[str], relations: Relations) -> Refusal | None:
    """Why UPDATEs and DELETEs of a partition cannot be applied to the table it is published as; None if they can.

    Args:
        entry: See `missing_partition_key`.
        identity: See there.
        relations: See there.
    """
    missing = missing_partition_key(entry, identity, relations)
    commands = tuple(action.upper() for action in ("update", "delete") if action in entry.actions)
    if not missing or not commands:
        return None
    source = entry.source
    return Refusal(
        entry.publications[0],
        "",
        source.name,
        source.qualified_name,
        commands,
        f'Partition "{source.qualified_name}" is published as it, and the partition\'s replica identity lacks the '
        f"partition key ({', '.join(missing)}): it is unique within the partition only.",
        published_as=entry.target.qualified_name,
    )


def partition_refusals(routing: Routing, stream: Routing) -> list[Refusal]:
    """The same for all partitions, by the replica identities that the catalog has now.

    Args:
        routing: The definitions.
        stream: The server's publications, which say under which table's name the changes arrive.
    """
    found: dict[int, Refusal] = {}
    for leaf in routing.relations.publishable:
        entry, sent = routing.entry(leaf), stream.entry(leaf)
        if leaf.relkind != "r" or entry is None or sent is None:
            continue
        arriving = sent.target
        if arriving.replica_identity == "f" or not arriving.identity_columns:
            continue
        refusal = partition_refusal(replace(entry, source=arriving), arriving.identity_columns, routing.relations)
        if refusal is not None:
            found[arriving.relid] = refusal
    return list(found.values())

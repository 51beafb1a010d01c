"""A table that follows the stream: where its changes go, since when, and what of it is published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.apply.batch.row_filters import RowFilters
    from bridge.apply.batch.server_filters import ServerFilters
    from bridge.apply.target.target import Target
    from protocol.lsn import Lsn
    from protocol.messages import Relation

ACTIONS = frozenset({"insert", "update", "delete", "truncate"})


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A table that follows the stream.

    Attributes:
        target: Its Delta table.
        lsn: Transactions that commit before it are already in the target (`srsublsn`).
        primary_key: Names of the published primary key's columns: the key under REPLICA IDENTITY FULL.
        relid: The published table's oid, where it is known.
        actions: What is published: some of insert, update, delete, truncate.
        columns: Names of the published columns; None for all that the stream has.
        filters: Which rows are published; None for all.
        cut_identity: Names of the replica identity's columns, where not all of them are published.
        server_filters: The same, where a server tells; there are no others then.
    """

    target: Target
    lsn: Lsn
    primary_key: tuple[str, ...]
    actions: frozenset[str] = ACTIONS
    columns: frozenset[str] | None = None
    filters: RowFilters | None = None
    cut_identity: frozenset[str] = frozenset()
    relid: int | None = None
    server_filters: ServerFilters | None = None


def key_of(relation: Relation, subscribed: Subscribed) -> tuple[int, ...]:
    """Positions of the identity's columns: the replica identity's, or under FULL the primary key's.

    None where a column list leaves one out: what the message has is a part of a key, and identifies no row. Such a
    table has INSERTs only (`CheckCmdReplicaIdentity`). A message from before the list, or before a column of the key
    was renamed, has the whole key.
    """
    if relation.replica_identity == "f":
        names = {column.name for column in relation.columns}
        if not subscribed.primary_key or not names.issuperset(subscribed.primary_key):
            return ()
        return tuple(i for i, column in enumerate(relation.columns) if column.name in subscribed.primary_key)
    key = tuple(i for i, column in enumerate(relation.columns) if column.is_key)
    cut = subscribed.cut_identity.difference(column.name for column in relation.columns)
    return () if cut and len(key) < len(subscribed.cut_identity) else key

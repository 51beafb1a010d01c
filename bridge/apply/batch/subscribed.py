"""A subscribed table: where its changes go, from which LSN on, and which of them are published."""

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
    """A subscribed table whose initial copy is complete.

    Attributes:
        target: Its Delta table.
        lsn: The target already has the transactions that committed before it (`srsublsn`).
        primary_key: Names of the published primary key's columns: the key under REPLICA IDENTITY FULL.
        actions: The published actions: some of insert, update, delete, truncate.
        columns: Names of the published columns; None for all that the stream has.
        filters: The row filters that Spark computes; None for none.
        cut_identity: Names of the replica identity's columns, if not all of them are published.
        relid: The published table's oid; None if unknown.
        server_filters: The row filters that a server computes; None for none. Never beside `filters`.
        within_partition: The stream's replica identity is unique within a partition of the table only, so it identifies
            none of the table's rows.
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
    within_partition: bool = False


def key_of(relation: Relation, subscribed: Subscribed) -> tuple[int, ...]:
    """Positions of the columns that identify a row: the replica identity's, or under FULL the primary key's.

    Empty if the identity is unique within a partition only; or if a column list leaves one of them out, because a part
    of a key identifies no row. Such a table has only INSERTs (`CheckCmdReplicaIdentity`). A message that was sent
    before the column list, or before a column of the key was renamed, has the whole key.
    """
    if relation.replica_identity == "f":
        names = {column.name for column in relation.columns}
        if not subscribed.primary_key or not names.issuperset(subscribed.primary_key):
            return ()
        return tuple(i for i, column in enumerate(relation.columns) if column.name in subscribed.primary_key)
    if subscribed.within_partition:
        return ()
    key = tuple(i for i, column in enumerate(relation.columns) if column.is_key)
    cut = subscribed.cut_identity.difference(column.name for column in relation.columns)
    return () if cut and len(key) < len(subscribed.cut_identity) else key

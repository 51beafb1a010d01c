"""Tables, columns and collations as the publisher's catalog has them: the facts that decide what is published.

`bridge.receive.publications` reads them from the catalog; a Relation message has some of them, too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pgbridge.protocol.codec.messages import Relation


@dataclass(frozen=True, slots=True)
class Collation:
    """How a column's text is compared.

    Attributes:
        name: `schema.name`.
        provider: b builtin, c libc, i ICU; for the default collation the database's.
        ctype: The locale of upper(), lower() and character classes.
        bytewise: Whether text sorts as its bytes do, in the database's encoding.
    """

    name: str
    deterministic: bool
    provider: str
    ctype: str | None
    bytewise: bool


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column.

    Attributes:
        generated: Empty, s (stored) or v (virtual).
        in_replica_identity: Whether old tuples carry it: under FULL every column, under NOTHING no column.
        in_primary_key: Whether it is in the primary key, unless that is deferrable.
        collation: None for a type without collations.
    """

    attnum: int
    name: str
    type_oid: int
    typmod: int
    generated: str
    in_primary_key: bool
    in_replica_identity_index: bool
    in_replica_identity: bool
    collation: Collation | None


@dataclass(frozen=True, slots=True)
class CatalogRelation:
    """A table, or another relation that a publication may name by mistake.

    Attributes:
        relkind: r, or p for a partitioned table; v, m, f or S for a relation that cannot be published.
        relpersistence: p, or u for an unlogged table.
        publishable: `is_publishable_class` (pg_publication.c).
        parents: OIDs of the table it is a partition of, or of those it inherits from.
        columns: In the order of attnum; empty if it is not publishable.
        partition_key: Of a partitioned table: names of columns, and "(expression)".
        parent_since_xid: The transaction that made its parent what it is (`sql/relations.sql`); 0 if that precedes all
            that the stream still sends.
        created_so: Whether that transaction created the table.
        dropped: Whether it does not exist any more.
    """

    relid: int
    namespace: str
    name: str
    relkind: str
    relpersistence: str
    publishable: bool
    is_partition: bool
    replica_identity: str
    parents: tuple[int, ...]
    columns: tuple[CatalogColumn, ...] = ()
    partition_key: tuple[str, ...] = ()
    parent_since_xid: int = 0
    created_so: bool = True
    dropped: bool = False

    @property
    def qualified_name(self) -> str:
        """`namespace.name`, unquoted, as in messages."""
        return f"{self.namespace}.{self.name}"

    @property
    def identity_columns(self) -> frozenset[str]:
        """Names of the replica identity's columns."""
        return frozenset(column.name for column in self.columns if column.in_replica_identity)


@dataclass(frozen=True)
class Relations:
    """All tables of a database, as of one moment.

    Attributes:
        version: The server's server_version_num.
        encoding: The database's, as the server names it.
        lsn: What commits from here on commits after that moment.
    """

    by_relid: Mapping[int, CatalogRelation]
    schemas: frozenset[str]
    version: int
    encoding: str = "UTF8"
    lsn: int = 0

    @cached_property
    def by_name(self) -> Mapping[tuple[str, str], CatalogRelation]:
        """By (namespace, name): of a dropped table only if no other one has its name."""
        last = sorted(self.by_relid.values(), key=lambda relation: not relation.dropped)
        return {(relation.namespace, relation.name): relation for relation in last}

    @cached_property
    def publishable(self) -> tuple[CatalogRelation, ...]:
        """Tables that can be published, sorted by name."""
        return tuple(relation for relation in self.by_relid.values() if relation.publishable)

    @cached_property
    def unsettled(self) -> tuple[CatalogRelation, ...]:
        """Tables that may have had another parent for a transaction that the stream still sends."""
        return tuple(relation for relation in self.by_relid.values() if relation.parent_since_xid or relation.dropped)

    @cached_property
    def _children(self) -> Mapping[int, list[int]]:
        children = defaultdict(list)
        for relation in self.by_relid.values():
            for parent in relation.parents:
                children[parent].append(relation.relid)
        return children

    def ancestors(self, relation: CatalogRelation) -> tuple[CatalogRelation, ...]:
        """The partitioned tables above a partition, from its parent to the root (`get_partition_ancestors`)."""
        chain: list[CatalogRelation] = []
        while relation.is_partition and relation.parents and relation.parents[0] in self.by_relid:
            relation = self.by_relid[relation.parents[0]]
            chain.append(relation)
        return tuple(chain)

    def inheritors(self, relation: CatalogRelation) -> tuple[CatalogRelation, ...]:
        """Tables that inherit from a table or are its partitions, at any depth; without the table itself."""
        children: dict[int, CatalogRelation] = {}
        waiting = list(self._children[relation.relid])
        while waiting:
            relid = waiting.pop(0)
            if relid not in children:
                children[relid] = self.by_relid[relid]
                waiting += self._children[relid]
        return tuple(children.values())

    def leaves(self, relation: CatalogRelation) -> tuple[CatalogRelation, ...]:
        """The publishable tables that hold a table's rows: itself, or the leaves of its partition tree."""
        if relation.relkind != "p":
            return (relation,)
        return tuple(leaf for leaf in self.inheritors(relation) if leaf.relkind == "r" and leaf.publishable)

    def with_parents(self, parents: Mapping[int, int | None]) -> Relations:
        """These tables, some with another parent (`routing_then`)."""
        changed = {
            relid: replace(
                self.by_relid[relid], is_partition=parent is not None, parents=() if parent is None else (parent,)
            )
            for relid, parent in parents.items()
        }
        return replace(self, by_relid={**self.by_relid, **changed})

    def including(self, relation: CatalogRelation) -> Relations:
        """These tables and one that was dropped."""
        by_relid = {**self.by_relid, relation.relid: relation}
        return replace(self, by_relid=by_relid, schemas=self.schemas | {relation.namespace})


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of pg_attribute, as the server's catalog has it now.

    Attributes:
        name: None for a dropped column; then its other fields mean nothing.
        fill: The value of rows from before ADD COLUMN, as the type's output function writes it, in the bytes that the
            stream would have: UTF-8, but for a SQL_ASCII database's; None for NULL.
        fill_known: Whether it is known: a volatile default has another value in each row, and after a rewrite of the
            table the catalog may not tell a constant one.
        settled: Whether it is proved to have been as it is now for the transaction that was asked about.
        unlisted: Whether a publication's column list leaves it out.
    """

    attnum: int
    name: str | None
    type_oid: int
    typmod: int
    generated: str = ""
    fill: bytes | None = None
    fill_known: bool = True
    settled: bool = False
    unlisted: bool = False


class PrimaryKey(NamedTuple):
    """A primary key that is not deferrable, as the server's catalog has it now.

    Attributes:
        columns: Names of its columns.
    """

    columns: tuple[str, ...]
    settled: bool


def from_relation_message(message: Relation) -> CatalogRelation:
    """A dropped table as a Relation message describes it, for changes from before the DROP.

    It counts as an ordinary table: the message does not say whether it was a partition.
    """
    columns = (
        CatalogColumn(
            attnum, column.name, column.type_oid, column.typmod, "", column.is_key, column.is_key, column.is_key, None
        )
        for attnum, column in enumerate(message.columns, 1)
    )
    return CatalogRelation(
        message.relation_id,
        message.namespace or "pg_catalog",
        message.name,
        "r",
        "p",
        publishable=True,
        is_partition=False,
        replica_identity=message.replica_identity,
        parents=(),
        columns=tuple(columns),
        dropped=True,
    )


def with_replica_identity(relation: CatalogRelation, message: Relation) -> CatalogRelation:
    """A table with the replica identity of a Relation message, which the catalog may not have any more."""
    whole = message.replica_identity == "f"
    key = {column.name for column in message.columns if column.is_key}
    columns = (replace(column, in_replica_identity=whole or column.name in key) for column in relation.columns)
    return replace(relation, replica_identity=message.replica_identity, columns=tuple(columns))

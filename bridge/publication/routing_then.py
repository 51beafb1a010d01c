"""How tables were published when something was written, although the stream lags behind the catalog.

It is the catalog as it was read last, with the partitions' parents of then: no message announces ATTACH or DETACH.

ATTACH and DETACH lock the partition exclusively. So a transaction that writes it lies wholly before or after, and ends
on that side: a transaction that commits after the catalog was read (`Relations.lsn`) finds it as it was read. Those
that committed before are told by their ids. They are in order, unless both ran at the same time, and one had its id
before the other and the lock after it. What was there before, the looks at the catalog have noted (`Former`).

Exact too: what the slot's catalog_xmin says was settled before all that the stream still sends (`parent_since_xid`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pgbridge.bridge.publication.tables import CatalogRelation, Relations, from_relation_message

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pgbridge.bridge.publication.routing import Routing
    from pgbridge.protocol.codec.messages import Relation

STILL: Final = 1 << 64
"""An LSN beyond all others, for a partition that was one at the last look."""


class Former(NamedTuple):
    """A look has seen that a table was a partition.

    Attributes:
        parent: The table that it was a partition of.
        xid: The transaction in which it became one (`pg_inherits.xmin`).
        until_lsn: What commits from here on does not find it so any more.
    """

    relid: int
    parent: int
    xid: int
    until_lsn: int = STILL


class Written(NamedTuple):
    """The tables that are written, and the transaction that writes them.

    Attributes:
        xid: The transaction's id.
        lsn: Where it commits.
        again: Whether it has announced the tables again, or only once: then its own ATTACH or DETACH came before.
        truncated: Whether it is a TRUNCATE; else it is rows of one table.
    """

    relids: Collection[int]
    xid: int
    lsn: int
    again: bool = False
    truncated: bool = False


def parents_then(
    relations: Relations, formers: Mapping[int, Sequence[Former]], written: Written
) -> dict[int, int | None]:
    """The tables that had other parents when something was written: the relids of these, None for no parent.

    Args:
        relations: The catalog, read later perhaps.
        formers: By relid, the earliest first.
        written: What was written.
    """
    if written.lsn >= relations.lsn:
        return {}
    parents: dict[int, int | None] = {}
    for relation in relations.unsettled:
        now = relation.parents[0] if relation.is_partition and relation.parents else None
        # a TRUNCATE of its root names a partition, and rows prove that it existed
        unnamed = written.truncated and relation.relid not in written.relids
        before = is_before(relation, written._replace(again=written.again and not unnamed))
        then = now
        if relation.dropped or relation.created_so:
            if unnamed and (relation.dropped or before):
                then = None
        elif before:
            others = [former for former in formers.get(relation.relid, ()) if former.xid != relation.parent_since_xid]
            then = parent_at(others, written.lsn)
        if then != now:
            parents[relation.relid] = then
    return parents


def parent_at(formers: Sequence[Former], lsn: int) -> int | None:
    """The parent of a table for what commits at `lsn`, by the looks; None if they have seen none."""
    return next((former.parent for former in formers if former.until_lsn > lsn), None)


def is_before(relation: CatalogRelation, written: Written) -> bool:
    """Whether a transaction came before the one that made a table's parent what it is now."""
    if written.xid == relation.parent_since_xid:
        return not written.again
    return (written.xid - relation.parent_since_xid) & 0xFFFFFFFF >= 1 << 31  # TransactionIdPrecedes


Parents = frozenset[tuple[int, int | None]]


def _ignore(roots: Sequence[str], table: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The sources of what is known about partitions.

    Attributes:
        formers: Reads what looks at the catalog have seen (`bridge.catalog.followed`).
        ancestors: Asks the server for the tables that a table is a partition of now; None: as the catalog was read.
        doubted: Called with roots and a table that may have been a partition of one of them: nothing says whether.
    """

    formers: Callable[[], Mapping[int, Sequence[Former]]] = dict
    ancestors: Callable[[int], tuple[int, ...]] | None = None
    doubted: Callable[[Sequence[str], str], None] = _ignore


class RoutingThen:
    """The routing of the moment at which something was written.

    Attributes:
        routing: That of now, with the parents of then.
        parents: The parents that were others then: what was found for the same ones is still right.
    """

    def __init__(self, routing: Routing, facts: PartitionFacts) -> None:
        self._facts = facts
        self._written = Written((), 0, STILL)
        self._again: dict[tuple[int, int], bool] = {}
        self._asked: set[int] = set()
        self.use(routing)

    def use(self, routing: Routing) -> None:
        """Take the catalog as it was read just now."""
        self._formers = self._facts.formers()
        self._take(routing)

    def _take(self, routing: Routing) -> None:
        self._now, self._thens = routing, {frozenset[tuple[int, int | None]](): routing}
        self._place()

    def _place(self) -> None:
        changed = parents_then(self._now.relations, self._formers, self._written)
        self.parents: Parents = frozenset(changed.items())
        if self.parents not in self._thens:
            self._thens[self.parents] = self._now.with_parents(changed)
        self.routing = self._thens[self.parents]

    def begin(self) -> None:
        """Forget what transactions have announced: a batch begins, and decodes them from their start."""
        self._again.clear()

    def announced(self, relation_id: int, xid: int, *, again: Callable[[], bool]) -> None:
        """A transaction announces a table; `again` says whether its own ALTER TABLE can have come before."""
        self._asked.discard(relation_id)
        if any(unsettled.parent_since_xid == xid for unsettled in self._now.relations.unsettled):
            self._again[xid, relation_id] = (xid, relation_id) in self._again or again()

    def at(self, relids: Collection[int], xid: int, lsn: int, *, truncated: bool) -> None:
        """Go to a transaction that commits at `lsn`: to its TRUNCATE, or its rows of one table."""
        again = bool(self._again) and any(self._again.get((xid, relid), False) for relid in relids)
        self._written = Written(relids, xid, lsn, again, truncated)
        self._place()

    def find(self, message: Relation) -> CatalogRelation | None:
        """The table of a definition; None if it is newer than the catalog, or was dropped.

        Another table of its name, made after DROP TABLE, is followed in its place; but whose partition that is says
        nothing of the dropped one.
        """
        relation = self.routing.find(message.relation_id, message.namespace or "pg_catalog", message.name)
        if relation is None or relation.relid == message.relation_id:
            return relation
        newer = self._written.lsn >= self._now.relations.lsn
        partition = self._now.relations.by_relid[relation.relid].is_partition or message.relation_id in self._formers
        return None if newer or partition else relation

    def is_outdated(self, known: CatalogRelation) -> bool:
        """Whether a table has become another's partition since the catalog was read, or is none any more.

        Asked once after each definition: a stream's first one, and those of streamed transactions, tell of no change.
        """
        if self._facts.ancestors is None or known.relid in self._asked:
            return False
        self._asked.add(known.relid)
        if self._written.lsn < self._now.relations.lsn:
            return False
        ancestors = self.routing.relations.ancestors(known)
        return self._facts.ancestors(known.relid) != tuple(ancestor.relid for ancestor in ancestors)

    def include_dropped(self, message: Relation) -> CatalogRelation:
        """Take in a table that the catalog does not have any more, with the parent that it had at the last look."""
        gone = from_relation_message(message)
        parent = parent_at(self._formers.get(gone.relid, ()), self._written.lsn)
        while parent is not None and parent not in self._now.relations.by_relid:
            parent = parent_at(self._formers.get(parent, ()), self._written.lsn)
        if parent is not None:
            gone = replace(gone, is_partition=True, parents=(parent,))
        return self._include(gone)

    def include_renamed(self, relid: int, namespace: str, name: str) -> CatalogRelation:
        """Take a table by the name that it had."""
        return self._include(replace(self._now.relations.by_relid[relid], namespace=namespace, name=name))

    def _include(self, relation: CatalogRelation) -> CatalogRelation:
        self._take(self._now.including(relation))
        return self.routing.relations.by_relid[relation.relid]

    def doubt(self, known: CatalogRelation, message: Relation) -> None:
        """Say of which followed roots a table may have been a partition when its rows were written, for all is known.

        It was attached and detached, or dropped, between two looks. A partition has its root's columns and key.
        """
        relations = self.routing.relations
        top = (known, *relations.ancestors(known))[-1]
        seen = top.relid in self._formers or message.relation_id in self._formers
        if self._written.lsn >= relations.lsn or seen:
            return
        dropped = top.dropped or known.relid != message.relation_id
        detached = bool(top.parent_since_xid) and not top.is_partition and not top.created_so
        if not dropped and not (detached and is_before(top, self._written._replace(again=False))):
            return
        names = {column.name for column in message.columns}
        key = {column.name for column in message.columns if column.is_key}
        roots = []
        for root in (entry.target for entry in self.routing.targets.values()):
            columns = {column.name for column in root.columns}
            stored = {column.name for column in root.columns if not column.generated}
            alike = stored <= names <= columns and (message.replica_identity == "f" or key == root.identity_columns)
            if root.relkind == "p" and root.relid != top.relid and alike:
                roots.append(root.qualified_name)
        if roots:
            self._facts.doubted(roots, f"{message.namespace}.{message.name}")

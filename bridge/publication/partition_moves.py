"""Finds the parent that a partition had for a transaction of a stream that lags: no message announces ATTACH or DETACH.

ATTACH and DETACH lock the partition exclusively. So a transaction that writes it lies wholly before or after, and ends
on that side: a transaction that commits after the catalog was read (`Relations.lsn`) finds it as it was read. Those
that committed before are told by their ids. They are in order, unless both ran at the same time, and one had its id
before the other and the lock after it. What was there before, the looks at the catalog have noted (`Former`).

Exact too: what the slot's catalog_xmin says was settled before all that the stream still sends (`parent_since_xid`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bridge.publication.tables import CatalogRelation, Relations

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

"""The parents of then, by the order of transactions and by what looks have seen; servers' events are in the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.publication.partition_moves import Former, Written, parents_then
from bridge.publication.tables import CatalogRelation, Relations

ROOT, OTHER, LEAF = 1, 2, 3
READ_LSN = 100


def relations(parent: int | None, **leaf: object) -> Relations:
    """Two roots and a table that is a partition of one, or none; read at `READ_LSN`."""
    roots = [CatalogRelation(relid, "public", f"r{relid}", "p", "p", True, False, "d", ()) for relid in (ROOT, OTHER)]
    table = replace(roots[0], relid=LEAF, name="l", relkind="r", is_partition=parent is not None, created_so=False)
    table = replace(table, parents=() if parent is None else (parent,), **leaf)  # type: ignore[arg-type]
    return Relations({one.relid: one for one in (*roots, table)}, frozenset(), 180000, lsn=READ_LSN)


def then(now: Relations, *formers: Former, **written: object) -> object:
    """The leaf's parent then, or "now"."""
    wrote = replace_all(Written((LEAF,), 7, 50), written)
    return parents_then(now, {LEAF: formers}, wrote).get(LEAF, "now")


def replace_all(written: Written, given: dict[str, object]) -> Written:
    return written._replace(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("since", "xid", "expected"),
    [(8, 7, None), (8, 8, None), (8, 9, "now"), (0, 7, "now"), (5, (1 << 32) - 9, None), ((1 << 32) - 9, 5, "now")],
)
def test_rows_from_before_an_attach_are_not_the_roots(since, xid, expected):
    """Ids are compared as PostgreSQL does, around their end; what is settled is as it is."""
    assert then(relations(ROOT, parent_since_xid=since), xid=xid) == expected


def test_what_commits_after_the_catalog_was_read_finds_it_so():
    """Whatever its id: it may be older than the transaction of the ATTACH."""
    assert then(relations(ROOT, parent_since_xid=8), lsn=READ_LSN) == "now"


def test_within_the_transaction_that_attaches():
    assert then(relations(ROOT, parent_since_xid=7)) is None
    assert then(relations(ROOT, parent_since_xid=7), again=True) == "now"


def test_what_looks_have_seen():
    """Of what they saw last, what is not so any more; of what they saw earlier, until it was seen to be over."""
    seen = Former(LEAF, ROOT, 4)
    for now in (relations(None, parent_since_xid=8), relations(OTHER, parent_since_xid=8)):
        assert then(now, seen) == ROOT
        assert then(now, seen._replace(until_lsn=51)) == ROOT
        assert then(now, seen, xid=9) == "now"
    assert then(relations(None, parent_since_xid=8), seen._replace(until_lsn=50)) == "now"
    again = Former(LEAF, ROOT, 8)
    assert then(relations(ROOT, parent_since_xid=8), again) is None
    assert then(relations(ROOT, parent_since_xid=8), seen._replace(until_lsn=60), again) == "now"
    assert then(relations(ROOT, parent_since_xid=8), Former(LEAF, OTHER, 3, 60), again) == OTHER


def test_a_truncate_does_not_wait_for_partitions_that_are_younger_or_gone():
    created = relations(ROOT, parent_since_xid=8, created_so=True)
    dropped = relations(ROOT, created_so=True, dropped=True)
    for now in (created, dropped):
        assert then(now) == "now"
        assert then(now, relids=(ROOT,), truncated=True) is None
        assert then(now, relids=(ROOT, LEAF), truncated=True) == "now"
    assert then(created, relids=(ROOT,), truncated=True, xid=9) == "now"
    for own in (created, relations(ROOT, parent_since_xid=8)):  # ATTACH or CREATE came after the TRUNCATE
        assert then(own, relids=(ROOT,), truncated=True, xid=8, again=True) is None

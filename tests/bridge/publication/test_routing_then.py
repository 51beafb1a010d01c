"""The routing of then, on a real server's tables; `tests/oracle/test_partition_moves.py` has whole histories.

The parents of then, by the order of transactions and by what looks have seen; servers' events are in the oracle.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.publication.routing_then import Former, PartitionFacts, RoutingThen, Written, parents_then
from pgbridge.bridge.publication.tables import CatalogRelation, Relations, from_relation_message
from pgbridge.bridge.receive.publications import read_relations
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.protocol.codec.messages import Column, Relation

SCHEMA = """
CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF mid DEFAULT;
CREATE TABLE lone (id int PRIMARY KEY, v text)
"""
DEFINITIONS = parse("CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)", "f.sql")
COLUMNS = (Column("id", 23, -1, is_key=True), Column("v", 25, -1, is_key=False))
GONE = Relation(4_000_000, "public", "gone", "d", COLUMNS)


@pytest.fixture
def server(publisher):
    """The server with its tables."""
    publisher.execute(SCHEMA)
    with Publisher(publisher.conninfo, application_name="test") as opened:
        yield opened


def read(server) -> Routing:
    return Routing(DEFINITIONS, read_relations(server), missing_ok=True)


def test_the_server_is_asked_once_for_a_tables_ancestors(publisher, server):
    """Only if the table's rows are newer than the catalog: the first definition of a stream is no sign of an ATTACH."""
    asked = []

    def ancestors(relid):
        asked.append(relid)
        return server.partition_ancestors(relid)

    routing = read(server)
    lone, leaf = (routing.relations.by_name["public", name] for name in ("lone", "leaf"))
    publisher.execute("ALTER TABLE root ATTACH PARTITION lone FOR VALUES FROM (10) TO (20)")
    for lsn, expected in ((routing.relations.lsn - 1, []), (server.insert_lsn(), [lone.relid, leaf.relid])):
        then = RoutingThen(routing, PartitionFacts(ancestors=ancestors))
        then.at((lone.relid,), 1, lsn, truncated=False)
        assert [then.is_outdated(lone), then.is_outdated(lone)] == [bool(expected), False]
        assert not then.is_outdated(leaf)
        assert asked == expected
    then.announced(leaf.relid, 2, again=lambda: True)
    assert not then.is_outdated(leaf)
    assert asked[2:] == [leaf.relid]


def test_a_dropped_partition_has_the_parent_that_a_look_has_seen(server):
    """Its nearest ancestor that still exists: a subtree may have been dropped."""
    routing = read(server)
    root = routing.relations.by_name["public", "root"]
    formers = {77: [Former(77, root.relid, 1)], GONE.relation_id: [Former(GONE.relation_id, 77, 1)]}
    then = RoutingThen(routing, PartitionFacts(lambda: formers))
    then.at((GONE.relation_id,), 1, 1, truncated=False)
    gone = then.include_dropped(GONE)
    entry = then.routing.entry(gone)
    assert entry is not None
    assert entry.target.relid == root.relid
    assert not RoutingThen(routing, PartitionFacts()).include_dropped(GONE).is_partition


def test_a_table_that_was_made_in_a_dropped_ones_place(server):
    """It is followed by its name, unless one of them is a partition; a new one is read from the catalog first."""
    routing = read(server)
    then = RoutingThen(routing, PartitionFacts())
    for name, lsn, expected in (("lone", 0, True), ("leaf", 0, False), ("lone", routing.relations.lsn, False)):
        then.at((GONE.relation_id,), 1, lsn, truncated=False)
        assert (then.find(replace(GONE, name=name)) is not None) == expected
    gone = then.include_dropped(replace(GONE, name="lone"))
    assert then.find(GONE) == gone
    assert then.routing.relations.by_name["public", "lone"].relid != GONE.relation_id


def test_a_renamed_table_keeps_the_parent_of_now(server):
    routing = read(server)
    leaf = routing.relations.by_name["public", "leaf"]
    renamed = RoutingThen(routing, PartitionFacts()).include_renamed(leaf.relid, "s", "then")
    assert renamed == replace(leaf, namespace="s", name="then")


def test_a_table_that_may_have_been_a_partition(publisher, server):
    """Dropped, or its columns were all written: then by a DETACH. It has its root's columns and key."""
    publisher.execute("SELECT pg_create_logical_replication_slot(current_database()::text, 'pgoutput')")
    publisher.execute("ALTER TABLE root ATTACH PARTITION lone FOR VALUES FROM (10) TO (20)")
    publisher.execute("ALTER TABLE root DETACH PARTITION lone; CREATE TABLE plain (id int PRIMARY KEY, v text)")
    said: list[object] = []
    relations = read_relations(server, publisher.name)
    routing = Routing(DEFINITIONS, relations, missing_ok=True)
    lone, plain, leaf = (relations.by_name["public", name] for name in ("lone", "plain", "leaf"))
    gone = from_relation_message(GONE)
    then = RoutingThen(routing, PartitionFacts(doubted=lambda roots, table: said.append((roots, table))))
    for known, xid, message in (
        (lone, lone.parent_since_xid + 1, GONE),
        (plain, 1, GONE),
        (leaf, 1, GONE),
        (lone, lone.parent_since_xid - 1, GONE),
        (gone, 1, GONE),
        (gone, 1, replace(GONE, columns=COLUMNS[:1])),
        (gone, 1, replace(GONE, columns=tuple(replace(column, is_key=False) for column in COLUMNS))),
    ):
        then.at((known.relid,), xid, relations.lsn - 1, truncated=False)
        then.doubt(known, replace(message, relation_id=known.relid))
    then.doubt(plain, GONE)
    assert said == [(["public.root"], "public.gone")] * 3
    publisher.execute("SELECT pg_drop_replication_slot(current_database()::text)")


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

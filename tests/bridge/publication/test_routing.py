"""Decisions on publications are those of the server's own publications of the same text."""

from __future__ import annotations

from dataclasses import replace

from bridge.publication.definitions import parse
from bridge.publication.routing import Routing
from bridge.publication.tables import from_relation_message
from protocol.codec.messages import Column, Relation
from tests.bridge.publication.server_publications import PARTITIONS, entry_of, relation, routing, tables_of, targets


def test_inheritors_are_members_unless_only(publisher):
    """With the filter and the list of the table that is named; later ones are not members on the server either."""
    publisher.execute("CREATE TABLE up(a int PRIMARY KEY, b int)")
    publisher.execute("CREATE TABLE down(c int, PRIMARY KEY (a)) INHERITS (up)")
    text = "CREATE PUBLICATION p FOR TABLE up (a) WHERE (a > 5); CREATE PUBLICATION q FOR TABLE ONLY up;"
    routed = routing(publisher, text.split(";", maxsplit=1)[0])
    assert entry_of(routed, "down").column_names == ("a",)
    assert entry_of(routed, "down").copy_filters == ("a > 5",)
    tables_of(publisher, text.split(";", maxsplit=1)[0], "p")
    assert targets(tables_of(publisher, text.split(";")[1], "q")) == ["public.up"]


def test_truncate_of_a_leaf_under_a_published_root(publisher):
    """A leaf's TRUNCATE is not replicated; the root's is, and one of all leaves at once, which looks the same."""
    publisher.execute(PARTITIONS)
    routed = routing(publisher, "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)")
    root, low, high, rest = (relation(routed, name) for name in ("root", "low", "high", "rest"))
    assert routed.truncated([low]) == []
    assert routed.truncated([low, high]) == []
    assert routed.truncated([root]) == [root]
    assert routed.truncated([low, high, rest]) == [root]
    leaves = routing(publisher, "CREATE PUBLICATION p FOR TABLE root")
    assert [table.name for table in leaves.truncated([low, rest])] == ["low", "rest"]
    inserts = "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root, publish = 'insert')"
    assert routing(publisher, inserts).truncated([root]) == []


def test_a_relation_that_is_newer_than_the_catalog(publisher):
    publisher.execute(PARTITIONS)
    routed = routing(publisher, "CREATE PUBLICATION p FOR ALL TABLES")
    low = relation(routed, "low")
    assert routed.find(low.relid, "old", "name") is low
    assert routed.find(1, "public", "low") is low
    assert routed.find(1, "public", "new") is None


def test_a_relation_that_the_catalog_has_no_more(publisher):
    """Changes from before its DROP TABLE are published as they were."""
    publisher.execute(PARTITIONS)
    with_filter = "CREATE PUBLICATION p FOR TABLE plain WHERE (a > 5)"
    parsed, relations = parse(with_filter, "f.sql"), routing(publisher, "CREATE PUBLICATION p").relations
    publisher.execute("DROP TABLE plain")
    without = replace(relations, by_relid={k: v for k, v in relations.by_relid.items() if v.name != "plain"})
    routed = Routing(parsed, without, missing_ok=True)
    assert list(routed.targets) == []
    gone = from_relation_message(Relation(77, "public", "plain", "d", (Column("a", 23, -1, is_key=True),)))
    entry = routed.including(gone).entry(gone)
    assert entry is not None
    assert (entry.target, entry.filters["insert"], entry.column_names) == (gone, ("a > 5",), ("a",))

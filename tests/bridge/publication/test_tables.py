"""How tables hang together, and what a Relation message says of one."""

from __future__ import annotations

from pgbridge.bridge.publication.tables import Relations, from_relation_message, with_replica_identity
from pgbridge.bridge.receive.publications import read_relations
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.protocol.codec.messages import Column, Relation


def relations(publisher) -> Relations:
    with Server(publisher.conninfo, application_name="test") as server:
        return read_relations(server)


def names(found) -> list[str]:
    return [relation.name for relation in found]


def test_tree(publisher):
    publisher.execute(
        "CREATE TABLE root (a int) PARTITION BY RANGE (a);"
        "CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (a);"
        "CREATE TABLE low PARTITION OF mid DEFAULT; CREATE TABLE rest PARTITION OF root DEFAULT;"
        "CREATE TABLE up (a int); CREATE TABLE side (b int); CREATE TABLE down () INHERITS (up, side);"
        "CREATE TABLE deep () INHERITS (down)"
    )
    found = relations(publisher)
    table = {relation.name: relation for relation in found.publishable}
    assert names(found.ancestors(table["low"])) == ["mid", "root"]
    assert names(found.ancestors(table["down"])) == []
    assert sorted(names(found.inheritors(table["root"]))) == ["low", "mid", "rest"]
    assert names(found.inheritors(table["up"])) == ["down", "deep"]
    assert sorted(names(found.leaves(table["root"]))) == ["low", "rest"]
    assert found.leaves(table["up"]) == (table["up"],)
    publisher.execute("ALTER TABLE root DETACH PARTITION mid")
    detached = relations(publisher)
    assert names(detached.ancestors(detached.by_name["public", "low"])) == ["mid"]


def test_table_that_was_dropped(publisher):
    """Known from its Relation message, for the changes that come before the DROP."""
    message = Relation(7, "public", "gone", "d", (Column("a", 23, -1, is_key=True), Column("b", 25, -1, is_key=False)))
    table = from_relation_message(message)
    found = relations(publisher).including(table)
    assert found.by_name["public", "gone"] is table
    assert table in found.publishable
    assert table.identity_columns == {"a"}
    assert [column.name for column in table.columns] == ["a", "b"]


def test_replica_identity_of_a_relation_message(publisher):
    """The message has the identity as of the change; the catalog may have another by now."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY, b int)")
    table = relations(publisher).by_name["public", "t"]
    by_index = Relation(7, "public", "t", "i", (Column("a", 23, -1, is_key=False), Column("b", 23, -1, is_key=True)))
    assert with_replica_identity(table, by_index).identity_columns == {"b"}
    full = Relation(7, "public", "t", "f", (Column("a", 23, -1, is_key=True), Column("b", 23, -1, is_key=True)))
    assert with_replica_identity(table, full).identity_columns == {"a", "b"}
    assert with_replica_identity(table, full).replica_identity == "f"

"""Decisions on publications are those of the server's own publications of the same text.

publish_via_partition_root: as which table changes are published, as pgoutput publishes them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.publication import DML
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.publication.tables import from_relation_message
from pgbridge.bridge.runtime.errors import PublicationError
from pgbridge.protocol.codec.messages import Column, Relation
from tests.bridge.publication.server_publications import (
    PARTITIONS,
    Decoder,
    Sent,
    entry_of,
    relation,
    routing,
    tables_of,
    targets,
)


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


@pytest.mark.parametrize(
    ("text", "target", "row_filter"),
    [
        (
            (
                "CREATE PUBLICATION p4 FOR TABLE parent WHERE (a < 5), child WHERE (a >= 5)"
                " WITH (publish_via_partition_root=true);"
            ),
            "public.parent",
            "a < 5",
        ),
        (
            "CREATE PUBLICATION p4 FOR TABLE parent, child WHERE (a >= 5) WITH (publish_via_partition_root=false);",
            "public.child",
            "a >= 5",
        ),
    ],
)
def test_examples_of_partitions(publisher, text, target, row_filter):
    """The filter is the root's or the partition's, as publish_via_partition_root says."""
    publisher.execute("CREATE TABLE parent(a int PRIMARY KEY) PARTITION BY RANGE(a);")
    publisher.execute("CREATE TABLE child PARTITION OF parent DEFAULT;")
    routed = tables_of(publisher, text, "p4")
    assert targets(routed) == [target]
    assert entry_of(routed, "child").filters == dict.fromkeys(DML, (row_filter,))
    decoder = Decoder(publisher)
    (sent,) = decoder.sent(["p4"], "INSERT INTO child VALUES (3), (5)")
    assert sent == [Sent("insert", target, ("a",))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("CREATE PUBLICATION p FOR ALL TABLES", ["high", "low", "plain", "rest"]),
        ("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)", ["plain", "root"]),
        ("CREATE PUBLICATION p FOR TABLE mid, low WITH (publish_via_partition_root)", ["mid"]),
        ("CREATE PUBLICATION p FOR TABLE mid, rest", ["high", "low", "rest"]),
        ("CREATE PUBLICATION p FOR TABLE low, high WITH (publish_via_partition_root)", ["high", "low"]),
        (
            "CREATE PUBLICATION p FOR TABLE mid; CREATE PUBLICATION q FOR TABLE root WITH (publish_via_partition_root)",
            ["root"],
        ),
        (
            (
                "CREATE PUBLICATION p FOR TABLE mid WITH (publish_via_partition_root);\n"
                "CREATE PUBLICATION q FOR TABLE root WITH (publish = 'delete')"
            ),
            ["mid", "rest"],
        ),
    ],
)
def test_the_topmost_published_ancestor_is_the_target(publisher, text, found):
    publisher.execute(PARTITIONS)
    routed = tables_of(publisher, text, *(["p", "q"] if " q " in text else ["p"]))
    assert targets(routed) == [f"public.{name}" for name in found]


def test_action_of_a_lower_publication_goes_unfiltered(publisher):
    """Pgoutput ORs the actions before it drops the publications below the topmost ancestor."""
    publisher.execute(PARTITIONS)
    text = """
        CREATE PUBLICATION p FOR TABLE root WHERE (a > 5) WITH (publish_via_partition_root, publish = 'insert');
        CREATE PUBLICATION q FOR TABLE low WITH (publish = 'delete');
    """
    routed = tables_of(publisher, text, "p", "q")
    assert entry_of(routed, "low").filters == {"insert": ("a > 5",), "delete": ()}
    assert entry_of(routed, "high").filters == {"insert": ("a > 5",)}
    sent = Decoder(publisher).sent(["p", "q"], "INSERT INTO root VALUES (1), (20)", "DELETE FROM root")
    assert [[(item.action, item.relation) for item in one] for one in sent] == [
        [("insert", "public.root")],
        [("delete", "public.root")],
    ]
    with pytest.raises(PublicationError, match="do not publish all its partitions as one"):
        routed.route(relation(routed, "root"))


def test_stream_of_roots(publisher):
    """Changes under a root's name can be routed only if all its partitions are published alike."""
    publisher.execute(PARTITIONS)
    root_text = "CREATE PUBLICATION p FOR TABLE root WHERE (a > 1) WITH (publish_via_partition_root)"
    routed = routing(publisher, root_text)
    entry = routed.route(relation(routed, "mid"))
    assert entry is not None
    assert (entry.source.name, entry.target.name) == ("mid", "root")
    assert entry.filters["insert"] == ("a > 1",)
    plain = routing(publisher, "CREATE PUBLICATION p FOR TABLE plain")
    assert plain.route(relation(plain, "root")) is None
    for text in ("CREATE PUBLICATION p FOR TABLE root", "CREATE PUBLICATION p FOR TABLE low"):
        leaves = routing(publisher, text)
        with pytest.raises(PublicationError, match=r'changes of partition "public\.\w+" under the name of its root'):
            leaves.route(relation(leaves, "root"))


def test_partitions_come_and_go(publisher):
    """The catalog read again after ATTACH, DETACH and CREATE says what pgoutput does from then on."""
    publisher.execute(PARTITIONS)
    text = "CREATE PUBLICATION p FOR TABLE root WHERE (a < 5000) WITH (publish_via_partition_root)"
    publisher.execute(text)
    decoder = Decoder(publisher)

    def found(name: str, key: int) -> list[Sent]:
        (sent,) = decoder.sent(["p"], f"INSERT INTO {name} (a) VALUES ({key})")
        return sent

    def worked_out(name: str) -> str | None:
        routed = routing(publisher, text)
        entry = routed.entry(relation(routed, name))
        return entry.target.name if entry else None

    publisher.execute("CREATE TABLE late (c int, b text, a int NOT NULL PRIMARY KEY)")
    assert (found("late", 1000), worked_out("late")) == ([], None)
    publisher.execute("ALTER TABLE root ATTACH PARTITION late FOR VALUES FROM (1000) TO (2000)")
    publisher.execute("CREATE TABLE young PARTITION OF root FOR VALUES FROM (2000) TO (3000)")
    for name, key in (("late", 1001), ("young", 2000)):
        assert found(name, key) == [Sent("insert", "public.root", ("a", "b", "c"))]
        assert worked_out(name) == "root"
    publisher.execute("ALTER TABLE root DETACH PARTITION late")
    assert (found("late", 1002), worked_out("late")) == ([], None)


def test_rows_that_move_between_partitions(publisher):
    """They come as DELETE and INSERT of the root, from whose filter each is seen by itself."""
    publisher.execute(PARTITIONS)
    text = "CREATE PUBLICATION p FOR TABLE root WHERE (a < 50) WITH (publish_via_partition_root)"
    publisher.execute(text)
    decoder = Decoder(publisher)
    sent = decoder.sent(
        ["p"],
        "INSERT INTO root VALUES (1)",
        "UPDATE root SET a = 20",
        "UPDATE root SET a = 60",
        "UPDATE root SET a = 2",
    )
    assert [[(item.action, item.relation) for item in one] for one in sent] == [
        [("insert", "public.root")],
        [("delete", "public.root"), ("insert", "public.root")],
        [("delete", "public.root")],
        [("insert", "public.root")],
    ]
    routed = routing(publisher, text)
    for name in ("low", "high"):
        assert entry_of(routed, name).target.name == "root"
        assert entry_of(routed, name).filters == dict.fromkeys(DML, ("a < 50",))

"""What is published, as which table and how: the same as the server's own publications of the same text."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from bridge.errors import PublicationError, PublisherError
from bridge.publication.definitions import parse
from bridge.publication.publication import ACTIONS, DML, Publication, PublicationTable, render
from bridge.publication.routing import Routing
from bridge.publication.tables import from_relation_message
from protocol.messages import Column, Relation
from tests.bridge.publication.server_publications import Decoder, Sent, own_routing, own_tables, relation, routing

if TYPE_CHECKING:
    from bridge.publication.routing import Entry
    from tests.fix_postgres import Publisher

PARTITIONS = """
    CREATE TABLE root (a int, b text, c int, PRIMARY KEY (a)) PARTITION BY RANGE (a);
    CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (a);
    CREATE TABLE low (c int, gone int, b text, a int NOT NULL PRIMARY KEY);
    ALTER TABLE low DROP COLUMN gone;
    ALTER TABLE mid ATTACH PARTITION low FOR VALUES FROM (0) TO (10);
    CREATE TABLE high PARTITION OF mid FOR VALUES FROM (10) TO (100);
    CREATE TABLE rest PARTITION OF root DEFAULT;
    CREATE TABLE plain (a int PRIMARY KEY, b text, c int);
"""


def entry_of(routed: Routing, name: str) -> Entry:
    entry = routed.entry(relation(routed, name))
    assert entry is not None
    return entry


def targets(routed: Routing) -> list[str]:
    return [entry.target.qualified_name for entry in routed.targets.values()]


def tables_of(publisher: Publisher, text: str, *names: str) -> Routing:
    """The same statements here and on the server: what the server says of its own must be what is worked out."""
    publisher.execute(text)
    routed, own = routing(publisher, text), own_routing(publisher, *names)
    assert own.tables() == own_tables(publisher, *names)
    assert [without_filters(table) for table in routed.tables()] == [without_filters(table) for table in own.tables()]
    for source in routed.relations.publishable:
        assert without_filters(routed.entry(source)) == without_filters(own.entry(source))
    return routed


def without_filters(item) -> object:
    """All but the filters' texts, which the server spells its own way."""
    if item is None:
        return None
    if hasattr(item, "row_filters"):
        return (item.qualified_name, item.relkind, item.columns, len(item.row_filters))
    counts = {action: len(filters) for action, filters in item.filters.items()}
    return (item.source, item.target, item.publications, item.actions, counts, item.columns)


# --- the documentation's examples -------------------------------------------------------------------------------------


def test_examples_of_row_filters(publisher):
    """Several publications with and without filters: all the others are redundant beside one without."""
    publisher.execute("CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c));")
    publisher.execute("CREATE TABLE t2(d int, e int, f int, PRIMARY KEY(d));")
    publisher.execute("CREATE TABLE t3(g int, h int, i int, PRIMARY KEY(g));")
    text = """
        CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW');
        CREATE PUBLICATION p2 FOR TABLE t1, t2 WHERE (e = 99) WITH (publish = 'insert');
        CREATE PUBLICATION p3 FOR TABLE t2 WHERE (d = 10), t3 WHERE (g = 10);
    """
    routed = tables_of(publisher, text, "p1", "p2", "p3")
    assert entry_of(routed, "t1").filters == {
        "insert": (),
        "update": ("a > 5 AND c = 'NSW'",),
        "delete": ("a > 5 AND c = 'NSW'",),
    }
    assert entry_of(routed, "t1").copy_filters == ()
    assert entry_of(routed, "t2").filters == {
        "insert": ("e = 99", "d = 10"),
        "update": ("d = 10",),
        "delete": ("d = 10",),
    }
    assert entry_of(routed, "t2").copy_filters == ("e = 99", "d = 10")
    assert entry_of(routed, "t3").filters == dict.fromkeys(DML, ("g = 10",))


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


def test_example_of_column_lists(publisher):
    """Only the list's columns, in the table's order."""
    publisher.execute("CREATE TABLE t1(id int, a text, b text, c text, d text, e text, PRIMARY KEY(id));")
    routed = tables_of(publisher, "CREATE PUBLICATION p1 FOR TABLE t1 (id, b, a, d);", "p1")
    assert entry_of(routed, "t1").column_names == ("id", "a", "b", "d")
    (sent,) = Decoder(publisher).sent(["p1"], "INSERT INTO t1 VALUES (1, 'a-1', 'b-1', 'c-1', 'd-1', 'e-1')")
    assert sent == [Sent("insert", "public.t1", ("id", "a", "b", "d"))]


def test_examples_of_publish(publisher):
    """The copy asks for no action (section 29.2.2's pub3a and pub3b)."""
    publisher.execute("CREATE TABLE t3(id int PRIMARY KEY, e text)")
    text = """
        CREATE PUBLICATION pub3a FOR TABLE t3 WHERE (id > 1) WITH (publish = 'truncate');
        CREATE PUBLICATION pub3b FOR TABLE t3 WHERE (e > '5') WITH (publish = 'insert');
    """
    entry = entry_of(tables_of(publisher, text, "pub3a", "pub3b"), "t3")
    assert entry.actions == {"insert", "truncate"}
    assert entry.filters == {"insert": ("e > '5'",)}
    assert entry.copy_filters == ("id > 1", "e > '5'")


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public", "FOR TABLE t"])
def test_unfiltered_publication_wins(publisher, other):
    publisher.execute("CREATE TABLE t(a int PRIMARY KEY)")
    text = f"CREATE PUBLICATION p FOR TABLE t WHERE (a > 5); CREATE PUBLICATION q {other};"
    routed = tables_of(publisher, text, "p", "q")
    assert entry_of(routed, "t").filters == dict.fromkeys(DML, ())
    assert entry_of(routed, "t").copy_filters == ()


def test_schema_takes_the_filter_of_its_own_publication_away(publisher):
    publisher.execute("CREATE TABLE t(a int PRIMARY KEY)")
    text = "CREATE PUBLICATION p FOR TABLE t WHERE (a > 5), TABLES IN SCHEMA public;"
    assert entry_of(tables_of(publisher, text, "p"), "t").filters == dict.fromkeys(DML, ())


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


def test_attributes_are_matched_by_name(publisher):
    """The leaf has them in another order, with a dropped one among them."""
    publisher.execute(PARTITIONS)
    routed = tables_of(publisher, "CREATE PUBLICATION p FOR TABLE root (b, a) WITH (publish_via_partition_root)", "p")
    entry = entry_of(routed, "low")
    assert entry.relabelled
    assert entry.column_names == ("a", "b")
    assert entry.projection([column.name for column in entry.source.columns]) == (2, 1)
    with pytest.raises(PublicationError, match='does not carry column "b" of table "public.low"'):
        entry.projection(["a", "c"])


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


@pytest.mark.parametrize(
    "text",
    [
        "CREATE PUBLICATION p FOR TABLE plain (a, b); CREATE PUBLICATION q FOR TABLE plain (a, c)",
        "CREATE PUBLICATION p FOR TABLE plain (a, b); CREATE PUBLICATION q FOR TABLE plain",
        "CREATE PUBLICATION p FOR TABLE plain (a, b); CREATE PUBLICATION q FOR ALL TABLES",
    ],
)
def test_different_column_lists(publisher, text):
    """The server's error, when a change comes."""
    publisher.execute(PARTITIONS + text)
    with pytest.raises(PublicationError) as refused:
        routing(publisher, text)
    with pytest.raises(psycopg.Error) as error:
        Decoder(publisher).sent(["p", "q"], "INSERT INTO plain VALUES (1)")
    assert refused.value.args[0] == error.value.diag.message_primary


def test_list_of_all_columns_is_no_different_list(publisher):
    publisher.execute(PARTITIONS)
    text = "CREATE PUBLICATION p FOR TABLE plain (c, b, a); CREATE PUBLICATION q FOR TABLE plain"
    assert entry_of(tables_of(publisher, text, "p", "q"), "plain").column_names == ("a", "b", "c")


def generated(publisher: Publisher) -> None:
    if publisher.query("SELECT current_setting('server_version_num')::int")[0][0] < 180000:
        pytest.skip("publish_generated_columns needs PostgreSQL 18")
    publisher.execute(
        "CREATE TABLE g (a int PRIMARY KEY, s int GENERATED ALWAYS AS (a * 2) STORED,"
        " v int GENERATED ALWAYS AS (a * 3) VIRTUAL)"
    )


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("CREATE PUBLICATION p FOR TABLE g", ("a",)),
        ("CREATE PUBLICATION p FOR TABLE g WITH (publish_generated_columns = stored)", ("a", "s")),
        ("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_generated_columns = stored)", ("a", "s")),
        ("CREATE PUBLICATION p FOR TABLE g (a, s)", ("a", "s")),
        ("CREATE PUBLICATION p FOR TABLE g (a) WITH (publish_generated_columns = stored)", ("a",)),
    ],
)
def test_generated_columns(publisher, text, columns):
    """A column list goes before the parameter; a virtual column is never published."""
    generated(publisher)
    assert entry_of(tables_of(publisher, text, "p"), "g").column_names == columns
    (sent,) = Decoder(publisher).sent(["p"], "INSERT INTO g VALUES (1)")
    assert sent == [Sent("insert", "public.g", columns)]


def test_different_publish_generated_columns(publisher):
    generated(publisher)
    text = (
        "CREATE PUBLICATION p FOR TABLE g; CREATE PUBLICATION q FOR TABLE g WITH (publish_generated_columns = stored)"
    )
    publisher.execute(text)
    with pytest.raises(PublicationError) as refused:
        routing(publisher, text)
    with pytest.raises(psycopg.Error) as error:
        Decoder(publisher).sent(["p", "q"], "INSERT INTO g VALUES (1)")
    assert refused.value.args[0] == error.value.diag.message_primary


def test_truncate_of_a_leaf_under_a_published_root(publisher):
    """Is not replicated; that of the root is, and so is that of every leaf at once, which looks the same."""
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


def test_stream_of_roots(publisher):
    """What the stream has under a root's name goes only where all partitions go the same way."""
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


# --- any publications -------------------------------------------------------------------------------------------------

TREE = """
    CREATE SCHEMA s1; CREATE SCHEMA s2;
    CREATE TABLE s1.plain (id int PRIMARY KEY, a int, b int);
    CREATE TABLE s2.child (c int, PRIMARY KEY (id)) INHERITS (s1.plain);
    CREATE TABLE s1.root (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id);
    CREATE TABLE s2.mid PARTITION OF s1.root FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id);
    CREATE TABLE s1.low (b int, id int NOT NULL PRIMARY KEY, a int);
    ALTER TABLE s2.mid ATTACH PARTITION s1.low FOR VALUES FROM (0) TO (100);
    CREATE TABLE s2.high PARTITION OF s2.mid FOR VALUES FROM (100) TO (1000);
    CREATE TABLE s1.rest PARTITION OF s1.root DEFAULT;
"""
KEYS = {"s1.plain": (1, 200), "s2.child": (2, 201), "s1.low": (3, 40), "s2.high": (150, 250), "s1.rest": (1200, 1300)}
FILTERS = (None, None, "id > 100", "id < 50", "id <> 40")


def random_publication(draw: random.Random, name: str) -> Publication:
    """What CREATE PUBLICATION takes, over TREE's tables."""
    via_root = draw.random() < 0.5
    actions = frozenset(action for action in ACTIONS if draw.random() < 0.75)
    if draw.random() < 0.15:
        return Publication(name, all_tables=True, actions=actions, via_root=via_root)
    schemas = tuple(draw.sample(["s1", "s2"], draw.choice([0, 0, 0, 1])))
    tables = []
    for table in draw.sample([*KEYS, "s1.root", "s2.mid"], draw.randint(0, 4)):
        namespace, _, short = table.partition(".")
        plain = table in KEYS or via_root
        columns = ("a", "id") if plain and not schemas and draw.random() < 0.15 else None
        row_filter = draw.choice(FILTERS) if plain else None
        tables.append(PublicationTable(namespace, short, True, columns, row_filter))
    return Publication(name, tuple(tables), schemas, actions=actions, via_root=via_root)


def expected(routed: Routing, name: str, action: str, key: int) -> list[Sent]:
    entry = routed.entry(relation(routed, name))
    if entry is None or action not in entry.actions:
        return []
    filters = entry.filters[action]
    if filters and not any(eval(text.replace("<>", "!="), {"id": key}) for text in filters):
        return []
    return [Sent(action, entry.target.qualified_name, entry.column_names)]


def test_any_publications_send_what_is_worked_out(publisher):
    """Random publications on a tree of partitions and an inheritor: every statement's changes, and the targets."""
    publisher.execute(TREE)
    decoder = Decoder(publisher)
    draw = random.Random(20_05)
    conflicts = 0
    for _ in range(25):
        publications = [random_publication(draw, name) for name in ("p", "q", "r")[: draw.randint(1, 3)]]
        names = [publication.name for publication in publications]
        text = render(publications)
        publisher.execute(text)
        try:
            routed = routing(publisher, text)
        except PublicationError:
            conflicts += 1
            with pytest.raises(PublisherError, match="cannot use different column lists"):
                own_tables(publisher, *names)
        else:
            assert [without_filters(table) for table in routed.tables()] == [
                without_filters(table) for table in own_tables(publisher, *names)
            ]
            check_changes(decoder, routed, names)
        publisher.execute("TRUNCATE s1.root, s1.plain; DROP PUBLICATION " + ", ".join(names))
        decoder.skip()
    assert conflicts < 10


def check_changes(decoder: Decoder, routed: Routing, names: list[str]) -> None:
    statements = {}
    for name, keys in KEYS.items():
        for key in keys:
            statements[f"INSERT INTO {name} (id) VALUES ({key})"] = (name, "insert", key)
            statements[f"UPDATE ONLY {name} SET a = 1 WHERE id = {key}"] = (name, "update", key)
        statements[f"DELETE FROM ONLY {name} WHERE id = {keys[0]}"] = (name, "delete", keys[0])
    truncates = [*KEYS, "s2.mid", "s1.root"]
    sent = decoder.sent(names, *statements, *(f"TRUNCATE {name}" for name in truncates))
    for (statement, change), found in zip(statements.items(), sent, strict=False):
        assert found == expected(routed, *change), statement
    for name, found in zip(truncates, sent[len(statements) :], strict=True):
        # A broad publication of partitions sends the leaves, and of an inheritance parent also the children.
        table = relation(routed, name)
        named = [item for item in (table, *routed.relations.inheritors(table)) if item.relkind == "r"]
        emptied = {item.qualified_name for item in routed.truncated(named)}
        assert emptied == {item.relation for item in found}, f"TRUNCATE {name}"

"""Routes by re-applied definitions, on a real server's tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgbridge.bridge.batch.reapplied_routes import ReappliedRoutes
from pgbridge.bridge.lake.changes.verdicts import EntryFilterCompiler
from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.receive.publications import read_relations
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.rowfilter.row_filter import RowFilterError
from pgbridge.bridge.runtime.errors import NeedsResync
from pgbridge.protocol.codec.messages import Column, Relation
from pgbridge.protocol.lsn import Lsn
from pgbridge.protocol.values.types import resolve
from tests.bridge.batch.test_routes import by_name

SCHEMA = """
CREATE TABLE t (id int PRIMARY KEY, n int, note text COLLATE "en-x-icu");
CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE other (id int PRIMARY KEY)
"""


def types(wanted):
    return [resolve(oid, typmod, {}) for oid, typmod in wanted]


@pytest.fixture
def server(publisher):
    """A server with the tables."""
    publisher.execute(SCHEMA.replace(' COLLATE "en-x-icu"', ""))
    return publisher


def relation(server, name: str) -> Relation:
    query = "SELECT %s::regclass::oid::int, attname, atttypid::int FROM pg_attribute WHERE attrelid = %s::regclass"
    rows = server.query(query + " AND attnum > 0 ORDER BY attnum", (name, name))
    columns = tuple(Column(column, oid, -1, is_key=column == "id") for _, column, oid in rows)
    return Relation(rows[0][0], "public", name, "d", columns)


def routes(server, text: str, *names: str) -> tuple[ReappliedRoutes, list[int]]:
    """Make routes by definitions, and a list that grows each time the catalog is read."""
    publications = parse(text, "x.sql")
    looks: list[int] = []

    def look() -> Routing:
        looks.append(len(looks))
        with Publisher(server.conninfo, application_name="test") as publisher:
            return Routing(publications, read_relations(publisher), missing_ok=True)

    routing = look()
    made = ReappliedRoutes(by_name(*names), routing, EntryFilterCompiler(types, None, routing.relations.encoding), look)
    looks.clear()
    return made, looks


def test_definitions_restrict(server):
    """Actions, columns and filters are the file's; changes of a table that the file lacks are ignored."""
    made, looks = routes(
        server,
        "CREATE PUBLICATION p FOR TABLE t (id, note) WHERE (id > 5) WITH (publish = 'insert, delete')",
        "t",
        "other",
    )
    found = made.route(relation(server, "t"))
    assert found is not None
    assert found.actions == {"insert", "delete"}
    assert found.columns == frozenset({"id", "note"})
    assert found.filters is not None
    assert (found.filters.insert is not None, found.filters.update) == (True, None)
    assert found.filters.columns == {"id"}
    assert (found.target, found.lsn) == (made.subscribed["public", "t"].target, Lsn(7))
    assert made.route(relation(server, "other")) is None
    assert made.truncated([relation(server, "t")]) == []
    assert looks == []


def test_a_partition_goes_to_its_root(server):
    text = "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    made, _ = routes(server, text, "root")
    found = made.route(relation(server, "leaf"))
    assert found is not None
    assert found.target.name == "root"
    assert [s.target.name for s in made.truncated([relation(server, "root"), relation(server, "leaf")])] == ["root"]


def test_a_table_that_was_renamed(server):
    """The stream's name decides, whatever the catalog has; for a root, the catalog's name does."""
    everything = "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)"
    before = {name: relation(server, name) for name in ("t", "leaf", "root")}

    def of(text):
        made, _ = routes(server, text)
        made.subscribed = by_name("t", "root")
        made.names = {before[name].relation_id: ("public", name) for name in ("t", "root")}
        return made

    assert of(everything).renamed_table(before["leaf"]) is None
    server.execute("CREATE SCHEMA s; ALTER TABLE t RENAME TO new; ALTER TABLE root SET SCHEMA s")
    made = of(everything)
    found = made.route(before["t"])
    assert found is not None
    assert (found.target.name, made.renamed_table(before["t"])) == ("t", None)
    for text in (everything, "CREATE PUBLICATION p FOR TABLE other"):  # also if the definitions do not have the table
        made = of(text)
        for message, name in (
            (replace(before["t"], name="new"), "public.new"),
            (before["leaf"], "s.root"),
            (replace(before["root"], namespace="s"), "s.root"),
        ):
            renamed = made.renamed_table(message)
            assert renamed is not None
            assert renamed.error.message == f'logical replication target relation "{name}" does not exist'
            assert renamed.lsn == Lsn(7)


def test_what_is_truncated_goes_on_as_published(server):
    """Rows after the TRUNCATE have the same filter, column list and actions as rows before it."""
    text = (
        "CREATE PUBLICATION p FOR TABLE t (id, note) WHERE (id > 5);"
        "CREATE PUBLICATION q FOR TABLE root WHERE (id > 5) WITH (publish_via_partition_root)"
    )
    made, _ = routes(server, text, "t", "root")
    table, leaf = relation(server, "t"), relation(server, "leaf")
    assert made.truncated([table]) == [made.route(table)]
    assert made.truncated([leaf]) == [made.route(leaf)]


def test_a_partition_that_comes_later_is_looked_for_once(server):
    made, looks = routes(server, "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)", "root")
    server.execute("CREATE TABLE later PARTITION OF root FOR VALUES FROM (10) TO (20)")
    for _ in range(2):
        found = made.route(relation(server, "later"))
        assert found is not None
        assert found.target.name == "root"
    assert len(looks) == 1


def test_a_dropped_table_is_what_its_message_says(server):
    """It is no longer in a publication; the stream goes on."""
    made, looks = routes(server, "CREATE PUBLICATION p FOR TABLE t", "t")
    assert made.route(Relation(4_000_000, "public", "dropped", "d", (Column("id", 23, -1, is_key=True),))) is None
    assert len(looks) == 1


def test_a_column_that_the_stream_does_not_carry(server):
    known = relation(server, "t")
    fewer = Relation(known.relation_id, "public", "t", "d", known.columns[:2])
    made, _ = routes(server, "CREATE PUBLICATION p FOR TABLE t (id, note)", "t")
    with pytest.raises(NeedsResync, match='does not carry column "note"'):
        made.route(fewer)
    made, _ = routes(server, "CREATE PUBLICATION p FOR TABLE t WHERE (note = 'a') WITH (publish = 'insert')", "t")
    with pytest.raises(NeedsResync, match='does not carry column "note" of table "public.t", which a row filter'):
        made.route(fewer)


def test_without_a_column_list_columns_are_the_streams(server):
    """The catalog may be ahead of the stream, or have been read before an ALTER TABLE that the stream has."""
    server.execute("ALTER TABLE t ADD doubled int GENERATED ALWAYS AS (id * 2) STORED")
    made, _ = routes(server, "CREATE PUBLICATION p FOR TABLE t", "t")
    known = relation(server, "t")
    for columns in (known.columns[:2], known.columns, (*known.columns, Column("later", 23, -1, is_key=False))):
        found = made.route(Relation(known.relation_id, "public", "t", "d", columns))
        assert found is not None
        assert found.columns == frozenset(column.name for column in columns) - {"doubled"}


def identified(known: Relation, identity: str, *key: str) -> Relation:
    """A definition with another replica identity."""
    columns = tuple(replace(column, is_key=identity == "f" or column.name in key) for column in known.columns)
    return replace(known, replica_identity=identity, columns=columns)


def test_what_the_identity_does_not_carry(server):
    """The stream's replica identity decides: the catalog's may be another through lag, or by an ALTER TABLE."""
    made, looks = routes(server, "CREATE PUBLICATION p FOR TABLE t WHERE (n > 5)", "t")
    known = relation(server, "t")

    def refused(message: Relation) -> list[str]:
        return [refusal.message("DELETE") for refusal in made.identity_refusals(message, lambda _: None)]

    def expected(name: str) -> list[str]:
        detail = "Column used in the publication WHERE expression is not part of the replica identity."
        return [f'cannot delete from table "{name}"\nDETAIL:  {detail}']

    by_n, full = identified(known, "i", "n"), identified(known, "f")
    assert refused(known) == expected("t")
    assert refused(by_n) == refused(full) == []
    server.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    made.reread_catalog()
    assert refused(known) == expected("t")
    assert refused(full) == []
    assert looks == [0]


def test_partitions_under_their_roots_name_have_identities_of_their_own(server):
    """The root's does not tell what old tuples have; the stream announces each partition's before its first change."""
    server.execute("ALTER TABLE root ADD n int")
    text = "CREATE PUBLICATION p FOR TABLE root WHERE (n > 5) WITH (publish_via_partition_root)"
    made, _ = routes(server, text, "root")
    root, leaf = relation(server, "root"), relation(server, "leaf")

    def refused(message: Relation, *announced: Relation) -> list[str]:
        known = {one.relation_id: one for one in announced}
        return [refusal.table for refusal in made.identity_refusals(message, known.get)]

    assert refused(root, root, identified(leaf, "f")) == []
    assert refused(identified(root, "f"), root, leaf) == ["leaf"]
    assert refused(root, root) == []
    assert refused(leaf) == ["leaf"]
    server.execute("ALTER TABLE root DETACH PARTITION leaf")
    made.reread_catalog()
    assert refused(root) == ["root"]


def test_a_filter_that_cannot_be_exact_is_refused_at_once(server):
    with pytest.raises(RowFilterError, match="n / 0.5"):
        routes(server, "CREATE PUBLICATION p FOR TABLE t WHERE (n / 0.5 > 1)", "t")

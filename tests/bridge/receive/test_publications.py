"""The server's own publications, and what applies to a stream of them."""

from __future__ import annotations

import pytest

from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.publication import render
from pgbridge.bridge.receive.publications import apply_publications, read_publications
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.bridge.runtime.errors import PublicationError, PublisherError
from tests.bridge.publication.server_publications import own_publications
from tests.bridge.receive.catalog_19 import CATALOG, publisher_of_19


def test_publications_of_the_server(publisher):
    """Written as statements, they make the same publications: `pgbridge publications --dump`."""
    publisher.execute(
        'CREATE SCHEMA "S 1"; CREATE TABLE "S 1"."T" ("A b" int PRIMARY KEY, c text);'
        "CREATE TABLE up (a int PRIMARY KEY); CREATE TABLE down (PRIMARY KEY (a)) INHERITS (up);"
        "CREATE TABLE root (a int PRIMARY KEY, b int) PARTITION BY RANGE (a)"
    )
    publisher.execute(
        """
        CREATE PUBLICATION one FOR TABLE "S 1"."T" (c, "A b") WHERE ("A b" > 5 AND c LIKE E'it''s \\\\ %'), up;
        CREATE PUBLICATION "Two" FOR TABLES IN SCHEMA "S 1", TABLE up WHERE (a > 1) WITH (publish = 'insert, delete');
        CREATE PUBLICATION three FOR ALL TABLES WITH (publish = '');
        CREATE PUBLICATION four FOR TABLE root (a) WHERE (a <> 1) WITH (publish_via_partition_root);
        CREATE PUBLICATION five;
        """
    )
    wanted = ["one", "Two", "three", "four", "five"]
    own = own_publications(publisher, *wanted)
    assert [publication.name for publication in own] == wanted
    text = render(own)
    assert parse(text, "dump.sql") == own
    for publication in wanted:
        publisher.execute(f'DROP PUBLICATION "{publication}"')
    publisher.execute(text)
    assert own_publications(publisher, *wanted) == own


def test_publication_that_does_not_exist(publisher):
    publisher.execute("CREATE PUBLICATION q")
    with Server(publisher.conninfo, application_name="test") as server:
        server.version = 180000
        assert [publication.name for publication in read_publications(server, ["p", "q"])] == ["q"]
        server.version = 170000
        with pytest.raises(PublisherError, match='publication "p" does not exist on the publisher'):
            read_publications(server, ["p"])


def test_what_applies(publisher):
    """The definitions go by the tables that the server has now."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE PUBLICATION broad FOR TABLE t")
    definitions = parse("CREATE PUBLICATION p FOR TABLE t WHERE (a > 5), gone", "f.sql")
    with Server(publisher.conninfo, application_name="test") as server:
        alone = apply_publications(server, ["broad"], None)
        assert alone.routing is alone.stream
        with pytest.raises(PublicationError, match=r'f.sql:1:\d+: relation "public.gone" does not exist'):
            apply_publications(server, ["broad"], definitions)
        applied = apply_publications(server, ["broad"], definitions, missing_ok=True)
    assert [table.row_filters for table in applied.routing.tables()] == [("a > 5",)]
    assert list(applied.stream.targets) == [("public", "t")]


SINCE_19 = """
    CREATE TABLE kept (id serial PRIMARY KEY);
    CREATE TABLE secret (id int PRIMARY KEY);
    CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
    CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE mid PARTITION OF root DEFAULT PARTITION BY RANGE (id);
    CREATE TABLE leaf PARTITION OF mid DEFAULT;
    CREATE TABLE tree (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE twig PARTITION OF tree DEFAULT;
    CREATE PUBLICATION leaves FOR ALL TABLES;
    CREATE PUBLICATION roots FOR ALL TABLES WITH (publish_via_partition_root, publish = 'insert');
    CREATE PUBLICATION back FOR TABLE secret WHERE (id > 5);
    CREATE PUBLICATION sequences;
    INSERT INTO pg19.all_sequences VALUES ('leaves'), ('sequences');
    INSERT INTO pg19.excepted VALUES ('leaves', 'secret'::regclass), ('leaves', 'root'::regclass),
        ('leaves', 'excepted'::regclass), ('leaves', 'all_sequences'::regclass),
        ('roots', 'secret'::regclass), ('roots', 'parent'::regclass), ('roots', 'child'::regclass),
        ('roots', 'excepted'::regclass), ('roots', 'all_sequences'::regclass);
"""


@pytest.mark.parametrize(
    ("names", "targets"),
    [
        (["leaves"], ["child", "kept", "parent", "twig"]),
        (["roots"], ["kept", "root", "tree"]),
        (["leaves", "roots"], ["child", "kept", "parent", "root", "tree"]),
        (["leaves", "back"], ["child", "kept", "parent", "secret", "twig"]),
        (["sequences"], []),
    ],
)
def test_publications_of_19(publisher, names, targets):
    """What EXCEPT leaves out is no member, sequences are no tables, and a dump makes just the same publications."""
    if publisher.query("SELECT current_setting('server_version_num')::int")[0][0] < 160000:
        pytest.skip("pg_get_publication_tables takes one publication at a time before 16")
    publisher.execute(CATALOG)
    publisher.execute(f"SET search_path = public, pg19; {SINCE_19}")
    with publisher_of_19(publisher.conninfo) as server:
        applied = apply_publications(server, names, None)
        own = read_publications(server, names)
        dumped = parse(render(own), "dump.sql")
        again = apply_publications(server, names, dumped)
        tables = server.tables(names)
    assert [entry.target.name for entry in applied.routing.targets.values()] == targets
    assert applied.routing.tables() == tables  # what the server lists for the copy is what is worked out
    assert dumped == own
    assert not any(gap.fatal for gap in again.gaps)
    assert again.refusals == applied.refusals
    for relation in again.routing.relations.publishable:
        assert again.routing.entry(relation) == applied.stream.entry(relation), relation.name


def test_definitions_that_want_what_the_server_excludes(publisher):
    publisher.execute(CATALOG)
    publisher.execute(f"SET search_path = public, pg19; {SINCE_19}")
    wanted = parse("CREATE PUBLICATION p FOR TABLE kept, secret, root", "f.sql")
    with publisher_of_19(publisher.conninfo) as server:
        applied = apply_publications(server, ["leaves"], wanted)
    assert [gap.message for gap in applied.gaps] == [
        'no publication on the server publishes table "public.leaf"',
        'no publication on the server publishes table "public.secret"',
    ]
    assert not any(gap.fatal for gap in applied.gaps)


def test_a_slot_of_19(publisher):
    """The reason means nothing on a primary; the slot can be used there."""
    publisher.execute(CATALOG)
    publisher.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (publisher.name,))
    with publisher_of_19(publisher.conninfo) as server:
        status = server.slot(publisher.name)
    assert status is not None
    assert (status.slotsync_skip_reason, status.synced, status.invalidation_reason) == ("wal_not_flushed", False, None)

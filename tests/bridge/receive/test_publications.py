"""The server's own publications, and what applies to a stream of them."""

from __future__ import annotations

import pytest

from bridge.errors import PublicationError, PublisherError
from bridge.publication.definitions import parse
from bridge.publication.publication import render
from bridge.receive.publications import apply_publications, read_publications
from bridge.receive.publisher import Publisher as Server
from tests.bridge.publication.server_publications import own_publications


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

"""The members of publications, and refusals in the words of the server."""

from __future__ import annotations

import psycopg
import pytest

from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.membership import resolve
from pgbridge.bridge.runtime.errors import PublicationError
from tests.bridge.publication.server_publications import members, own_publications, routing

TABLES = """
    CREATE TABLE t (a int PRIMARY KEY, b int, g int GENERATED ALWAYS AS (a) STORED);
    CREATE TABLE up (a int PRIMARY KEY, b int);
    CREATE TABLE down (PRIMARY KEY (a)) INHERITS (up);
    CREATE TABLE deep (PRIMARY KEY (a)) INHERITS (down);
    CREATE TABLE root (a int PRIMARY KEY, b int) PARTITION BY RANGE (a);
    CREATE TABLE leaf PARTITION OF root DEFAULT;
    CREATE UNLOGGED TABLE fleeting (a int);
    CREATE VIEW v AS SELECT 1 AS a;
    CREATE SEQUENCE s;
    CREATE MATERIALIZED VIEW m AS SELECT 1 AS a;
    CREATE TEMPORARY TABLE passing (a int);
    CREATE FOREIGN DATA WRAPPER none;
    CREATE SERVER nowhere FOREIGN DATA WRAPPER none;
    CREATE FOREIGN TABLE far (a int) SERVER nowhere;
"""


@pytest.mark.parametrize(
    "text",
    [
        "CREATE PUBLICATION p FOR TABLE nothing",
        "CREATE PUBLICATION p FOR TABLE v",
        "CREATE PUBLICATION p FOR TABLE m",
        "CREATE PUBLICATION p FOR TABLE fleeting",
        "CREATE PUBLICATION p FOR TABLE far",
        "CREATE PUBLICATION p FOR TABLE pg_temp.passing",
        "CREATE PUBLICATION p FOR TABLE pg_catalog.pg_class",
        "CREATE PUBLICATION p FOR TABLE nowhere.t",
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA nowhere",
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA pg_catalog",
        "CREATE PUBLICATION p FOR TABLE t (a, z)",
        "CREATE PUBLICATION p FOR TABLE t (a, ctid)",
        "CREATE PUBLICATION p FOR TABLE root WHERE (a > 1)",
        "CREATE PUBLICATION p FOR TABLE root (a)",
        "CREATE PUBLICATION p FOR TABLE up WHERE (a > 1), down",
        "CREATE PUBLICATION p FOR TABLE up, down WHERE (a > 1)",
        "CREATE PUBLICATION p FOR TABLE deep, up (a)",
    ],
)
def test_refused_in_the_servers_words(publisher, text):
    publisher.execute(TABLES)
    with pytest.raises(psycopg.Error) as error:
        publisher.execute(text)
    with pytest.raises(PublicationError) as refused:
        routing(publisher, text)
    message, _, detail = str(refused.value).partition("\nDETAIL:  ")
    place, _, message = message.partition(": ")
    assert place.startswith("f.sql:1:")
    said = error.value.diag
    # the server writes a name as the statement has it, the bridge always with its schema
    assert message.replace("public.", "") == (said.message_primary or "").replace("public.", "")
    assert (said.message_detail or "") == detail


@pytest.mark.parametrize(
    "text",
    [
        "CREATE PUBLICATION p FOR TABLE up",
        "CREATE PUBLICATION p FOR TABLE ONLY up, t",
        "CREATE PUBLICATION p FOR TABLE up *, down",
        "CREATE PUBLICATION p FOR TABLE up (a) WHERE (b > 1 OR a > 0), root",
        "CREATE PUBLICATION p FOR TABLE ONLY up WHERE (a > 1), down",
        "CREATE PUBLICATION p FOR TABLE root (a, b), leaf WHERE (a > 1) WITH (publish_via_partition_root)",
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public, TABLE t",
    ],
)
def test_members_are_the_servers(publisher, text):
    """With inheritors, which get the filter and the list of the table that is named."""
    publisher.execute(TABLES + text)
    (member,) = routing(publisher, text).memberships
    (own,) = own_publications(publisher, "p")
    found = {table.qualified_name: table for table in member.tables.values()}
    assert {name: (table.columns and set(table.columns), bool(table.row_filter)) for name, table in found.items()} == {
        name: (table.columns and set(table.columns), bool(table.row_filter)) for name, table in members(own).items()
    }
    assert member.publication.schemas == own.schemas


EXCEPTED = {
    "t": {"t"},
    "up": {"up", "down", "deep"},
    "up *": {"up", "down", "deep"},
    "ONLY up": {"up"},
    "ONLY up, down": {"up", "down", "deep"},
    "root": {"root"},
    "t, t, ONLY t": {"t"},
}


def test_excluded_tables(publisher):
    """`OpenTableList` of PostgreSQL 19 opens EXCEPT's tables as FOR TABLE's: with inheritors, without partitions."""
    publisher.execute(TABLES)
    for excepted, names in EXCEPTED.items():
        (member,) = routing(publisher, f"CREATE PUBLICATION p FOR ALL TABLES EXCEPT (TABLE {excepted})").memberships
        (listed,) = routing(publisher, f"CREATE PUBLICATION p FOR TABLE {excepted}").memberships
        assert member.excluded == listed.tables.keys(), excepted
        assert {table.name for table in listed.tables.values()} == names
        assert not member.tables


NOT_EXCEPTED = {
    "leaf": "individual partitions",
    "v": "views",
    "s": "sequences",
    "fleeting": "unlogged tables",
    "far": "foreign tables",
}


def test_refused_exceptions(publisher):
    """In the words of PostgreSQL 19's check_publication_add_relation; above all a name that is no table's."""
    publisher.execute(TABLES)
    messages = {
        name: f'cannot use publication EXCEPT clause for relation "{name}"\n'
        f"DETAIL:  This operation is not supported for {kind}."
        for name, kind in NOT_EXCEPTED.items()
    }
    for name, message in {**messages, "secert": 'relation "public.secert" does not exist'}.items():
        with pytest.raises(PublicationError) as refused:
            routing(publisher, f"CREATE PUBLICATION p FOR ALL TABLES EXCEPT (TABLE t, {name})")
        assert str(refused.value) == f"f.sql:1:54: {message}"


def test_missing_tables_may_be_passed_over(publisher):
    """As after DROP TABLE, which takes a table out of its publications."""
    publisher.execute(TABLES)
    routed = routing(publisher, "CREATE PUBLICATION p FOR TABLE t")
    (publication,) = parse("CREATE PUBLICATION p FOR TABLE t, gone, TABLES IN SCHEMA nowhere", "f.sql")
    member = resolve(publication, routed.relations, missing_ok=True)
    assert [table.name for table in member.tables.values()] == ["t"]
    (publication,) = parse("CREATE PUBLICATION p FOR TABLE v", "f.sql")
    with pytest.raises(PublicationError, match="not supported for views"):
        resolve(publication, routed.relations, missing_ok=True)

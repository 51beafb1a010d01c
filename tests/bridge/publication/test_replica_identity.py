"""Filters and lists against the replica identity: what the server refuses of UPDATE and DELETE, in its words."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from pgbridge.bridge.publication.replica_identity import column_names, refusals, refusals_of
from pgbridge.bridge.publication.routing import Routing
from pgbridge.bridge.publication.tables import with_replica_identity
from pgbridge.protocol.codec.messages import Column, Relation
from tests.bridge.publication.server_publications import relation, routing

TABLES = """
    CREATE TABLE t (a int PRIMARY KEY, b int, c int);
    CREATE TABLE f (a int PRIMARY KEY, b int, c int); ALTER TABLE f REPLICA IDENTITY FULL;
    CREATE TABLE i (a int PRIMARY KEY, b int NOT NULL UNIQUE, c int);
    ALTER TABLE i REPLICA IDENTITY USING INDEX i_b_key;
    CREATE TABLE n (a int, b int, c int);
    CREATE TABLE root (a int, b int, c int, PRIMARY KEY (a)) PARTITION BY RANGE (a);
    CREATE TABLE leaf (c int, b int, a int NOT NULL PRIMARY KEY);
    ALTER TABLE root ATTACH PARTITION leaf DEFAULT;
    INSERT INTO t VALUES (1); INSERT INTO f VALUES (1); INSERT INTO i VALUES (1, 1); INSERT INTO root VALUES (1);
"""
VIA_ROOT = "WITH (publish_via_partition_root)"


@pytest.mark.parametrize(
    ("objects", "table"),
    [
        ("t WHERE (a > 1)", None),
        ("t WHERE (a > 1 AND b > 1)", "t"),
        ("t WHERE (b IS NULL) WITH (publish = 'insert')", None),
        ("t WHERE (b IS NULL) WITH (publish = 'insert, delete')", "t"),
        ("t WHERE (b IS NULL) WITH (publish = 'insert, update')", "t"),
        ("t (a, b)", None),
        ("t (b)", "t"),
        ("t (b) WITH (publish = 'insert, truncate')", None),
        ("f WHERE (c > 1)", None),
        ("f (a, b, c)", "f"),
        ("f", None),
        ("i WHERE (b > 1)", None),
        ("i WHERE (a > 1)", "i"),
        ("i (a, b)", None),
        ("i (a, c)", "i"),
        (f"root WHERE (a > 1) {VIA_ROOT}", None),
        (f"root WHERE (c > 1) {VIA_ROOT}", "leaf"),
        (f"root (a, c) {VIA_ROOT}", None),
        (f"root (b, c) {VIA_ROOT}", "leaf"),
        (f"root WHERE (a > 1), leaf WHERE (c > 1) {VIA_ROOT}", None),
        ("root, leaf WHERE (c > 1)", "leaf"),
        ("leaf (b)", "leaf"),
    ],
)
def test_against_the_servers_own_refusal(publisher, objects, table):
    """The refusal of UPDATE, or of DELETE if UPDATE is not published, has the server's message and detail."""
    publisher.execute(TABLES)
    text = f"CREATE PUBLICATION p FOR TABLE {objects}"
    routed = routing(publisher, text)
    publisher.execute(text)
    changed = table or objects.split()[0]
    command = "UPDATE" if "delete" not in objects.split("publish =")[-1] else "DELETE"
    statement = f"UPDATE {changed} SET c = 1" if command == "UPDATE" else f"DELETE FROM {changed}"
    if table is None:
        publisher.execute(statement)
        assert refusals(routed) == []
        return
    with pytest.raises(psycopg.Error) as error:
        publisher.execute(statement)
    (refusal,) = refusals_of(routed, relation(routed, table))
    assert refusal in refusals(routed)
    assert refusal.message(command) == f"{error.value.diag.message_primary}\nDETAIL:  {error.value.diag.message_detail}"
    assert command in refusal.commands
    assert refusal.place.startswith("f.sql:1:")
    assert str(error.value.diag.message_detail) in refusal.warning


def test_the_identity_is_the_streams(publisher):
    """Which may lag behind the catalog: what old tuples carried then decides."""
    publisher.execute(TABLES)
    routed = routing(publisher, "CREATE PUBLICATION p FOR TABLE f WHERE (c > 1), t WHERE (a > 1), i WHERE (b > 1)")
    assert refusals(routed) == []

    def refused(name: str, identity: str, *key: str) -> list[str]:
        columns = tuple(Column(column, 23, -1, is_key=column in key) for column in "abc")
        message = Relation(1, "public", name, identity, columns)
        return [
            refusal.message("DELETE")
            for refusal in refusals_of(routed, with_replica_identity(relation(routed, name), message))
        ]

    assert refused("f", "f", *"abc") == refused("f", "i", "a", "c") == []
    (message,) = refused("f", "d", "a")
    assert message.splitlines() == [
        'cannot delete from table "f"',
        "DETAIL:  Column used in the publication WHERE expression is not part of the replica identity.",
    ]
    assert refused("t", "d", "a") == refused("t", "f", *"abc") == refused("i", "i", "b") == []
    assert len(refused("t", "i", "b")) == len(refused("i", "d", "a")) == len(refused("t", "n")) == 1


def test_table_without_identity_is_the_servers_business(publisher):
    """The server itself refuses the UPDATE, with and without filters; INSERTs go on."""
    publisher.execute(TABLES)
    assert refusals(routing(publisher, "CREATE PUBLICATION p FOR TABLE n WHERE (b > 1)")) == []


def test_generated_columns_in_the_identity(publisher):
    """From PostgreSQL 18 on, whose publications can have them."""
    publisher.execute("CREATE TABLE g (a int PRIMARY KEY, s int GENERATED ALWAYS AS (a) STORED)")
    publisher.execute("ALTER TABLE g REPLICA IDENTITY FULL; INSERT INTO g VALUES (1)")
    text = "CREATE PUBLICATION p FOR TABLE g"

    def details(text: str, version: int) -> list[str]:
        routed = routing(publisher, text)
        publications = [member.publication for member in routed.memberships]
        return [
            refusal.detail for refusal in refusals(Routing(publications, replace(routed.relations, version=version)))
        ]

    assert details(text, 170000) == details(f"{text} WITH (publish_generated_columns = stored)", 180000) == []
    assert details(text, 180000) == ["Replica identity must not contain unpublished generated columns."]
    if publisher.query("SELECT current_setting('server_version_num')::int")[0][0] >= 180000:
        publisher.execute(text)
        with pytest.raises(psycopg.Error) as error:
            publisher.execute("UPDATE g SET a = 2")
        assert [error.value.diag.message_detail] == details(text, 180000)


def test_a_column_that_is_named_like_a_command(publisher):
    """`comment`, `show`, `load`, `set`, … may begin a statement; in a filter they are columns."""
    publisher.execute("CREATE TABLE c (id int PRIMARY KEY, comment text); INSERT INTO c VALUES (1)")
    text = "CREATE PUBLICATION p FOR TABLE c WHERE (comment = 'keep')"
    routed = routing(publisher, text)
    publisher.execute(text)
    with pytest.raises(psycopg.Error, match="not part of the replica identity") as error:
        publisher.execute("UPDATE c SET id = 2")
    assert [refusal.detail for refusal in refusals(routed)] == [error.value.diag.message_detail]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("a > 5 AND C = 'x'", {"a", "c"}),
        ('"A b" > t.b -- c > 1\n', {"A b", "b"}),
        ("((a > 5) AND (c = 'NSW'::text))", {"a", "c"}),
        ("coalesce(a, lower(b)) IN ('x') OR c IS DISTINCT FROM d", {"a", "b", "c", "d"}),
        ("(c ->> 'k') = ANY (ARRAY['a'::text])", {"c"}),
        ("comment = 'keep'", {"comment"}),
        ("show > 1 AND load < set", {"show", "load", "set"}),
        ("(a, b) = (c, 1) AND d = ANY (e) OR CASE WHEN f THEN g ELSE h END", set("abcdefgh")),
        ("a::text COLLATE \"C\" = 'x' AND NOT (b IS NULL)", {"a", "b"}),
        ('B\'1\' = A AND "Q""q" > 5 AND ø = 1', {"a", "and", 'Q"q', "ø"}),  # not read: each of its words
    ],
)
def test_column_names(expression, names):
    assert column_names(expression) == names

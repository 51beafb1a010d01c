"""Filters and lists against the replica identity: refused where the server refuses the UPDATE or DELETE."""

from __future__ import annotations

import psycopg
import pytest

from bridge.errors import PublicationError
from bridge.filter.identity import check_identity, column_names
from tests.bridge.filter.servers import routing

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
    """Of UPDATE where that is published, else of DELETE; the message and the detail are the server's."""
    publisher.execute(TABLES)
    text = f"CREATE PUBLICATION p FOR TABLE {objects}"
    routed = routing(publisher, text)
    publisher.execute(text)
    version = publisher.query("SELECT current_setting('server_version_num')::int")[0][0]
    changed = table or objects.split()[0]
    update = "delete" not in objects.split("publish =")[-1]
    statement = f"UPDATE {changed} SET c = 1" if update else f"DELETE FROM {changed}"
    if table is None:
        publisher.execute(statement)
        check_identity(routed, version)
        return
    with pytest.raises(psycopg.Error) as error:
        publisher.execute(statement)
    with pytest.raises(PublicationError) as refused:
        check_identity(routed, version)
    place, _, message = str(refused.value).partition("\nHINT:")[0].partition(": ")
    assert place.startswith("f.sql:1:")
    assert message == f"{error.value.diag.message_primary}\nDETAIL:  {error.value.diag.message_detail}"


def test_table_without_identity_is_the_servers_business(publisher):
    """It refuses the UPDATE itself, whoever filters; INSERTs go on."""
    publisher.execute(TABLES)
    check_identity(routing(publisher, "CREATE PUBLICATION p FOR TABLE n WHERE (b > 1)"), 180000)


def test_generated_columns_in_the_identity(publisher):
    """From PostgreSQL 18 on, whose publications can have them."""
    publisher.execute("CREATE TABLE g (a int PRIMARY KEY, s int GENERATED ALWAYS AS (a) STORED)")
    publisher.execute("ALTER TABLE g REPLICA IDENTITY FULL; INSERT INTO g VALUES (1)")
    text = "CREATE PUBLICATION p FOR TABLE g"
    routed = routing(publisher, text)
    check_identity(routed, 170000)
    check_identity(routing(publisher, f"{text} WITH (publish_generated_columns = stored)"), 180000)
    with pytest.raises(PublicationError) as refused:
        check_identity(routed, 180000)
    if publisher.query("SELECT current_setting('server_version_num')::int")[0][0] >= 180000:
        publisher.execute(text)
        with pytest.raises(psycopg.Error) as error:
            publisher.execute("UPDATE g SET a = 2")
        assert f"{error.value.diag.message_primary}\nDETAIL:  {error.value.diag.message_detail}" in str(refused.value)


def test_a_column_that_is_named_like_a_command(publisher):
    """`comment`, `show`, `load`, `set`, … may begin a statement; in a filter they are columns."""
    publisher.execute("CREATE TABLE c (id int PRIMARY KEY, comment text); INSERT INTO c VALUES (1)")
    text = "CREATE PUBLICATION p FOR TABLE c WHERE (comment = 'keep')"
    routed = routing(publisher, text)
    publisher.execute(text)
    with pytest.raises(psycopg.Error, match="not part of the replica identity"):
        publisher.execute("UPDATE c SET id = 2")
    with pytest.raises(PublicationError, match="not part of the replica identity"):
        check_identity(routed, 180000)


def test_columns_may_be_told_by_who_knows_better(publisher):
    publisher.execute(TABLES)
    routed = routing(publisher, "CREATE PUBLICATION p FOR TABLE t WHERE (a > 1)")
    with pytest.raises(PublicationError, match="not part of the replica identity"):
        check_identity(routed, 180000, lambda _: {"b"})


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
        ('B\'1\' = A AND "Q""q" > 5 AND ø = 1', {"b", "a", "and", 'Q"q', "ø"}),  # not read: each of its words
    ],
)
def test_column_names(expression, names):
    assert column_names(expression) == names

"""Column lists, row filters and generated columns as PostgreSQL's own subscriber sees them."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from tests.bridge.receive.published_tables import columns, published, refusal


def test_column_list(asked, publisher):
    """In the order of the table, whatever the list's; the key's columns are found in it."""
    publisher.execute("CREATE TABLE t (a int, id int PRIMARY KEY, b text); CREATE PUBLICATION p FOR TABLE t (b, id)")
    table = published(asked, "p")["public.t"]
    assert columns(table) == ["id", "b"]
    assert table.primary_key == ("id",)


def test_dropped_and_added_columns(asked, publisher):
    """The numbers of columns have gaps then, which a column list must not fall into."""
    publisher.execute(
        "CREATE TABLE t (a int, gone int, b int, c int); ALTER TABLE t DROP COLUMN gone, ADD COLUMN d int;"
        "CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q FOR TABLE t (d, b)"
    )
    assert columns(published(asked, "p")["public.t"]) == ["a", "b", "c", "d"]
    assert columns(published(asked, "q")["public.t"]) == ["b", "d"]


def test_different_column_lists(asked, publisher):
    """PostgreSQL's error, word for word: its own subscriber, asked to do the same, says so."""
    publisher.execute(
        "CREATE TABLE t (a int, b int, c int); CREATE PUBLICATION p FOR TABLE t (a, b);"
        "CREATE PUBLICATION q FOR TABLE t (a, c); CREATE PUBLICATION w FOR TABLE t"
    )
    text = 'cannot use different column lists for table "public.t" in different publications'
    for pair in (("p", "q"), ("q", "p"), ("p", "w"), ("w", "q")):
        assert str(refusal(asked, *pair)).startswith(text)
    with pytest.raises(psycopg.Error) as native:
        publisher.execute(
            f"CREATE SUBSCRIPTION {publisher.name} CONNECTION '{publisher.conninfo.replace(chr(39), chr(39) * 2)}'"
            " PUBLICATION p, q WITH (create_slot = false, slot_name = NONE, enabled = false)"
        )
    assert str(native.value).splitlines()[0] == text


def test_same_columns_by_different_publications(asked, publisher):
    """A list of all columns is no other list than none, and the order of a list means nothing."""
    publisher.execute(
        "CREATE TABLE t (a int, b int);"
        "CREATE PUBLICATION p FOR TABLE t (a, b); CREATE PUBLICATION q FOR TABLE t (b, a);"
        "CREATE PUBLICATION w FOR TABLE t; CREATE PUBLICATION s FOR TABLES IN SCHEMA public"
    )
    for pair in (("p", "q"), ("p", "w"), ("w", "s"), ("p", "q", "w", "s")):
        assert columns(published(asked, *pair)["public.t"]) == ["a", "b"]


def test_row_filter(asked, publisher):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t WHERE (id > 5 AND id < 9)"
    )
    assert published(asked, "p")["public.t"].row_filters == ("((id > 5) AND (id < 9))",)


def test_row_filters_of_several_publications(asked, publisher):
    """Any of them lets a row pass; the same one twice is one."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t WHERE (id < 5);"
        "CREATE PUBLICATION q FOR TABLE t WHERE (id > 9); CREATE PUBLICATION r FOR TABLE t WHERE (id < 5)"
    )
    assert set(published(asked, "p", "q", "r")["public.t"].row_filters) == {"(id < 5)", "(id > 9)"}
    assert published(asked, "p", "r")["public.t"].row_filters == ("(id < 5)",)


@pytest.mark.parametrize("unfiltered", ["FOR TABLE t", "FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_one_unfiltered_publication_removes_the_filter(asked, publisher, unfiltered):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t WHERE (id < 5);"
        f"CREATE PUBLICATION q {unfiltered}"
    )
    for order in (("p", "q"), ("q", "p")):
        assert published(asked, *order)["public.t"].row_filters == ()


def test_row_filter_can_be_used_as_it_is(asked, publisher):
    """In a COPY's WHERE, with the bridge's search_path: what is not in pg_catalog comes with its schema."""
    publisher.execute(
        'CREATE TYPE mood AS ENUM (\'sad\', \'happy\'); CREATE TABLE t ("Mo od" mood, "x""y" text);'
        "INSERT INTO t VALUES ('happy', 'a'), ('sad', 'a'), ('happy', 'b');"
        'CREATE PUBLICATION p FOR TABLE t WHERE ("x""y" = \'a\' AND length("x""y") = 1)'
    )
    table = published(asked, "p")["public.t"]
    name = sql.Identifier(table.namespace, table.name)
    query = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(name, sql.SQL(table.row_filters[0]))
    assert asked.connection.execute(query).fetchone() == (2,)


def test_generated_columns(asked, publisher):
    """Not published, unless a column list names them or (18) publish_generated_columns = stored."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    assert columns(published(asked, "p")["public.t"]) == ["id"]
    if asked.version < 180000:
        return
    publisher.execute(
        "CREATE PUBLICATION q FOR TABLE t (id, twice);"
        "CREATE PUBLICATION r FOR TABLE t WITH (publish_generated_columns = stored)"
    )
    assert columns(published(asked, "q")["public.t"]) == ["id", "twice"]
    assert columns(published(asked, "q", "r")["public.t"]) == ["id", "twice"]
    assert "different column lists" in str(refusal(asked, "p", "r"))

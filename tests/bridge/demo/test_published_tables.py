"""What a publication publishes is what PostgreSQL's view says of it, with types and keys."""

from __future__ import annotations

import pytest

from bridge.demo.published_tables import Column, published_tables


@pytest.fixture
def tables(publisher):
    """Two published tables, one with a row filter and a column list, both with awkward names."""
    publisher.execute(
        """
        CREATE SCHEMA "Odd ""schema";
        CREATE TABLE "Odd ""schema"."a%b" (id int PRIMARY KEY, "the name" text, price numeric(12,2), hidden text);
        CREATE TABLE plain (tags text[], at timestamptz);
        INSERT INTO "Odd ""schema"."a%b" VALUES (1, 'x', 1.5, 'h'), (2, 'y%', 2, 'h'), (3, NULL, NULL, 'h');
        INSERT INTO plain VALUES ('{a,b}', NULL), (NULL, NULL);
        CREATE PUBLICATION pub FOR TABLE plain,
            "Odd ""schema"."a%b" (id, "the name", price) WHERE (id > 1 AND (id % 2 = 0 OR "the name" IS NULL))
            WITH (publish = 'insert');
        """
    )
    with publisher.connect() as connection:
        yield connection, published_tables(connection, "pub")


def test_columns_have_types_and_key(tables):
    _, (odd, plain) = tables
    assert (odd.qualified_name, plain.qualified_name) == ('Odd "schema.a%b', "public.plain")
    assert odd.columns == (
        Column("id", "integer", 23, in_key=True),
        Column("the name", "text", 25, in_key=False),
        Column("price", "numeric(12,2)", 1700, in_key=False),
    )
    assert [(column.type, column.in_key) for column in plain.columns] == [
        ("text[]", False),
        ("timestamp with time zone", False),
    ]


def test_rows_are_filtered_and_have_the_listed_columns(tables):
    connection, (odd, plain) = tables
    assert odd.rows(connection.cursor()) == [(2, "y%", 2), (3, None, None)]
    assert odd.count(connection) == 2
    assert (plain.row_filter, plain.count(connection)) == (None, 2)


def test_unknown_publication_has_no_tables(tables):
    connection, _ = tables
    assert published_tables(connection, "nobody's") == []

"""Replica identities and keys of published tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bridge.receive.published_tables import published

if TYPE_CHECKING:
    from pgbridge.bridge.publication.published_table import PublishedTable


def key(table: PublishedTable) -> list[str]:
    return [column.name for column in table.columns if column.in_replica_identity_index]


@pytest.mark.parametrize(
    ("identity", "letter", "in_identity"),
    [("DEFAULT", "d", []), ("FULL", "f", []), ("NOTHING", "n", []), ("USING INDEX by_code", "i", ["code", "site"])],
)
def test_replica_identity(asked, publisher, identity, letter, in_identity):
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, note text, site int NOT NULL);"
        f"CREATE UNIQUE INDEX by_code ON t (site, code) INCLUDE (note); ALTER TABLE t REPLICA IDENTITY {identity};"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    table = published(asked, "p")["public.t"]
    assert table.replica_identity == letter
    assert table.primary_key == ("id",)
    assert key(table) == in_identity


def test_included_columns_are_no_part_of_a_key(asked, publisher):
    """Rows that differ in them alone are one row to the server, and to pgoutput's Relation message."""
    publisher.execute(
        "CREATE TABLE t (a int, b int, c int, PRIMARY KEY (b, a) INCLUDE (c)); CREATE PUBLICATION p FOR TABLE t"
    )
    assert published(asked, "p")["public.t"].primary_key == ("a", "b")


def test_key_outside_the_column_list(asked, publisher):
    """Allowed while only inserts are published: what of it is published is no key."""
    publisher.execute(
        "CREATE TABLE t (id int, a int, code int NOT NULL, site int NOT NULL, PRIMARY KEY (id, a));"
        "CREATE UNIQUE INDEX by_code ON t (code, site);"
        "CREATE PUBLICATION p FOR TABLE t (a, site) WITH (publish = 'insert');"
        "CREATE PUBLICATION q FOR TABLE t (a, id, site) WITH (publish = 'insert')"
    )
    one, other = published(asked, "p")["public.t"], published(asked, "q")["public.t"]
    assert (one.primary_key, one.cut_identity, one.has_identity) == ((), frozenset({"id", "a"}), False)
    assert (other.primary_key, other.cut_identity, other.has_identity) == (("id", "a"), frozenset(), True)
    publisher.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX by_code")
    other = published(asked, "q")["public.t"]
    assert (other.primary_key, other.index_columns) == (("id", "a"), ())
    assert other.cut_identity == frozenset({"code", "site"})
    publisher.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert published(asked, "p")["public.t"].cut_identity == frozenset()

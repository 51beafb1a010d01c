"""Row filters of several publications, per action and for the copy: as the server's own publications have them."""

from __future__ import annotations

import pytest

from pgbridge.bridge.publication.publication import DML
from tests.bridge.publication.server_publications import (
    entry_of,
    tables_of,
)


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

"""What applies to a subscription: its file's publications, or the server's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.publication.definitions import parse
from pgbridge.bridge.publication.reapply import Applied, reapply
from pgbridge.bridge.receive.publications import read_publications, read_relations
from pgbridge.bridge.receive.publisher import Publisher as Server
from pgbridge.bridge.runtime.errors import PublicationError

if TYPE_CHECKING:
    from tests.fix_postgres import Publisher


@pytest.fixture
def broad(publisher: Publisher) -> Publisher:
    """A server with two tables and the publication `broad` of both."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE TABLE u (a int PRIMARY KEY)")
    publisher.execute("CREATE PUBLICATION broad FOR TABLE t, u")
    return publisher


def applied(publisher: Publisher, text: str | None = None, *, missing_ok: bool = False) -> Applied:
    """Re-apply definitions to the stream of `broad`."""
    definitions = None if text is None else parse(text, "f.sql")
    with Server(publisher.conninfo, application_name="test") as server:
        own, relations = read_publications(server, ["broad"]), read_relations(server)
    return reapply(definitions, own, relations, missing_ok=missing_ok)


def test_without_definitions(broad):
    found = applied(broad)
    assert found.routing is found.stream
    assert list(found.routing.targets) == [("public", "t"), ("public", "u")]
    found.check()


def test_with_definitions(broad):
    found = applied(broad, "CREATE PUBLICATION p FOR TABLE t WHERE (a > 5)")
    assert [table.row_filters for table in found.routing.tables()] == [("a > 5",)]
    assert list(found.stream.targets) == [("public", "t"), ("public", "u")]
    found.check()


def test_filter_outside_the_replica_identity_is_no_error_yet(broad):
    """As with PostgreSQL, which refuses the UPDATE or DELETE, when there is one."""
    found = applied(broad, "CREATE PUBLICATION p FOR TABLE t WHERE (b > 5)")
    found.check()
    (refusal,) = found.refusals
    assert refusal.warning == (
        'f.sql:1:32: publication "p": UPDATE or DELETE of table "public.t" will stop the subscription: '
        "Column used in the publication WHERE expression is not part of the replica identity."
    )


def test_refused_by_a_gap(broad):
    broad.execute("ALTER PUBLICATION broad SET TABLE t (a)")
    found = applied(broad, "CREATE PUBLICATION p FOR TABLE t")
    with pytest.raises(PublicationError, match='do not publish column "b" of table "public.t"'):
        found.check()


def test_tables_that_do_not_exist(broad):
    text = "CREATE PUBLICATION p FOR TABLE t, gone"
    with pytest.raises(PublicationError, match='f.sql:1:35: relation "public.gone" does not exist'):
        applied(broad, text)
    assert list(applied(broad, text, missing_ok=True).routing.targets) == [("public", "t")]

"""What applies to a subscription: its file's publications, or the server's own."""

from __future__ import annotations

import pytest

from bridge.config import Subscription
from bridge.errors import ConfigError, PublicationError
from bridge.publication.reapply import apply_publications, definitions_of
from bridge.receive.publisher import Publisher as Server


@pytest.fixture
def subscription(publisher, tmp_path):
    """Makes subscriptions to the publication `broad`, with definitions."""
    publisher.execute("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE TABLE u (a int PRIMARY KEY)")
    publisher.execute("CREATE PUBLICATION broad FOR TABLE t, u")

    def make(text: str | None = None) -> Subscription:
        path = tmp_path / "f.sql"
        if text is not None:
            path.write_text(text)
        return Subscription(
            name="shop",
            connection=publisher.conninfo,
            publications=("broad",),
            warehouse="lake",
            publication_definitions=None if text is None else str(path),
        )

    return make


def applied(subscription: Subscription, **more):
    with Server(subscription.connection, application_name="test") as server:
        return apply_publications(subscription, server, definitions_of(subscription), **more)


def test_without_definitions(subscription):
    found = applied(subscription())
    assert found.routing is found.stream
    assert list(found.routing.targets) == [("public", "t"), ("public", "u")]
    found.check()


def test_with_definitions(subscription):
    found = applied(subscription("CREATE PUBLICATION p FOR TABLE t WHERE (a > 5)"))
    assert [table.row_filters for table in found.routing.tables()] == [("a > 5",)]
    assert list(found.stream.targets) == [("public", "t"), ("public", "u")]
    found.check()


def test_what_does_not_go_with_the_identity_is_no_error_yet(subscription):
    """As with PostgreSQL, which refuses the UPDATE or DELETE, when there is one."""
    found = applied(subscription("CREATE PUBLICATION p FOR TABLE t WHERE (b > 5)"))
    found.check()
    (refusal,) = found.refusals
    assert refusal.warning.partition("f.sql:1:32: ")[2] == (
        'publication "p": UPDATE or DELETE of table "public.t" will stop the subscription: '
        "Column used in the publication WHERE expression is not part of the replica identity."
    )


def test_refused_by_a_gap(subscription, publisher):
    publisher.execute("ALTER PUBLICATION broad SET TABLE t (a)")
    found = applied(subscription("CREATE PUBLICATION p FOR TABLE t"))
    with pytest.raises(PublicationError, match='do not publish column "b" of table "public.t"'):
        found.check()


def test_tables_that_are_gone(subscription):
    made = subscription("CREATE PUBLICATION p FOR TABLE t, gone")
    with pytest.raises(PublicationError, match='f.sql:1:35: relation "public.gone" does not exist'):
        applied(made)
    assert list(applied(made, missing_ok=True).routing.targets) == [("public", "t")]


def test_file_that_has_changed_since(subscription, tmp_path):
    made = subscription("CREATE PUBLICATION p FOR TABLE t")
    (tmp_path / "f.sql").write_text("CREATE")
    with pytest.raises(ConfigError, match=r"f.sql:1:1: syntax error"):
        definitions_of(made)

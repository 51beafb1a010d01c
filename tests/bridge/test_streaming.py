"""What one look at the publisher's catalog tells of a subscription; its stream is tested with its workers."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from bridge import log
from bridge.apply.routes import DefinedRoutes, Routes
from bridge.config import Subscription
from bridge.errors import ConfigError, PublisherError
from bridge.receive.publisher import Publisher
from bridge.streaming import Published


@pytest.fixture
def read(publisher, tmp_path):
    """Looks at the server's catalog: what is published, and what was logged."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, n int); CREATE TABLE other (at point)")
    publisher.execute("CREATE PUBLICATION plain FOR TABLE t; CREATE PUBLICATION broad FOR ALL TABLES")

    def make(name, definitions=None):
        file = None
        if definitions is not None:
            file = tmp_path / "definitions.sql"
            file.write_text(definitions)
        subscription = Subscription(
            name="s",
            connection=publisher.conninfo,
            publications=(name,),
            warehouse="lake",
            publication_definitions=str(file) if file else None,
        )
        with capture_logs() as events, Publisher(publisher.conninfo, application_name="test") as connection:
            return Published.read(subscription, connection, log.get()), [event["event"] for event in events]

    return make


def test_the_servers_publications(read):
    published, events = read("plain")
    assert (list(published.tables), published.binary_readable, events) == ([("public", "t")], True, [])
    assert type(published.routes({})) is Routes
    assert [column.binary for column in published.types([(23, -1)])] == [True]


def test_definitions(read):
    """The stream carries more than what they publish, and its values decide on binary form."""
    published, events = read("broad", "CREATE PUBLICATION p FOR TABLE t WHERE (id > 0)")
    assert (list(published.tables), published.binary_readable) == ([("public", "t")], False)
    assert events == ["values are transferred as text: binary form is not read for all types"]
    assert type(published.routes({})) is DefinedRoutes


def test_a_filter_that_cannot_be_computed_is_refused_before_there_is_a_slot(read):
    with pytest.raises(ConfigError):
        read("broad", "CREATE PUBLICATION p FOR TABLE t WHERE (id::text ~ E'\\\\y')")


def test_a_publication_that_is_not_there(read):
    with pytest.raises(PublisherError, match='publication "nowhere" does not exist'):
        read("nowhere")

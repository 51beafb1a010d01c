"""What a subscription gets from its publisher: the server's publications, or definitions on top of them."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.apply.published import Published
from pgbridge.bridge.batch.reapplied_routes import ReappliedRoutes
from pgbridge.bridge.batch.routes import Routes
from pgbridge.bridge.config.config import Subscription
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime import log
from pgbridge.bridge.runtime.errors import ConfigError


def unused(*_: object) -> None:
    raise AssertionError


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
    assert type(published.routes({}, unused)) is Routes
    assert [column.binary for column in published.types([(23, -1)])] == [True]


def test_definitions(read):
    """The stream carries more than what they publish, and its values decide on binary form."""
    published, events = read("broad", "CREATE PUBLICATION p FOR TABLE t WHERE (id > 0)")
    assert (list(published.tables), published.binary_readable) == ([("public", "t")], False)
    assert events == ["values are transferred as text: some types cannot be read in binary form"]
    assert type(published.routes({}, unused)) is ReappliedRoutes


def test_definitions_by_which_an_update_will_stop_it(read):
    """The server takes such a publication, too; it refuses the UPDATE."""
    _, events = read("plain", "CREATE PUBLICATION p FOR TABLE t WHERE (n > 0)")
    assert len(events) == 1
    assert 'UPDATE or DELETE of table "public.t" will stop the subscription: Column used' in events[0]


def test_a_filter_that_cannot_be_computed_is_refused_before_there_is_a_slot(read):
    with pytest.raises(ConfigError):
        read("broad", "CREATE PUBLICATION p FOR TABLE t WHERE (id::text ~ E'\\\\y')")


def test_a_publication_that_is_not_there(read, publisher):
    """PostgreSQL 18 warns of it, and goes on."""
    publisher.needs(18)
    published, events = read("nowhere")
    assert published.tables == {}
    assert events == ['publication "nowhere" does not exist on the publisher']

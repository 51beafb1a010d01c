"""What one look at the publisher's catalog tells of a subscription; its stream is tested with its workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge import log, pipeline
from bridge.apply.batch.routes import DefinedRoutes, Routes
from bridge.config import Subscription
from bridge.errors import ConfigError, StreamError
from bridge.pipeline import Published
from bridge.receive.publisher import Publisher
from bridge.receive.streaming_fallback import REPEATS, StreamingFallback
from bridge.track.progress import Progress
from protocol.lsn import Lsn


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
    assert type(published.routes({}, log.get())) is Routes
    assert [column.binary for column in published.types([(23, -1)])] == [True]


def test_definitions(read):
    """The stream carries more than what they publish, and its values decide on binary form."""
    published, events = read("broad", "CREATE PUBLICATION p FOR TABLE t WHERE (id > 0)")
    assert (list(published.tables), published.binary_readable) == ([("public", "t")], False)
    assert events == ["values are transferred as text: binary form is not read for all types"]
    assert type(published.routes({}, log.get())) is DefinedRoutes


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


def test_a_stream_that_is_broken_off_again_and_again_goes_without_streaming(monkeypatch):
    """For one connection, until the server's WAL of then is behind; nothing else ends it."""
    asked: list[bool] = []
    progress = Progress(Lsn(100))

    def attempt(*_, control, **__):
        asked.append(control.streaming)
        if control.streaming and progress.durable_lsn < 500:
            raise StreamError("could not map filenumber", retry=True)
        while control.going_on(progress):
            progress.durable(Lsn(progress.durable_lsn + 100))
        assert not control.going_on(progress), "asked again while a batch is waited for"

    def going_on(at):
        return at.durable_lsn < 900

    monkeypatch.setattr(pipeline, "_stream", attempt)
    publisher = SimpleNamespace(flush_lsn=lambda: Lsn(500))
    published = SimpleNamespace(subscription=SimpleNamespace(name="s", streaming="on"), publisher=publisher)
    catalog = SimpleNamespace(remote_lsn=lambda _: progress.durable_lsn)
    control = SimpleNamespace(going_on=going_on, progressed=None, report=None)
    others: Any = {"control": control, "log": log.get(), "ignored": None, "fallback": StreamingFallback()}
    positional: Any = (published, {}, None, catalog)

    def stream():
        return pipeline.stream(*positional, **others)

    for _ in range(REPEATS):
        with pytest.raises(StreamError):
            stream()
    with capture_logs() as events:
        assert stream()
        assert not stream()
    assert asked == [True] * REPEATS + [False, True]
    assert progress.durable_lsn == 900
    assert [(event["log_level"], event["event"].split(",")[0].split(":")[0]) for event in events] == [
        ("warning", "streaming = off"),
        ("info", "streaming = on again"),
    ]

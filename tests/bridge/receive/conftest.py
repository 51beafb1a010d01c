"""Fixtures of several test files: the publisher's catalog, and a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.stream import walreceiver
from tests.bridge.receive.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def asked(publisher) -> Iterator[Publisher]:
    """The publisher's catalog as the bridge reads it."""
    with Publisher(publisher.conninfo, application_name="test") as opened:
        yield opened


@pytest.fixture
def often(monkeypatch) -> None:
    """Status updates every 50 ms, so that a test sees their effect soon."""
    for name in ("STATUS_INTERVAL_S", "IDLE_STATUS_INTERVAL_S"):
        monkeypatch.setattr(walreceiver, name, 0.05)


@pytest.fixture
def stream(often, publisher, tmp_path) -> Iterator[Stream]:
    """A stream of the publication p: the table t with a key; u is not published."""
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE TABLE u (n int); CREATE PUBLICATION p FOR TABLE t"
    )
    made = Stream(publisher.conninfo, f"{publisher.name}_slot", tmp_path / "spool")
    yield made
    made.receiver.stop()

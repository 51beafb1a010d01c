"""What other subscriptions need counts when they are on the same server, are enabled, and do not have it yet."""

from __future__ import annotations

from contextlib import closing

import pytest

from pgbridge.bridge.catalog.catalog import Catalog
from pgbridge.bridge.check.known import Known, others_need
from pgbridge.bridge.check.server import Needs
from pgbridge.bridge.config.config import Subscription
from pgbridge.protocol.lsn import Lsn


def subscription(name: str, connection: str = "host=db dbname=shop", **options) -> Subscription:
    return Subscription(name=name, connection=connection, publications=("pub",), warehouse="/lake", **options)


ALL = [
    subscription("one"),
    subscription("two"),
    subscription("another_database", "host=db dbname=books"),
    subscription("as_uri", "postgresql://db/shop"),
    subscription("elsewhere", "host=db2 dbname=shop"),
    subscription("another_port", "host=db port=5433 dbname=shop"),
    subscription("disabled", enabled=False),
    subscription("slot_is_there", create_slot=False),
]


@pytest.fixture
def catalog(tmp_path):
    with closing(Catalog(tmp_path / "catalog.sqlite")) as opened:
        for one in ALL:
            opened.register(one.name, enabled=one.enabled)
        yield opened


def test_before_the_first_start():
    """Slots belong to all databases of a server, and a slot made by hand is there already."""
    assert others_need(ALL, ALL[0], Known(None, running=False)) == Needs(slots=3, senders=4)
    assert others_need(ALL, ALL[4], Known(None, running=False)) == Needs()


def test_what_is_there_is_not_needed(catalog):
    catalog.create_origin("two", Lsn(0x100), "an incarnation", [])
    catalog.set_state("two", "streaming")
    assert others_need(ALL, ALL[0], Known(catalog, running=True)) == Needs(slots=2, senders=3)
    assert others_need(ALL, ALL[0], Known(catalog, running=False)) == Needs(slots=2, senders=4)


def test_the_catalog_says_what_is_enabled(catalog):
    catalog.set_enabled("two", enabled=False)
    catalog.set_enabled("disabled", enabled=True)
    catalog.set_enabled("as_uri", enabled=False)
    assert others_need(ALL, ALL[0], Known(catalog, running=False)) == Needs(slots=2, senders=3)

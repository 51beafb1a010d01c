"""A slot that is lost stops the subscription and says what is lost; `pgbridge resync` brings the tables back."""

from __future__ import annotations

import pytest

from pgbridge.bridge.commands.refresh import drop, resync
from pgbridge.bridge.commands.state import State
from pgbridge.bridge.config.config import Config
from pgbridge.bridge.runtime.errors import PublisherError
from tests.bridge.subscribed import released


@pytest.fixture
def shop(publisher, memory_pipeline):
    """A subscription of two tables that is caught up, and its state as a command has it."""
    publisher.execute("CREATE TABLE kept (id int PRIMARY KEY, note text); CREATE TABLE other (id int PRIMARY KEY)")
    publisher.execute("INSERT INTO kept VALUES (1, 'a'), (2, 'b'); INSERT INTO other VALUES (1)")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE kept, other")
    bridge = memory_pipeline()
    bridge.catch_up()
    config = Config(state_dir=bridge.catalog.state_dir, subscription={bridge.subscription.name: bridge.subscription})
    return bridge, State(config, bridge.catalog, running=False)


def test_a_lost_slot_and_the_way_back(publisher, shop):
    """Changes were lost, columns changed, a table was unpublished and another published: all tables are equal again."""
    bridge, state = shop
    durable_lsn = bridge.remote_lsn()
    released(publisher, bridge.subscription.slot_name)
    publisher.query("SELECT pg_drop_replication_slot(%s)", (bridge.subscription.slot_name,))
    publisher.execute("DELETE FROM kept WHERE id = 1; INSERT INTO kept VALUES (3, 'lost')")
    with pytest.raises(PublisherError) as caught:
        bridge.catch_up()
    assert f"does not exist on the publisher any more: changes after {durable_lsn} are lost" in str(caught.value)
    assert f"pgbridge resync {bridge.subscription.name}" in str(caught.value)
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
    publisher.execute("ALTER TABLE kept ADD COLUMN added int DEFAULT 7")
    publisher.execute("CREATE TABLE new (id int PRIMARY KEY); INSERT INTO new VALUES (9)")
    publisher.execute("ALTER PUBLICATION pub SET TABLE kept, new")
    list(resync(bridge.subscription, state))
    bridge.catch_up()
    publisher.execute("UPDATE kept SET note = 'later' WHERE id = 2")
    bridge.catch_up()
    rows = sorted(bridge.rows("kept"), key=lambda row: row["id"])
    assert [tuple(row.values()) for row in rows] == [(2, "later", 7), (3, "lost", 7)]
    assert bridge.rows("new") == [{"id": 9}]
    assert {rel.name: rel.state for rel in bridge.catalog.rels(bridge.subscription.name)} == {"kept": "r", "new": "r"}


def test_a_dropped_subscription_does_not_overwrite_what_it_left(publisher, shop):
    """Enabled again it is new: the tables have rows, which may be others' by now."""
    bridge, state = shop
    list(drop(bridge.subscription, state, keep_slot=False, force=False))
    bridge.catalog.set_enabled(bridge.subscription.name, enabled=True)
    with pytest.raises(Exception, match="has rows already"):
        bridge.catch_up()
    assert bridge.spark.arrow(f"{bridge.subscription.warehouse}/public/kept").num_rows == 2

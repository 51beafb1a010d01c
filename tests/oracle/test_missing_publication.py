"""A publication that does not exist yet: from PostgreSQL 18 on a native subscriber goes on with the others."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.runtime.errors import PublisherError
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

STATEMENTS = """
CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1);
CREATE PUBLICATION pub FOR TABLE t;
"""
NAMES = ("pub", "later")


def test_it_is_taken_up_when_it_appears(publisher, memory_pipeline):
    """The stream has its changes by itself, its tables come with a refresh; also where none is there at first."""
    publisher.execute(STATEMENTS)
    bridge = memory_pipeline(publications=NAMES)
    if publisher.query("SHOW server_version_num")[0][0] < "180000":
        with pytest.raises(PublisherError, match='publication "later" does not exist on the publisher, and'):
            bridge.catch_up()
        return
    with NativeSubscriber(publisher.conninfo, NAMES) as native:
        with capture_logs() as events:
            bridge.catch_up()
            publisher.execute("INSERT INTO t VALUES (1); INSERT INTO u VALUES (2)")
            publisher.execute("CREATE PUBLICATION other")  # has the walsender look at its publications again
            publisher.execute("INSERT INTO t VALUES (2)")
            bridge.catch_up()
        missing = 'publication "later" does not exist on the publisher'
        assert [event["event"] for event in events if event["log_level"] == "warning"] == [
            missing,
            missing,
            "the publisher warns",
        ]
        native.wait_caught_up()
        assert differences(bridge.spark, bridge.path("t"), native, "t") == []
        with capture_logs() as events:
            publisher.execute("CREATE PUBLICATION later FOR TABLE u")
            publisher.execute("INSERT INTO t VALUES (3); INSERT INTO u VALUES (3)")
            bridge.catch_up()
        ignored = [event for event in events if event["log_level"] == "warning"]
        # by the look at what is published, and by the stream
        assert {event["relation"] for event in ignored if "relation" in event} == {"public.u"}
        native.execute(f"ALTER SUBSCRIPTION {native.name} REFRESH PUBLICATION")
        refresh.ask(bridge.catalog, bridge.subscription.name, [None], copy_data=True)
        bridge.catch_up()
        publisher.execute("INSERT INTO t VALUES (4); UPDATE u SET id = -id")
        bridge.catch_up()
        native.wait_caught_up()
        for table in ("t", "u"):
            assert differences(bridge.spark, bridge.path(table), native, table) == []
    publisher.execute("DROP PUBLICATION pub, later")
    with NativeSubscriber(publisher.conninfo, NAMES, suffix="none") as native:
        native.wait_caught_up()
        assert native.query("SELECT FROM pg_subscription_rel") == []
        bridge = memory_pipeline(publications=NAMES, slot_name=f"{publisher.name}_none_too")
        bridge.catch_up()
        assert bridge.catalog.rels(bridge.subscription.name) == []

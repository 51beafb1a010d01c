"""Delta tables under other names than the published tables: equal to a native subscriber's, in each command's words."""

from __future__ import annotations

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.bridge.config.tables import Table
from pgbridge.bridge.runtime.errors import TargetError
from tests.bridge.configurations import altered
from tests.oracle.delta import differences
from tests.oracle.native import NativeSubscriber

SETUP = """
    CREATE SCHEMA hr; CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text);
    CREATE TABLE hr.t (id int PRIMARY KEY, v text);
    INSERT INTO t VALUES (1, 'a'), (2, 'b'); INSERT INTO u VALUES (3, 'c'); INSERT INTO hr.t VALUES (4, 'd');
    CREATE PUBLICATION pub FOR TABLE t, u, hr.t
"""
OTHERWISE = {"tables": {"public.t": Table(rename="sales.orders.all")}, "target__schemas": {"public": "shop"}}
PLACES = {"public.t": "sales/orders.all", "public.u": "shop/u", "hr.t": "hr/t"}


def places(bridge):
    """Where the tables are, below the warehouse."""
    warehouse = bridge.subscription.warehouse
    return {
        rel.qualified_name: rel.path.removeprefix(f"{warehouse}/")
        for rel in bridge.catalog.rels(bridge.subscription.name)
    }


def test_they_are_equal_to_the_published_ones(publisher, memory_pipeline):
    publisher.execute(SETUP)
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        bridge = memory_pipeline(**OTHERWISE)
        bridge.catch_up()
        assert places(bridge) == PLACES
        publisher.execute("""
            UPDATE t SET id = id + 10, v = 'x' WHERE id = 1; INSERT INTO u VALUES (5, 'e'); DELETE FROM hr.t;
            ALTER TABLE t ADD COLUMN more int DEFAULT 7; INSERT INTO t VALUES (6, 'f', 8); TRUNCATE u;
        """)
        native.execute("ALTER TABLE t ADD COLUMN more int DEFAULT 7")
        bridge.catch_up()
        native.wait_caught_up()
        for rel in bridge.catalog.rels(bridge.subscription.name):
            assert differences(bridge.spark, rel.path, native, rel.qualified_name) == []
        bridge.subscription = altered(bridge.subscription, tables={})
        refresh.ask(bridge.catalog, bridge.subscription.name, [("public", "t")], copy_data=True)
        bridge.catch_up()
        assert places(bridge) == PLACES, "what is followed stays where it is"
        assert differences(bridge.spark, bridge.path("t"), native, "t") == []


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"tables": {"public.u": Table(rename="public.t")}}, 'set another name as rename in tables."public.u"'),
        ({"target__schemas": {"hr": "public"}}, 'set another name as rename in tables."public.t"'),
    ],
)
def test_two_tables_with_one_name_are_refused(publisher, memory_pipeline, options, remedy):
    publisher.execute(SETUP)
    bridge = memory_pipeline(**options)
    with pytest.raises(TargetError, match=r"would both become .*/public/t\n") as caught:
        bridge.catch_up()
    assert caught.value.hint.startswith(remedy)
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (publisher.name,)) == [
        (0,)
    ]
    findings = check_subscription(bridge.subscription, Known(bridge.catalog, running=False))
    (finding,) = [each for each in findings if "would both become" in each.message]
    assert finding.remedy == caught.value.hint
    bridge.subscription = altered(
        bridge.subscription, tables={"public.u": Table(rename="public.v")}, target__schemas={}
    )
    bridge.catch_up()
    assert places(bridge)["public.u"] == "public/v"

"""The values of sequences that are written are the server's, of those that the tables take their values from."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

from pgbridge.bridge.check.known import Known
from pgbridge.bridge.check.subscription import check_subscription
from pgbridge.protocol.lsn import Lsn

SETUP = """
    CREATE SCHEMA "Sales"; CREATE SEQUENCE shared INCREMENT -5 MAXVALUE 100 START 90 CYCLE CACHE 3;
    CREATE TABLE orders (id serial PRIMARY KEY, ref int DEFAULT nextval('shared'));
    CREATE TABLE "Sales"."Order" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                                  ref int DEFAULT nextval('public.shared'));
    CREATE TABLE elsewhere (id smallserial PRIMARY KEY); CREATE SEQUENCE alone;
    CREATE PUBLICATION pub FOR TABLE orders, "Sales"."Order"
"""
OF_SERVER = """
    SELECT schemaname, sequencename, data_type::text, start_value, min_value, max_value, increment_by, cycle,
           cache_size, coalesce(last_value, start_value), last_value IS NOT NULL
      FROM pg_sequences WHERE sequencename NOT IN ('alone', 'elsewhere_id_seq')
     ORDER BY schemaname COLLATE "C", sequencename COLLATE "C"
"""
COLUMNS = ("namespace", "name", "data_type", "start_value", "min_value", "max_value", "increment_by", "cycles",
           "cache_size", "last_value", "is_called")  # fmt: skip


@pytest.fixture
def bridge(publisher, pipeline):
    publisher.execute(SETUP)
    return pipeline(target__sequences_every_s=60)


def written(spark, bridge):
    """What is written, and of which columns."""
    path = f"{bridge.subscription.warehouse}/pgbridge/sequences"
    rows = spark.read.format("delta").load(path).orderBy("namespace", "name").collect()
    return [tuple(row[name] for name in COLUMNS) for row in rows], {row.name: row.columns for row in rows}, rows


def test_values_are_the_servers(publisher, spark, bridge):
    bridge.catch_up()
    values, columns, _ = written(spark, bridge)
    assert values == publisher.query(OF_SERVER)
    assert columns == {
        "Order_id_seq": ["Sales.Order.id"],
        "orders_id_seq": ["public.orders.id"],
        "shared": ["Sales.Order.ref", "public.orders.ref"],
    }
    assert {row[-1] for row in values} == {False}, "nothing was taken"
    publisher.execute(
        'INSERT INTO orders SELECT FROM generate_series(1, 7); INSERT INTO "Sales"."Order" DEFAULT VALUES'
    )
    (lsn,) = publisher.query("SELECT pg_current_wal_insert_lsn()::text")[0]
    bridge.catch_up()
    values, _, rows = written(spark, bridge)
    assert values == publisher.query(OF_SERVER)
    assert all(Lsn.parse(row.lsn) >= Lsn.parse(lsn) for row in rows)
    assert all(row["id"] <= values[1][-2] for row in bridge.rows("orders"))
    publisher.execute("SELECT setval('shared', 42, false)")
    bridge.catch_up()
    assert written(spark, bridge)[0][2][-2:] == (42, False), "pg_sequences has NULL there"
    publisher.execute('ALTER TABLE orders ALTER ref DROP DEFAULT; DROP TABLE "Sales"."Order"; DROP SEQUENCE shared')
    bridge.catch_up()
    assert [row[1] for row in written(spark, bridge)[0]] == ["orders_id_seq"]


def test_a_sequence_that_the_role_may_not_read(publisher, spark, bridge):
    role = f"{publisher.name}_reader"
    publisher.execute(
        f'CREATE ROLE {role} LOGIN REPLICATION; GRANT USAGE ON SCHEMA "Sales" TO {role};'
        f'GRANT SELECT ON orders, "Sales"."Order" TO {role}; GRANT SELECT ON SEQUENCE orders_id_seq TO {role}'
    )
    try:
        conninfo = make_conninfo(publisher.conninfo, user=role)
        bridge.subscription = bridge.subscription.model_copy(update={"connection": conninfo})
        with capture_logs() as events:
            bridge.catch_up()
        assert [row[1] for row in written(spark, bridge)[0]] == ["orders_id_seq"]
        (event,) = [event for event in events if event["event"] == "the role may not read sequences"]
        assert event["sequences"] == ['"Sales"."Order_id_seq"', '"public"."shared"']
        found = {
            one.subject: one for one in check_subscription(bridge.subscription, Known(bridge.catalog, running=False))
        }
        statement = found['sequence "public"."shared"'].statement
        publisher.execute(f"{event['hint'].removeprefix('on the server, run: ')}; {statement}")
        with capture_logs() as events:
            bridge.catch_up()
        assert not any(event["event"] == "the role may not read sequences" for event in events)
        assert written(spark, bridge)[0] == publisher.query(OF_SERVER)
    finally:
        bridge.subscription = bridge.subscription.model_copy(update={"connection": publisher.conninfo})
        publisher.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_table_that_is_another_one(publisher, spark, bridge):
    """The stream goes on; what is wrong is a warning."""
    path = f"{bridge.subscription.warehouse}/pgbridge/sequences"
    spark.range(1).write.format("delta").save(path)
    with capture_logs() as events:
        bridge.catch_up()
    (event,) = [event for event in events if "values of sequences cannot be written" in event["event"]]
    assert f"{path} is not a table of sequences" in event["error"]


def test_a_sequence_that_is_locked_holds_up_nobody(publisher, spark, bridge):
    bridge.catch_up()
    publisher.execute("INSERT INTO orders DEFAULT VALUES")
    publisher.execute("BEGIN; ALTER SEQUENCE shared RESTART")
    try:
        with capture_logs() as events:
            bridge.catch_up()
        assert any("values of sequences cannot be written" in event["event"] for event in events)
        assert len(bridge.rows("orders")) == 1
    finally:
        publisher.execute("ROLLBACK")
    bridge.catch_up()
    assert written(spark, bridge)[0] == publisher.query(OF_SERVER)

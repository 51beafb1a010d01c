"""The shop's publications are valid, and the load does what the demo is to show, at its pace."""

from __future__ import annotations

import time
from contextlib import closing

import psycopg
import pytest

from bridge.demo.shop import ShopLoad, create

NO_STEP = "CREATE FUNCTION step() RETURNS void LANGUAGE sql AS ''"


def wait_for(load: ShopLoad, committed: int) -> None:
    """Wait until a load has committed so many transactions."""
    until_s = time.monotonic() + 60
    while load.committed < committed:
        load.check()
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_load_does_everything_that_the_demo_is_to_show(publisher):
    """Inserts, updates and deletes, key changes, rows entering and leaving a row filter, rollbacks, TOAST values."""
    create(publisher.conninfo)
    tables = ("customers", "order_items", "orders", "page_views", "products")
    assert publisher.query(
        "SELECT tablename, attnames::text[], rowfilter FROM pg_publication_tables WHERE pubname = 'vip_pub'"
    ) == [("customers", ["id", "name", "country", "vip", "balance"], "vip")]
    listed = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'shop_pub' ORDER BY 1"
    assert publisher.query(listed) == [(table,) for table in tables]
    for table in ("customers", "products"):
        query = "SELECT pg_relation_size(reltoastrelid) > 0 FROM pg_class WHERE oid = %s::regclass"
        assert publisher.query(query, (table,)) == [(True,)]

    ids = {table: set(publisher.query(f"SELECT id FROM {table}")) for table in ("customers", "orders")}
    vips = set(publisher.query("SELECT id FROM customers WHERE vip"))
    with closing(ShopLoad(publisher.conninfo, 10_000)) as load:
        wait_for(load, 1500)
    assert load.rolled_back > 0
    for table in ("products", "order_items"):
        assert publisher.query(f"SELECT count(*) > 0 FROM {table} WHERE sku LIKE '%%.%%'") == [(True,)]
    assert publisher.query("SELECT count(*) > 0 FROM order_items WHERE line_no > 10") == [(True,)]
    now = {table: set(publisher.query(f"SELECT id FROM {table}")) for table in ids}
    for table, before in ids.items():
        assert before - now[table]
        assert now[table] - before
    vips_now, remaining = (
        set(publisher.query("SELECT id FROM customers WHERE vip")),
        now["customers"] & ids["customers"],
    )
    assert (vips & remaining) - vips_now
    assert (vips_now & remaining) - vips
    twice = "SELECT count(*) > 0 FROM (SELECT 1 FROM page_views v GROUP BY v HAVING count(*) > 1) d"
    assert publisher.query(twice) == [(True,)]


def test_thread_keeps_to_its_pace(publisher):
    publisher.execute(NO_STEP)
    with closing(ShopLoad(publisher.conninfo, 40)) as load:
        time.sleep(1)
    load.check()
    done = load.committed + load.rolled_back
    # a late start may be caught up for a quarter of a second
    assert 5 <= done <= 40 * 1.75 + 1
    assert str(load) == f"{load.committed} transactions committed, {load.rolled_back} rolled back"


def test_error_of_the_thread_is_raised_by_check(publisher):
    with closing(ShopLoad(publisher.conninfo, 500)) as load, pytest.raises(psycopg.errors.UndefinedFunction):
        wait_for(load, 1)

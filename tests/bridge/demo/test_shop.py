"""The shop loads, its publications are valid, and the load is the same for the same seed."""

from __future__ import annotations

import time
from contextlib import closing

import psycopg
import pytest

from bridge.demo.shop import ShopLoad, create
from tests.oracle.native import text_rows

TABLES = ("customers", "products", "orders", "order_items", "page_views")


def shop(publisher) -> str:
    """A new shop in the publisher's database."""
    create(publisher.conninfo)
    return str(publisher.conninfo)


def companion(publisher, suffix: str) -> str:
    """A new shop in a database of its own, dropped with the publisher's."""
    with publisher.server.connect() as admin:
        admin.execute(f'CREATE DATABASE "{publisher.name}_{suffix}" TEMPLATE template0'.encode())
    conninfo = str(publisher.server.conninfo(f"{publisher.name}_{suffix}"))
    create(conninfo)
    return conninfo


def loaded(conninfo: str, steps: int, seed: int = 18) -> dict[str, list[tuple[str | None, ...]]]:
    """All rows after so many steps."""
    with closing(ShopLoad(conninfo, seed)) as load:
        for _ in range(steps):
            load.step()
    return {table: text_rows(conninfo, f"public.{table}") for table in TABLES}


def test_same_seed_makes_same_rows(publisher):
    assert loaded(shop(publisher), 150) == loaded(companion(publisher, "twin"), 150)


def test_other_seed_makes_other_rows(publisher):
    first, second = loaded(shop(publisher), 30), loaded(companion(publisher, "other"), 30, seed=19)
    assert first["orders"] != second["orders"]


def test_load_does_everything_that_the_demo_is_to_show(publisher):
    """Inserts, updates and deletes, key changes, rows entering and leaving a row filter, rollbacks."""
    conninfo = shop(publisher)
    vips = set(publisher.query("SELECT id FROM customers WHERE vip"))
    customers = set(publisher.query("SELECT id FROM customers"))
    orders = set(publisher.query("SELECT id FROM orders"))
    with closing(ShopLoad(conninfo)) as load:
        while load.committed < 600:
            load.step()
        assert load.rolled_back > 0
    assert publisher.query("SELECT count(*) > 0 FROM products WHERE sku LIKE '%%.%%'") == [(True,)]
    assert publisher.query("SELECT count(*) > 0 FROM order_items WHERE sku LIKE '%%.%%'") == [(True,)]
    assert publisher.query("SELECT count(*) > 0 FROM order_items WHERE line_no > 10") == [(True,)]
    assert orders - set(publisher.query("SELECT id FROM orders"))
    assert set(publisher.query("SELECT id FROM orders")) - orders
    remaining = customers & set(publisher.query("SELECT id FROM customers"))
    assert remaining < customers
    assert (vips & remaining) - set(publisher.query("SELECT id FROM customers WHERE vip"))
    assert (set(publisher.query("SELECT id FROM customers WHERE vip")) & remaining) - vips
    duplicates = publisher.query(
        "SELECT count(*) > 0 FROM (SELECT 1 FROM page_views v GROUP BY v HAVING count(*) > 1) d"
    )
    assert duplicates == [(True,)]


def test_long_texts_are_out_of_line(publisher):
    shop(publisher)
    for table in ("customers", "products"):
        query = "SELECT pg_relation_size(reltoastrelid) > 0 FROM pg_class WHERE oid = %s::regclass"
        assert publisher.query(query, (table,)) == [(True,)]


def test_publications_are_those_of_the_demo(publisher):
    shop(publisher)
    assert publisher.query("SELECT tablename FROM pg_publication_tables WHERE pubname = 'shop_pub' ORDER BY 1") == [
        (table,) for table in sorted(TABLES)
    ]
    assert publisher.query(
        "SELECT tablename, attnames::text[], rowfilter FROM pg_publication_tables WHERE pubname = 'vip_pub'"
    ) == [("customers", ["id", "name", "country", "vip", "balance"], "vip")]


def test_thread_keeps_to_its_pace(publisher):
    conninfo = shop(publisher)
    with closing(ShopLoad(conninfo)) as load:
        load.start(per_second=40)
        time.sleep(1.5)
        load.stop()
        load.check()
        done = load.committed + load.rolled_back
        time.sleep(0.2)
        assert load.committed + load.rolled_back == done
    # a late start may be caught up for a quarter of a second
    assert 5 <= done <= 40 * 1.75 + 1


def test_error_of_the_thread_is_raised_by_check(publisher):
    conninfo = shop(publisher)
    with closing(ShopLoad(conninfo)) as load:
        publisher.execute("DROP TABLE orders CASCADE")
        load.start(per_second=500)
        deadline_s = time.monotonic() + 20
        while load.error is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        with pytest.raises(psycopg.errors.UndefinedTable, match="orders"):
            load.check()

"""A native subscriber that is refreshed in step: tables that are added, removed and copied afresh, under load.

Documentation: ALTER SUBSCRIPTION … REFRESH PUBLICATION. PostgreSQL has no command that copies a table afresh: there,
one removes it from the publication and adds it again, which is what the native subscriber does here.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pgbridge.bridge.catalog import followed, refresh
from pgbridge.bridge.catalog.catalog_rows import sync_name
from tests.bridge.configurations import altered
from tests.oracle.delta import differences
from tests.oracle.load import Load
from tests.oracle.native import NativeSubscriber

TABLES = ("old", "new", "gone", "spoilt")
SCHEMA = "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, body text);" for name in TABLES)


def change(connection, number):
    """A transaction over all tables."""
    n = 1000 + number
    for table in TABLES:
        connection.execute(f"INSERT INTO {table} VALUES ({n}, 0, repeat('x', 50))")
        connection.execute(f"UPDATE {table} SET n = n + 1 WHERE id > {n} - 5")
        connection.execute(f"UPDATE {table} SET id = -id WHERE id = {n} - 7")
        connection.execute(f"DELETE FROM {table} WHERE id = {n} - 9")


@contextmanager
def running(bridge):
    """A worker that runs meanwhile."""
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        worker.thread.join(120)
        assert not worker.thread.is_alive()


def wait_until(bridge, condition, timeout_s=180):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, bridge.catalog.last_error(sync_name(bridge.subscription.name))
        time.sleep(0.05)


def settled(bridge):
    """Nothing is asked for, nothing is being brought in."""
    name = bridge.subscription.name
    return not refresh.asked(bridge.catalog, name) and bridge.catalog.subscription(sync_name(name)) is None


@pytest.fixture
def pair(publisher, memory_pipeline):
    """Both subscribed to all but `new`, with rows in all tables."""
    publisher.execute(SCHEMA)
    for table in TABLES:
        publisher.execute(f"INSERT INTO {table} SELECT g, 0, repeat(g::text, 20) FROM generate_series(1, 500) g")
    publisher.execute("CREATE PUBLICATION pub FOR TABLE old, gone, spoilt")
    with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
        native.wait_caught_up()
        bridge = memory_pipeline()
        bridge.catch_up()
        yield bridge, native


def slots(publisher):
    rows = publisher.query("SELECT slot_name::text FROM pg_replication_slots WHERE slot_name LIKE 'pgbridge%sync'")
    return [name for (name,) in rows if publisher.name in name]


def test_a_table_joins_by_itself_under_load(publisher, pair):
    """Within half a minute, with `workers.refresh = "auto"`; a table that leaves is reported, and stays."""
    bridge, native = pair
    bridge.subscription = altered(bridge.subscription, workers__refresh="auto")
    name = bridge.subscription.name
    with Load(publisher, change, pause_s=0.1), running(bridge):
        publisher.execute("ALTER PUBLICATION pub ADD TABLE new; ALTER PUBLICATION pub DROP TABLE gone")
        native.execute(f"ALTER SUBSCRIPTION {native.name} REFRESH PUBLICATION")
        wait_until(bridge, lambda: ("public", "new") in bridge.catalog.rels_by_name(name), 60)
        wait_until(bridge, lambda: settled(bridge))
    bridge.catch_up()
    native.wait_caught_up()
    for table in ("old", "new", "spoilt"):
        assert differences(bridge.spark, bridge.path(table), native, table) == []
    assert ("public", "gone") in bridge.catalog.rels_by_name(name)
    assert [(one.difference.kind, one.difference.relation) for one in followed.seen(bridge.catalog, name)] == [
        ("unpublished", ("public", "gone"))
    ]


def test_add_remove_and_copy_afresh_under_load(publisher, pair):
    """In one refresh, while the table that is in none of that goes on; at the end all are equal."""
    bridge, native = pair
    name = bridge.subscription.name
    spoilt = bridge.path("spoilt")
    schema, kept = bridge.spark.schema(spoilt), [row for row in bridge.rows("spoilt") if row["id"] % 2]
    bridge.spark.put(spoilt, schema, kept)
    gone = bridge.path("gone")
    with ExitStack() as stack:
        stack.enter_context(Load(publisher, change, pause_s=0.1))
        stack.enter_context(running(bridge))
        publisher.execute("ALTER PUBLICATION pub ADD TABLE new; ALTER PUBLICATION pub DROP TABLE gone")
        native.execute(f"ALTER SUBSCRIPTION {native.name} REFRESH PUBLICATION")
        refresh.ask(bridge.catalog, name, [None, ("public", "spoilt")], copy_data=True)
        wait_until(bridge, lambda: bridge.catalog.remote_lsn(sync_name(name)) is not None)
        before = bridge.remote_lsn()
        wait_until(bridge, lambda: settled(bridge))
        wait_until(bridge, lambda: bridge.remote_lsn() > before)
    assert [rel.name for rel in bridge.catalog.rels(name)] == ["new", "old", "spoilt"]
    assert bridge.spark.arrow(gone).num_rows >= 500, "its Delta table stays"
    assert slots(publisher) == []
    assert not (bridge.folder / "state" / "spool" / sync_name(name)).exists()
    bridge.catch_up()
    native.wait_caught_up()
    for table in ("old", "new", "spoilt"):
        assert differences(bridge.spark, bridge.path(table), native, table) == []


def test_a_definition_by_schema_takes_up_what_is_created_later(publisher, memory_pipeline, tmp_path):
    """The tables of a schema, out of a publication of all; nothing else joins. The page has the definition."""
    publisher.execute("""
        CREATE SCHEMA sales; CREATE TABLE sales.a (id int PRIMARY KEY);
        CREATE TABLE other (id int PRIMARY KEY); INSERT INTO sales.a VALUES (1);
        CREATE PUBLICATION pub FOR ALL TABLES
    """)
    file = tmp_path / "definitions.sql"
    page = Path(__file__).parents[2].joinpath("docs", "publications.md").read_text(encoding="utf-8")
    (definition,) = re.findall("^CREATE PUBLICATION .* FOR TABLES IN SCHEMA .*;$", page, re.MULTILINE)
    file.write_text(definition)
    bridge = memory_pipeline(publication_definitions=str(file), workers__refresh="auto")
    name = bridge.subscription.name
    bridge.catch_up()
    with running(bridge):
        publisher.execute("""
            CREATE TABLE more (id int PRIMARY KEY); CREATE TABLE sales.b (id int PRIMARY KEY);
            INSERT INTO more VALUES (1); INSERT INTO sales.b VALUES (1), (2)
        """)
        wait_until(bridge, lambda: ("sales", "b") in bridge.catalog.rels_by_name(name), 60)
        wait_until(bridge, lambda: settled(bridge))
        publisher.execute("INSERT INTO sales.b VALUES (3); INSERT INTO more VALUES (2); DELETE FROM sales.a")
    bridge.catch_up()
    rels = bridge.catalog.rels(name)
    assert {rel.qualified_name for rel in rels} == {"sales.a", "sales.b"}
    content = {rel.name: sorted(row["id"] for row in bridge.spark.arrow(rel.path).to_pylist()) for rel in rels}
    assert content == {"a": [], "b": [1, 2, 3]}

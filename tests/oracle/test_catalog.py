"""Tables of a Spark catalog equal the published ones, through all that happens to tables at a path.

Spark's own catalog is in memory here; `tests/faults/test_catalog.py` has one that survives.
"""

from __future__ import annotations

import pytest

from pgbridge.bridge.catalog import refresh
from pgbridge.bridge.lake.location import place_of, read_table
from pgbridge.bridge.lake.log.local_log import local_folder
from pgbridge.bridge.runtime import faults
from pgbridge.bridge.runtime.errors import ApplyError, ConfigError, TargetError
from tests.bridge.lake.log.test_local_tables import Disk
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows, NativeSubscriber
from tests.oracle.workload import TABLES, Workload

SETUP = """
CREATE TABLE docs (id int PRIMARY KEY, body text, n int, day date);
CREATE TABLE facts (at int, "What, else" text); ALTER TABLE facts REPLICA IDENTITY FULL;
INSERT INTO docs SELECT i, 'body ' || i, i FROM generate_series(1, 50) i;
CREATE PUBLICATION pub FOR TABLE docs, facts;
"""
APPENDED = "INSERT INTO facts SELECT i, 'fact' FROM generate_series(1, 20) i"
CHANGED = (
    "UPDATE docs SET n = n + 1 WHERE id % 2 = 0; DELETE FROM docs WHERE id > 45; INSERT INTO docs VALUES (60, 'x', 1)"
)
BATCHES = (
    APPENDED,
    f"{CHANGED}; DELETE FROM facts WHERE at = 3; UPDATE facts SET at = 100 WHERE at = 4",
    """BEGIN; TRUNCATE facts; INSERT INTO facts VALUES (1, 'after'); COMMIT;
    SELECT pg_logical_emit_message(true, 'app', 'hello')""",
    """ALTER TABLE docs ADD COLUMN "More, here" text DEFAULT 'm'; ALTER TABLE docs RENAME COLUMN body TO text;
    INSERT INTO docs VALUES (61, 'y', 5, NULL, 'z')""",
    "ALTER TABLE docs ALTER COLUMN n TYPE bigint; UPDATE docs SET n = 5000000000 WHERE id = 61",
)
REFUSED = "BEGIN; INSERT INTO facts VALUES (7, 'no'); INSERT INTO docs VALUES (90, 'b', 1, 'infinity'); COMMIT"


class Crash(BaseException):
    """The end of the process, but for its threads."""


@pytest.fixture
def namespace(spark, publisher):
    """A namespace of Spark's catalog for the test; pgbridge creates it."""
    name = publisher.name.lower()
    yield name
    spark.sql(f"DROP NAMESPACE IF EXISTS spark_catalog.{name} CASCADE")


def crash_at(point):
    """Crash where this point is reached first."""

    def reached(here):
        if here == point:
            faults.install(lambda _: None)
            raise Crash

    faults.install(reached)


def test_a_subscription_in_a_catalog(spark, publisher, pipeline, namespace, monkeypatch):
    """Copy, batches, new columns, messages, a crash between commit and record, an undo, maintenance, RESYNC."""
    publisher.execute(SETUP)
    bridge = pipeline(warehouse=f"catalog:spark_catalog.{namespace}", messages="table")
    name = bridge.subscription.name

    def equal():
        bridge.catch_up()
        for table in ("docs", "facts"):
            assert differences(spark, bridge.path(table), DatabaseRows(publisher.conninfo), f"public.{table}") == []

    disk = Disk(monkeypatch)
    equal()
    assert bridge.path("docs") == f"catalog:spark_catalog.{namespace}.docs"
    kinds = spark.sql(f"DESCRIBE EXTENDED {namespace}.docs").filter("col_name = 'Type'").collect()
    assert [row.data_type for row in kinds] == ["MANAGED"]
    for changes in BATCHES:
        publisher.execute(changes)
        equal()
    messages = read_table(spark, f"catalog:spark_catalog.{namespace}.pgbridge_messages").collect()
    assert [bytes(row.content) for row in messages] == [b"hello"]
    folder = local_folder(place_of(spark, bridge.path("docs")) or "")
    assert folder is not None
    assert {file for file in folder.rglob("*") if file.is_file()} <= disk.contents

    publisher.execute(CHANGED.replace("60", "62"))
    crash_at("batch_committed")
    with pytest.raises(Crash):
        bridge.catch_up()
    equal()

    before = bridge.rows("docs"), bridge.rows("facts")
    publisher.execute(REFUSED)
    with pytest.raises(ApplyError, match="infinity") as raised:
        bridge.catch_up()
    assert (bridge.rows("docs"), bridge.rows("facts")) == before
    bridge.catalog.set_skip_lsn(name, raised.value.context.finish_lsn)
    publisher.execute("DELETE FROM docs WHERE id = 90; DELETE FROM facts WHERE at = 7")
    equal()

    tables = bridge.worker()._maintenance.tables
    tables.optimize(bridge.path("docs"))
    spark.sql(f"DELETE FROM {namespace}.docs WHERE id < 10").collect()
    refresh.ask(bridge.catalog, name, [("public", "docs")], copy_data=True)
    bridge.catch_up()
    equal()


def test_names_that_would_become_one_table(publisher, pipeline, namespace, capsys):
    """A catalog ignores case, and with a namespace in the warehouse, schemas; what it cannot name is left out."""
    publisher.execute(
        f'CREATE SCHEMA "{namespace}"; CREATE TABLE "{namespace}".t (id int); CREATE TABLE public.t (id int);'
        f'CREATE TABLE "{namespace}"."größe" (id int); CREATE PUBLICATION pub FOR TABLE "{namespace}".t, public.t;'
        f'CREATE PUBLICATION odd FOR TABLE "{namespace}"."größe", "{namespace}".t'
    )
    both = pipeline(warehouse=f"catalog:spark_catalog.{namespace}")
    with pytest.raises(TargetError, match=r'"\w+\.t" and "\w+\.t" would both become') as raised:
        both.catch_up()
    assert 'set warehouse = "catalog:spark_catalog"' in str(raised.value)
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]

    bridge = pipeline(warehouse="catalog:spark_catalog", publications=("odd",))
    bridge.catch_up()
    assert [rel.path for rel in bridge.catalog.rels(bridge.subscription.name)] == [
        f"catalog:spark_catalog.{namespace}.t"
    ]
    publisher.execute(
        f'CREATE TABLE "{namespace}"."T" (id int); ALTER PUBLICATION odd ADD TABLE "{namespace}"."T";'
        f'INSERT INTO "{namespace}".t VALUES (1)'
    )
    refresh.ask(bridge.catalog, bridge.subscription.name, [None], copy_data=True)
    bridge.catch_up()
    assert bridge.rows(f"{namespace}.t") == [{"id": 1}]
    assert [rel.name for rel in bridge.catalog.rels(bridge.subscription.name)] == ["t"]
    assert "a catalog ignores case: rename one of them" in capsys.readouterr().out


def test_what_others_did_to_the_tables(spark, publisher, pipeline, namespace):
    """A view, another format, rows that are there already, and a table that is gone: an error that says so."""
    publisher.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t")
    spark.sql(f"CREATE NAMESPACE {namespace}")
    table = f"{namespace}.t"
    for number, (made, words) in enumerate(
        {
            f"CREATE VIEW {table} AS SELECT 1 AS id": "is a view, not a Delta table",
            f"CREATE TABLE {table} (id int) USING parquet": "is a table of the format parquet, not a Delta table",
            f"CREATE TABLE {table} USING delta AS SELECT 7 AS id": "has rows already",
        }.items()
    ):
        spark.sql(made)
        bridge = pipeline(warehouse=f"catalog:spark_catalog.{namespace}", slot_name=f"{publisher.name}_{number}")
        with pytest.raises(TargetError, match=words):
            bridge.catch_up()
        publisher.execute(f"SELECT pg_drop_replication_slot('{publisher.name}_{number}')")
        if number < 2:
            spark.sql(f"DROP {'VIEW' if 'VIEW' in made else 'TABLE'} {table}")
    bridge = pipeline(warehouse=f"catalog:spark_catalog.{namespace}", target__adopt=True)
    bridge.catch_up()
    assert bridge.rows("t") == [{"id": 1}]
    spark.sql(f"DROP TABLE {table}")
    publisher.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(TargetError, match="does not exist any more"):
        bridge.catch_up()


def test_the_table_of_messages_may_not_be_a_published_one(publisher, pipeline, namespace):
    publisher.execute("CREATE TABLE pgbridge_messages (id int); CREATE PUBLICATION pub FOR TABLE pgbridge_messages")
    bridge = pipeline(warehouse=f"catalog:spark_catalog.{namespace}", messages="table")
    with pytest.raises(ConfigError, match=r'of the published table "public.pgbridge_messages"'):
        bridge.catch_up()


@pytest.mark.soak  # 90 s; the daemon of `tests/faults/test_catalog.py` has the same load with kills
def test_random_workload(spark, publisher, pipeline, namespace):
    """As a native subscriber has it."""
    with Workload(publisher.conninfo, 20261124) as workload:
        workload.create_tables()
        workload.publication("pub")
        workload.step(60)
        with NativeSubscriber(publisher.conninfo, ["pub"]) as native:
            bridge = pipeline(warehouse=f"catalog:spark_catalog.{namespace}", batch__max_rows=1000)
            for _ in range(4):
                bridge.catch_up()
                workload.step(60)
            bridge.catch_up()
            native.wait_caught_up()
            for table in TABLES:
                assert differences(spark, bridge.path(table), native, table) == []

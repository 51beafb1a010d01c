"""`format("pgoutput")` in Spark: its own checkpoints, restarts and limits, into Delta.

`spark.read.format("pgoutput")`: the published rows, by filter and column list.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

import pgbridge
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError, TableAltered
from pgbridge.bridge.source.data_source import PgoutputSource
from pgbridge.bridge.source.export import export_snapshot
from pgbridge.bridge.sync import table_reading
from tests.bridge.source.without_spark import eventually, rows

SLOT = "source_slot"


@pytest.fixture
def stream(spark, publisher, tmp_path):
    return Source(spark, publisher, tmp_path)


class Source:
    """A table, its publication and slot, and a query into a Delta table, with one checkpoint."""

    def __init__(self, spark, publisher, folder: Path) -> None:
        pgbridge.register(spark)
        self.spark, self.publisher, self.folder = spark, publisher, folder
        self.slot = f"{SLOT}_{publisher.name}"[:63].lower()
        publisher.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(10,2))")
        publisher.execute("CREATE TABLE notes (note text)")
        publisher.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
        publisher.execute("CREATE PUBLICATION shop FOR TABLE orders, notes")
        self.create_slot()

    def create_slot(self) -> None:
        self.publisher.query(f"SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput')")

    def reader(self, **options):
        given = {"connection": self.publisher.conninfo, "publication": "shop", "slot": self.slot, **options}
        return self.spark.readStream.format("pgoutput").options(**given)

    def run(self, frame=None, name="changes", **options):
        """Run a query into a Delta table until it has what is there now; return its progress reports."""
        frame = self.reader(**options).load() if frame is None else frame
        query = (
            frame.writeStream.format("delta")
            .option("checkpointLocation", str(self.folder / f"{name}.checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / name))
        )
        query.awaitTermination()
        return query.recentProgress

    def rows(self, name="changes"):
        found = self.spark.read.format("delta").load(str(self.folder / name))
        return found.orderBy("commit_lsn", "ordinal").collect()

    def equals(self, path):
        """Whether a Delta table has the rows of the published one."""
        found = self.spark.read.format("delta").load(path).orderBy("id").collect()
        return [tuple(row) for row in found] == self.publisher.query("SELECT * FROM orders ORDER BY id")

    def offsets(self, name="changes"):
        """The offsets that the checkpoint has, by batch."""
        files = (self.folder / f"{name}.checkpoint" / "offsets").iterdir()
        found = {int(file.name): file.read_text().splitlines()[2] for file in files if file.name.isdigit()}
        return [json.loads(found[batch]) for batch in sorted(found)]

    def is_free(self, slot):
        """Whether nobody reads a slot: the server may take a moment to see that a query has ended."""
        query = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
        return self.publisher.query(query) == [(False,)]

    def advance(self):
        """Move the slot as somebody else does it, once the query has left it."""
        assert eventually(partial(self.is_free, self.slot), 60)
        self.publisher.query(f"SELECT pg_replication_slot_advance('{self.slot}', pg_current_wal_lsn())")

    def confirmed(self):
        return self.publisher.query(
            f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        )[0][0]


def test_changes_of_one_table_and_restarts(stream):
    """Each run goes on at the checkpoint; the slot is confirmed up to what an earlier run has committed."""
    stream.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1.5), (2, 'b', 2.5)")
    stream.publisher.execute("INSERT INTO notes VALUES ('not asked for')")
    stream.publisher.execute("UPDATE orders SET total = 9 WHERE id = 1; UPDATE orders SET id = 3 WHERE id = 2")
    before = stream.confirmed()
    stream.run(table="public.orders")
    assert stream.confirmed() == before
    stream.publisher.execute("DELETE FROM orders WHERE id = 3; TRUNCATE orders, notes")
    stream.run(table="public.orders")
    rows = stream.rows()
    assert [(r.operation, r.ordinal, r.old and r.old.id, r.new and r.new.id) for r in rows] == [
        ("INSERT", 0, None, 1),
        ("INSERT", 1, None, 2),
        ("UPDATE", 0, None, 1),
        ("UPDATE", 1, 2, 3),
        ("DELETE", 0, 3, None),
        ("TRUNCATE", rows[5].ordinal, None, None),
    ]
    assert rows[5].ordinal in {1, 2}
    assert str(rows[2].new.total) == "9.00"
    assert rows[3].old.customer is None
    assert stream.confirmed() == stream.offsets()[0]["lsn"]
    assert all(r.xid > 0 and r.commit_time is not None and r.unchanged is None for r in rows)


def test_all_tables_in_one_stream(stream):
    stream.publisher.execute(
        "INSERT INTO orders VALUES (1, 'a', 1); INSERT INTO notes VALUES ('n'); "
        "DELETE FROM notes; INSERT INTO orders VALUES (2, 'b', 2)"
    )
    stream.run()
    rows = stream.rows()
    assert [(r.table, r.operation, r.ordinal) for r in rows] == [
        ("public.orders", "INSERT", 0),
        ("public.notes", "INSERT", 1),
        ("public.notes", "DELETE", 2),
        ("public.orders", "INSERT", 3),
    ]
    assert rows[2]["public.notes"].old.note == "n"
    assert rows[2]["public.orders"] is None
    assert len({r.commit_lsn for r in rows}) == 1


def test_a_batch_that_failed_between_sink_and_checkpoint_comes_once(stream):
    """The sink has the batch and the checkpoint does not: it is read again from the slot, and Delta leaves it out."""
    table = str(stream.folder / "appended")
    failing = [True]

    def append(frame, batch_id) -> None:
        stamped = frame.write.format("delta").option("txnAppId", "orders_query").option("txnVersion", batch_id)
        stamped.mode("append").save(table)
        if failing[0]:
            raise RuntimeError("killed here")

    def run():
        frame = stream.reader(table="public.orders").load()
        query = frame.writeStream.foreachBatch(append).option("checkpointLocation", str(stream.folder / "once"))
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()

    stream.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    with pytest.raises(StreamingQueryException, match="killed here"):
        run()
    failing[0] = False
    stream.publisher.execute("INSERT INTO orders VALUES (3, 'c', 3)")
    run()
    run()  # before Spark 4.2, a run that has a batch left from the one before ends with it
    assert [row.new.id for row in stream.rows("appended")] == [1, 2, 3]


def test_an_error_of_the_source_says_what_to_do(stream):
    with pytest.raises(AnalysisException, match='no option "slots" for readStream'):
        stream.reader(slots="x").load()
    frame = stream.reader(table="public.orders").load()
    stream.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    stream.run(frame)
    stream.advance()
    stream.publisher.execute("INSERT INTO orders VALUES (2, 'a', 1)")
    stream.advance()
    with pytest.raises(StreamingQueryException, match="the changes between are lost(.|\\n)*new checkpointLocation"):
        stream.run(frame)


def test_a_snapshot_in_spark(stream):
    stream.publisher.execute("INSERT INTO orders SELECT i, 'c', i FROM generate_series(1, 100) i")
    reader = stream.spark.read.format("pgoutput").options(connection=stream.publisher.conninfo, publication="shop")
    with pgbridge.export_snapshot(stream.publisher.conninfo, "shop") as snapshot:
        rows = reader.option("table", "public.orders").option("snapshot", snapshot.name).load()
        assert rows.selectExpr("sum(id)", "sum(total)").collect()[0][:] == (5050, Decimal(5050))


def test_the_examples_of_the_page(stream):
    """docs/spark-source.md: copy, follow, and start again; the table equals the published one. Then a second query."""
    page = (Path(__file__).parents[3] / "docs" / "spark-source.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    stream.publisher.execute("INSERT INTO orders SELECT i, 'c' || i, i FROM generate_series(1, 20) i")
    orders = str(stream.folder / "orders")
    names = {
        "spark": stream.spark,
        "connection": stream.publisher.conninfo,
        "orders": orders,
        "checkpoint": str(stream.folder / "example"),
        "mirror": str(stream.folder / "mirror"),
        "changelog": str(stream.folder / "changelog"),
    }
    try:
        for change in ("UPDATE orders SET id = id + 100, total = 7 WHERE id < 6", "DELETE FROM orders WHERE id > 101"):
            exec(compile(first, "spark-source.md", "exec"), names)
            stream.publisher.execute(change)
            try:
                assert eventually(partial(stream.equals, orders), 90)
            finally:
                names["query"].stop()
            assert eventually(partial(stream.is_free, "orders_query"), 60)
        exec(compile(second, "spark-source.md", "exec"), names)
        try:
            stream.publisher.execute("INSERT INTO orders VALUES (-1, 'n', 0)")
            assert eventually(partial(stream.equals, names["mirror"]), 90)
            assert eventually(lambda: stream.spark.read.format("delta").load(names["changelog"]).count() > 0, 90)
        finally:
            names["both"].stop()
    finally:
        for slot in ("orders_query", "orders_changes"):
            assert eventually(partial(stream.is_free, slot), 60)
            stream.publisher.query(f"SELECT pg_drop_replication_slot('{slot}')")


def reading(source, **options):
    given = {"connection": source.publisher.conninfo, "publication": "shop", "table": "public.orders", **options}
    data = PgoutputSource(given)
    return data.schema(), data.reader(data.schema())


def test_filter_and_column_list(source):
    source.publisher.execute("INSERT INTO orders SELECT i, 'c', i FROM generate_series(1, 10) i")
    if source.publisher.query("SHOW server_version_num")[0][0] < "150000":
        pytest.skip("filters and column lists are PostgreSQL 15's")
    source.publisher.execute("CREATE PUBLICATION vip FOR TABLE orders (id, total) WHERE (id > 7)")
    schema, reader = reading(source, publication="vip")
    assert schema.simpleString() == "struct<id:int,total:decimal(10,2)>"
    assert [row["id"] for row in rows(reader)] == [8, 9, 10]


def test_ranges_under_one_snapshot(source, monkeypatch):
    """A large table is read by several tasks, and what is committed meanwhile is not there."""
    monkeypatch.setattr(table_reading, "RANGE_BYTES", 100 * 8192)
    source.publisher.execute("INSERT INTO orders SELECT i, repeat('x', 900), 1 FROM generate_series(1, 4000) i")
    with export_snapshot(source.publisher.conninfo, "shop") as snapshot:
        source.publisher.execute("UPDATE orders SET id = -id; INSERT INTO orders VALUES (0, 'late', 1)")
        _, reader = reading(source, snapshot=snapshot.name)
        assert len(reader.partitions()) > 2
        assert sorted(row["id"] for row in rows(reader)) == list(range(1, 4001))


def test_a_table_that_was_rewritten_since_somebody_exported_the_snapshot(source):
    """It would be read as if it were empty."""
    source.publisher.execute("INSERT INTO orders VALUES (1, 'c', 1)")
    with source.publisher.connect() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = other.execute("SELECT pg_export_snapshot()").fetchall()
        source.publisher.execute("ALTER TABLE orders ALTER total TYPE numeric(10, 2) USING total * 100")
        with pytest.raises(TableAltered, match='"public.orders" was rewritten'):
            reading(source, snapshot=snapshot)[1].partitions()


def test_what_is_refused(source):
    with pytest.raises(PublisherError, match='table "public.other" is not published by shop') as caught:
        reading(source, table="public.other")
    assert "public.notes, public.orders" in caught.value.hint
    with pytest.raises(PublisherError, match='publication "none" does not exist'):
        reading(source, publication="none")
    with pytest.raises(ConfigError, match='option "slot" is missing for readStream, or option "table" for read'):
        PgoutputSource({"connection": source.publisher.conninfo, "publication": "shop"}).schema()

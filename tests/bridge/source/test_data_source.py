"""`format("pgoutput")` in Spark: its own checkpoints, restarts and limits, into Delta."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bridge.source.register import register

if TYPE_CHECKING:
    from pathlib import Path

SLOT = "source_slot"


@pytest.fixture
def stream(spark, publisher, tmp_path):
    return Source(spark, publisher, tmp_path)


class Source:
    """A table, its publication and slot, and a query into a Delta table, with one checkpoint."""

    def __init__(self, spark, publisher, folder: Path) -> None:
        register(spark)
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

    def offsets(self, name="changes"):
        """The offsets that the checkpoint has, by batch."""
        files = (self.folder / f"{name}.checkpoint" / "offsets").iterdir()
        found = {int(file.name): file.read_text().splitlines()[2] for file in files if file.name.isdigit()}
        return [json.loads(found[batch]) for batch in sorted(found)]

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

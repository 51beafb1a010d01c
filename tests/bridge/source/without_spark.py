"""The source without Spark: what Spark's planner and its tasks call, in this process."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

from pgbridge.bridge.source.data_source import PgoutputSource
from pgbridge.protocol.lsn import Lsn


class Source:
    """A publication and a slot, and readers of it as Spark makes them."""

    def __init__(self, publisher) -> None:
        self.publisher = publisher
        self.slot = f"slot_{publisher.name}"[:63].lower()
        publisher.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(10,2))")
        publisher.execute("ALTER TABLE orders ALTER customer SET STORAGE EXTERNAL")
        publisher.execute("CREATE TABLE notes (note text)")
        publisher.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
        publisher.execute("CREATE TABLE other (id int PRIMARY KEY)")
        publisher.execute("CREATE PUBLICATION shop FOR TABLE orders, notes")
        self.create_slot()
        self.readers: list[Any] = []

    def create_slot(self) -> None:
        self.publisher.query(f"SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput')")

    def drop_slot(self) -> None:
        assert eventually(self.is_free)
        self.publisher.query(f"SELECT pg_drop_replication_slot('{self.slot}')")

    def is_free(self) -> bool:
        """Whether no walsender has the slot: one notices a moment later that its connection was closed."""
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = "
        return bool(self.publisher.query(f"{active}'{self.slot}'") == [(False,)])

    def reader(self, **options):
        given = {"connection": self.publisher.conninfo, "publication": "shop", "slot": self.slot}
        source = PgoutputSource({**given, "slotTimeoutSeconds": "20", **options})
        reader = source.streamReader(source.schema())
        self.readers.append(reader)
        return reader

    def close(self) -> None:
        for reader in self.readers:
            reader.stop()

    def confirmed(self) -> Lsn:
        slots = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = "
        return Lsn.parse(self.publisher.query(f"{slots}'{self.slot}'")[0][0])


def planned(reader, start):
    """The end of the next batch, through JSON as Spark has it."""
    limit = reader.getDefaultReadLimit()
    return json.loads(json.dumps(reader.latestOffset(start, limit)))


def rows_of(reader, start, end):
    """A batch's rows, as a task gets them: pickled reader, pickled partitions."""
    found = []
    for partition in reader.partitions(start, end):
        there = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(type(reader)(reader._options, reader._schema)))))
        batches = list(there.read(pickle.loads(pickle.dumps(partition))))
        found += [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["commit_lsn"], row["ordinal"]))


def rows(reader):
    """What a snapshot's reader reads."""
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def eventually(is_so, timeout_s=10.0):
    end_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True

"""A snapshot and the stream of the slot that was created with it meet exactly."""

from __future__ import annotations

import threading

import psycopg
import pytest

from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.source.data_source import PgoutputSource
from pgbridge.bridge.source.export import export_snapshot
from tests.bridge.source.without_spark import planned, rows, rows_of


def test_snapshot_and_stream_meet_exactly(source):
    """Rows are inserted all the time; each comes either in the snapshot or in the stream, and none in both."""
    source.drop_slot()
    stop = threading.Event()
    count = 0

    def insert() -> None:
        nonlocal count
        with psycopg.connect(source.publisher.conninfo, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute("INSERT INTO orders VALUES (%s, 'x', 1)", (count,))
                count += 1

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        with export_snapshot(source.publisher.conninfo, "shop", slot=source.slot) as snapshot:
            assert snapshot.tables == ("public.notes", "public.orders")
            given = {"connection": source.publisher.conninfo, "publication": "shop", "table": "public.orders"}
            data = PgoutputSource({**given, "snapshot": snapshot.name})
            reader = data.reader(data.schema())
            copied = [row["id"] for row in rows(reader)]
    finally:
        stop.set()
        thread.join()
    stream = source.reader()
    start = stream.initialOffset()
    assert start["lsn"] == str(snapshot.lsn)
    streamed = [r["public.orders"]["new"]["id"] for r in rows_of(stream, start, planned(stream, start))]
    assert sorted(copied) + streamed == list(range(count))
    assert streamed


def test_without_a_slot_nothing_stays(source):
    slots = "SELECT count(*) FROM pg_replication_slots WHERE temporary"
    with export_snapshot(source.publisher.conninfo, ["shop"]) as snapshot:
        assert source.publisher.query(slots) == [(1,)]
    given = {"connection": source.publisher.conninfo, "publication": "shop", "table": "public.orders"}
    data = PgoutputSource({**given, "snapshot": snapshot.name})
    reader = data.reader(data.schema())
    with pytest.raises(PublisherError, match="snapshot"):
        list(reader.read(reader.partitions()[0]))


def test_a_slot_that_exists_is_refused(source):
    with (
        pytest.raises(PublisherError, match="already exists"),
        export_snapshot(source.publisher.conninfo, "shop", slot=source.slot),
    ):
        pass


def test_a_table_that_is_not_published_leaves_no_slot(source):
    slot = f"{source.slot}_of_nothing"[:63]
    for name in ("orders", "public.nothing"):
        with (
            pytest.raises(PublisherError, match=f'table "{name}" is not published by shop'),
            export_snapshot(source.publisher.conninfo, "shop", slot=slot, table=name),
        ):
            pass
    assert source.publisher.query(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}'") == []

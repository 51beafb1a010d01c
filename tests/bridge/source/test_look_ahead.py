"""The planner's stream: it does not hold up the server, and a batch does not depend on what it has seen."""

from __future__ import annotations

from pgbridge.bridge.source.look_ahead import HELD_BYTES
from pgbridge.bridge.source.stream_reader import FromSlot
from tests.bridge.source.without_spark import eventually, planned, rows_of


def test_the_slot_is_released_when_more_comes_than_is_held(source):
    """A query may be triggered once an hour: meanwhile a full planner must not keep the walsender waiting."""
    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (0, 'a', 1)")
    first = planned(reader, start)
    assert len(rows_of(reader, start, first)) == 1
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{source.slot}'"
    assert source.publisher.query(active) == [(True,)]
    for i in range(4):
        ids = f"generate_series({i * 100 + 1}, {i * 100 + 100}) i"
        source.publisher.execute(f"INSERT INTO orders SELECT i, repeat('x', 100000), 1 FROM {ids}")
    assert 2 * HELD_BYTES < 4 * 100 * 100_000
    assert eventually(lambda: source.publisher.query(active) == [(False,)])
    end = planned(reader, first)
    partitions = reader.partitions(first, end)
    assert [type(partition) for partition in partitions] == [FromSlot]
    assert [r["public.orders"]["new"]["id"] for r in rows_of(reader, first, end)] == list(range(1, 401))


def test_a_connection_that_is_lost_is_opened_again(source):
    """A server that restarts does not end the query, unless it stays away for longer than slotTimeoutSeconds."""
    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    first = planned(reader, start)
    ours = f"application_name = '{source.slot}'"
    source.publisher.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    source.publisher.execute("INSERT INTO orders VALUES (2, 'a', 1)")
    second = planned(reader, first)
    assert [r["public.orders"]["new"]["id"] for r in rows_of(reader, first, second)] == [2]


def test_available_now_ends_where_the_server_was(source):
    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    reader.prepareForTriggerAvailableNow()
    source.publisher.execute("INSERT INTO orders VALUES (2, 'a', 1)")
    end = planned(reader, start)
    assert [r["public.orders"]["new"]["id"] for r in rows_of(reader, start, end)] == [1]
    assert planned(reader, end) == end

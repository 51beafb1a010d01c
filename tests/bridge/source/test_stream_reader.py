"""The stream as Spark calls it, on a real server, without Spark: offsets, limits, confirmation and refusals."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgbridge.bridge.runtime.errors import ApplyError, ConfigError, PublisherError, SlotAdvanced
from pgbridge.bridge.source.stream_reader import Decoded, FromSlot, UnlimitedStreamReader
from pgbridge.protocol.lsn import Lsn
from tests.bridge.source.without_spark import eventually, planned, rows_of


def kinds(reader, start, end):
    return [type(partition) for partition in reader.partitions(start, end)]


def short(rows):
    return [(r["table"], r["operation"], r["ordinal"]) for r in rows]


def test_a_batch_from_memory_and_from_the_slot_are_the_same(source):
    """A small batch is decoded where it is planned; after a restart the same rows come from the slot."""
    source.publisher.execute(
        "INSERT INTO orders VALUES (1, 'a', 1.5), (2, 'b', 2.5); INSERT INTO notes VALUES ('n'); "
        "TRUNCATE orders, notes; INSERT INTO orders VALUES (3, 'c', 3)"
    )
    source.publisher.execute("UPDATE orders SET id = 4 WHERE id = 3; DELETE FROM orders")
    reader = source.reader()
    start = reader.initialOffset()
    end = planned(reader, start)
    assert kinds(reader, start, end) == [Decoded]
    rows = rows_of(reader, start, end)
    reader.stop()
    again = source.reader()
    assert kinds(again, start, end) == [FromSlot]
    assert rows_of(again, start, end) == rows
    assert rows_of(again, start, end) == rows
    ordinals = [(r["commit_lsn"], r["ordinal"]) for r in rows]
    assert len(set(ordinals)) == len(rows) == 8
    assert [r["ordinal"] for r in rows] == [0, 1, 2, 3, 4, 5, 0, 1]
    assert [r["operation"] for r in rows][3:] == ["TRUNCATE", "TRUNCATE", "INSERT", "UPDATE", "DELETE"]
    assert {r["table"] for r in rows[3:5]} == {"public.orders", "public.notes"}
    assert rows[6]["public.orders"]["old"] == {"id": 3, "customer": None, "total": None}
    assert rows[6]["public.orders"]["new"]["id"] == 4
    assert rows[6]["public.notes"] is None


def test_the_slot_moves_only_with_a_commit(source):
    """Reading confirms nothing, however often; `commit` does, by the stream that is open or by the next."""
    reader = source.reader()
    start = reader.initialOffset()
    before = source.confirmed()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    end = planned(reader, start)
    rows_of(reader, start, end)
    source.publisher.execute("INSERT INTO orders VALUES (2, 'a', 1)")
    second = planned(reader, end)
    assert source.confirmed() == before
    reader.commit(end)
    assert eventually(lambda: source.confirmed() == Lsn.parse(end["lsn"]))
    reader.stop()
    again = source.reader()
    again.commit(second)
    source.publisher.execute("INSERT INTO orders VALUES (3, 'a', 1)")
    third = planned(again, second)
    assert eventually(lambda: source.confirmed() == Lsn.parse(second["lsn"]))
    assert [r["public.orders"]["new"]["id"] for r in rows_of(again, second, third)] == [3]


def test_nothing_published_makes_no_batch_before_the_interval(source):
    """WAL of other tables moves the offset only once in a while; an empty batch has no task."""
    reader = source.reader()
    start = planned_past(reader, source)
    source.publisher.execute("INSERT INTO other VALUES (1)")
    assert planned(reader, start) == start
    often = source.reader(idleIntervalSeconds="0")
    reader.stop()
    source.publisher.execute("INSERT INTO other VALUES (2)")
    end = planned(often, start)
    assert end["lsn"] != start["lsn"]
    assert list(often.partitions(start, end)) == []
    source.publisher.execute("INSERT INTO orders VALUES (9, 'a', 1)")
    after = planned(often, end)
    assert len(rows_of(often, end, after)) == 1


def planned_past(reader, source):
    """An offset after everything that there is."""
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (-1, '', 0)")
    return planned(reader, start)


def test_rows_limit_a_batch_in_whole_transactions(source):
    for first in (0, 10, 20):
        source.publisher.execute(f"INSERT INTO orders SELECT i, 'x', 1 FROM generate_series({first}, {first + 4}) i")
    reader = source.reader(maxRowsPerTrigger="7")
    offset = reader.initialOffset()
    sizes = []
    for _ in range(5):
        end = planned(reader, offset)
        if end == offset:
            break
        sizes.append(len(rows_of(reader, offset, end)))
        offset = end
    assert sizes[:2] == [10, 5]


def test_bytes_limit_a_batch_and_none_is_empty(source):
    """A limit in the midst of a transaction ends the batch before it, and what has nothing is passed over."""
    source.publisher.execute("INSERT INTO orders SELECT i, repeat('x', 100), 1 FROM generate_series(1, 1000) i")
    source.publisher.execute("INSERT INTO orders SELECT i, repeat('x', 100), 1 FROM generate_series(2001, 3000) i")
    reader = source.reader(maxBytesPerTrigger="1k")
    offset = reader.initialOffset()
    sizes = []
    while (end := planned(reader, offset)) != offset:
        sizes.append(len(rows_of(reader, offset, end)))
        offset = end
    assert [size for size in sizes if size] == [1000, 1000]
    assert len(sizes) <= 3


def test_a_batch_that_ends_within_a_commit_record_has_its_transaction(source):
    """A limit of bytes ends a batch anywhere; the server leaves out what commits before where a stream begins."""
    for number in range(3):
        source.publisher.execute(f"INSERT INTO orders VALUES ({number}, 'a', 1)")
    reader = source.reader()
    start = reader.initialOffset()
    end = planned(reader, start)
    _, commit_lsn, _ = (row["commit_lsn"] for row in rows_of(reader, start, end))
    reader.stop()
    for within in (0, 1, 8, 47):
        middle = {**end, "lsn": str(Lsn(commit_lsn + within))}
        again = source.reader()
        parts = [
            [r["public.orders"]["new"]["id"] for r in rows_of(again, *part)]
            for part in ((start, middle), (middle, end))
        ]
        assert parts == ([[0, 1], [2]] if within else [[0], [1, 2]])
        again.stop()


def test_a_large_batch_is_read_from_the_slot(source):
    """More than memory holds: the planner lets go of the slot, and a task reads it, spooled where it has to be."""
    source.publisher.execute("INSERT INTO orders SELECT i, repeat('x', 30000), 1 FROM generate_series(1, 2300) i")
    reader = source.reader()
    start = reader.initialOffset()
    end = planned(reader, start)
    assert kinds(reader, start, end) == [FromSlot]
    rows = rows_of(reader, start, end)
    assert [r["ordinal"] for r in rows] == list(range(2300))
    assert [r["public.orders"]["new"]["id"] for r in rows] == list(range(1, 2301))


def test_unchanged_toast_is_named(source):
    source.publisher.execute("INSERT INTO orders VALUES (1, repeat('x', 9000), 1)")
    source.publisher.execute("UPDATE orders SET total = 2")
    reader = source.reader()
    start = reader.initialOffset()
    rows = rows_of(reader, start, planned(reader, start))
    assert rows[1]["public.orders"]["unchanged"] == ["customer"]
    assert rows[1]["public.orders"]["new"]["customer"] is None
    assert rows[0]["public.orders"]["unchanged"] is None


def test_a_slot_that_moved_is_refused(source):
    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    source.publisher.query(f"SELECT pg_replication_slot_advance('{source.slot}', pg_current_wal_lsn())")
    with pytest.raises(SlotAdvanced, match="the changes between are lost"):
        planned(reader, start)
    source.drop_slot()
    with pytest.raises(PublisherError, match="does not exist on the publisher any more"):
        planned(source.reader(), start)


def test_a_slot_that_was_made_again_before_the_first_batch_is_refused(source):
    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    end = planned(reader, start)
    reader.stop()
    source.drop_slot()
    source.create_slot()
    again = source.reader()
    with pytest.raises(SlotAdvanced, match="dropped and created again"):
        again.partitions(again.initialOffset(), end)


def test_another_server_and_timeline_are_refused(source):
    reader = source.reader()
    start = reader.initialOffset()
    with pytest.raises(PublisherError, match="another server") as caught:
        planned(reader, {**start, "system_identifier": "1"})
    assert "checkpointLocation" in caught.value.hint
    with pytest.raises(PublisherError, match="is on timeline 1"):
        planned(reader, {**start, "timeline": 7})


def test_a_slot_in_use_is_waited_for_and_then_named(source):
    first = source.reader()
    start = first.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    planned(first, start)
    with pytest.raises(PublisherError, match="is active for PID .*waited for 1 s"):
        planned(source.reader(slotTimeoutSeconds="1"), start)
    first.stop()
    second = source.reader()
    assert len(rows_of(second, start, planned(second, start))) == 1


def test_a_slot_is_created_only_if_asked(source):
    source.drop_slot()
    with pytest.raises(PublisherError, match="does not exist") as caught:
        source.reader().initialOffset()
    assert f"pg_create_logical_replication_slot('{source.slot}', 'pgoutput')" in caught.value.hint
    start = source.reader(create_slot="true").initialOffset()
    assert Lsn.parse(start["lsn"]) == source.confirmed()


def test_a_column_that_is_added_stops_the_query_until_a_restart(source):
    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    source.publisher.execute("ALTER TABLE orders ADD COLUMN note text")
    source.publisher.execute("INSERT INTO orders VALUES (2, 'a', 1, 'n')")
    with pytest.raises(ApplyError, match='column "note" of table "public.orders".*DataFrame lacks it') as caught:
        planned(reader, start)
    assert "restart the query" in caught.value.hint
    reader.stop()
    again = source.reader()
    rows = rows_of(again, start, planned(again, start))
    assert [r["public.orders"]["new"]["note"] for r in rows] == [None, "n"]


def test_a_dropped_column_needs_the_schema_as_it_was(source):
    old = source.reader()._schema
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    source.publisher.execute("ALTER TABLE orders DROP COLUMN total")
    reader = source.reader()
    start = reader.initialOffset()
    with pytest.raises(ApplyError, match='column "total"') as caught:
        planned(reader, start)
    assert ".schema(" in caught.value.hint
    reader.stop()
    given = type(reader)(reader._options, old)
    source.readers.append(given)
    assert str(rows_of(given, start, planned(given, start))[0]["public.orders"]["new"]["total"]) == "1.00"


def test_a_wider_type_is_cast_and_a_narrower_one_refused(source):
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    source.publisher.execute("ALTER TABLE orders ALTER id TYPE bigint")
    reader = source.reader()
    start = reader.initialOffset()
    assert rows_of(reader, start, planned(reader, start))[0]["public.orders"]["new"]["id"] == 1
    running = planned(reader, start)
    source.publisher.execute("ALTER TABLE orders ALTER id TYPE text")
    source.publisher.execute("INSERT INTO orders VALUES ('x', 'a', 1)")
    with pytest.raises(ApplyError, match='column "id".*which the DataFrame\'s type int64 does not hold'):
        planned(reader, running)


def test_a_table_that_is_published_later_stops_the_query_or_is_ignored(source):
    reader, ignoring = source.reader(), source.reader(unknownTables="ignore")
    start = reader.initialOffset()
    source.publisher.execute("ALTER PUBLICATION shop ADD TABLE other")
    source.publisher.execute("INSERT INTO other VALUES (1); INSERT INTO orders VALUES (1, 'a', 1)")
    with pytest.raises(ApplyError, match='table "public.other" has changes, and the DataFrame has no column for it'):
        planned(reader, start)
    reader.stop()
    assert short(rows_of(ignoring, start, planned(ignoring, start))) == [("public.orders", "INSERT", 1)]


def test_a_value_that_cannot_be_held(source):
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 'NaN')")
    reader = source.reader()
    start = reader.initialOffset()
    with pytest.raises(ApplyError, match='NaN.*\\n?.*column "total"') as caught:
        planned(reader, start)
    assert "unrepresentable" in caught.value.hint
    reader.stop()
    null = source.reader(unrepresentable="null")
    assert rows_of(null, start, planned(null, start))[0]["public.orders"]["new"]["total"] is None


def test_the_server_can_stop_while_the_planner_holds_the_slot(source):
    """It waits for subscribers that tell a flush position until they have flushed everything; ours tells none."""
    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    reader.commit(start)
    planned(reader, start)
    told = "SELECT flush_lsn::text FROM pg_stat_replication WHERE application_name = "
    assert eventually(lambda: source.publisher.query(f"{told}'{source.slot}'") == [(None,)])


def test_arrow_batches_have_the_schema_that_spark_expects(source):
    from pyspark.sql.pandas.types import to_arrow_schema

    reader = source.reader()
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    end = planned(reader, start)
    (partition,) = reader.partitions(start, end)
    batch = next(reader.read(partition))
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.equals(to_arrow_schema(reader._schema, timezone="UTC"))


# --- Spark 4.0 and 4.1, which say neither where a batch starts nor how large it may be -------------------------------


def unlimited(source, **options):
    reader = source.reader(**options)
    of_old = UnlimitedStreamReader(reader._options, reader._schema)
    source.readers.append(of_old)
    return of_old


def numbers(rows):
    return [row["public.orders"]["new"]["id"] for row in rows]


def test_a_batch_has_all_that_the_server_has(source):
    reader = unlimited(source)
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    source.publisher.execute("INSERT INTO orders VALUES (2, 'a', 1)")
    end = reader.latestOffset()
    assert kinds(reader, start, end) == [FromSlot]
    assert numbers(rows_of(reader, start, end)) == [1, 2]
    source.publisher.execute("INSERT INTO other VALUES (1)")
    assert reader.latestOffset() == end  # nothing published: no batch
    source.publisher.execute("INSERT INTO orders VALUES (3, 'a', 1)")
    last = reader.latestOffset()
    assert kinds(reader, end, last) == [Decoded]
    assert numbers(rows_of(reader, end, last)) == [3]


def test_after_a_restart_the_first_batch_begins_where_the_checkpoint_is(source):
    """Spark says where only when it plans the batch: its end cannot depend on it."""
    reader = unlimited(source)
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    end = reader.latestOffset()
    reader.stop()
    source.publisher.execute("INSERT INTO orders VALUES (2, 'a', 1)")
    again = unlimited(source)
    assert numbers(rows_of(again, start, end)) == [1]  # a batch that was planned, but not committed
    again.commit(end)
    last = again.latestOffset()
    assert numbers(rows_of(again, end, last)) == [2]
    again.stop()
    source.publisher.execute("INSERT INTO orders VALUES (3, 'a', 1)")
    third = unlimited(source)
    newest = third.latestOffset()  # a batch that was committed: nothing says where the next one starts
    assert kinds(third, last, newest) == [FromSlot]
    assert numbers(rows_of(third, last, newest)) == [3]
    assert third.latestOffset() == newest


def test_after_a_restart_a_slot_that_has_moved_is_refused(source):
    reader = unlimited(source)
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1)")
    reader.stop()
    source.drop_slot()
    source.create_slot()
    again = unlimited(source)
    end = again.latestOffset()
    with pytest.raises(SlotAdvanced, match="lost"):
        again.partitions(start, end)


@pytest.mark.parametrize("options", [{"maxRowsPerTrigger": "5"}, {"maxBytesPerTrigger": "1m"}, {"create_slot": "true"}])
def test_limits_need_a_newer_spark(source, options):
    with pytest.raises(ConfigError, match="needs? Spark 4.2") as raised:
        unlimited(source, **options)
    assert raised.value.hint is not None

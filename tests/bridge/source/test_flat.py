"""`shape = "flat"`: rows as Spark's AUTO CDC takes them, on a real server."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgbridge.bridge.runtime.errors import ConfigError
from pgbridge.bridge.source.flat import flat_schema
from tests.bridge.source.without_spark import planned


def flat(source, **options):
    return source.reader(**{"shape": "flat", "table": "public.orders", **options})


def changes(reader, start):
    """A batch's rows as they come, and its end."""
    end = planned(reader, start)
    batches = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
    return [row for batch in batches for row in batch.to_pylist()], end


def of_orders(rows):
    return [(row["_operation"], row["_ordinal"], row["id"], row["customer"], row["_unchanged"]) for row in rows]


def test_a_change_has_the_columns_of_its_row(source):
    reader = flat(source)
    start = reader.initialOffset()
    source.publisher.execute(
        "INSERT INTO orders VALUES (1, 'a', 1.5), (2, repeat('b', 3000), 2); UPDATE orders SET total = 3 WHERE id = 2;"
        "UPDATE orders SET id = 7 WHERE id = 1; DELETE FROM orders WHERE id = 2; TRUNCATE orders"
    )
    rows, end = changes(reader, start)
    assert of_orders(rows) == [
        ("INSERT", 0, 1, "a", None),
        ("INSERT", 1, 2, "b" * 3000, None),
        ("UPDATE", 2, 2, None, ["customer"]),
        ("DELETE", 3, 1, None, None),
        ("UPDATE", 3, 7, "a", None),
        ("DELETE", 4, 2, None, None),
        ("TRUNCATE", 5, None, None, None),
    ]
    assert len({row["_commit_lsn"] for row in rows}) == 1
    reader.stop()
    again = flat(source)  # from the slot
    assert changes(again, start)[0] == rows
    assert planned(again, end) == end


def test_whole_rows_as_identity_do_not_look_like_changed_keys(source):
    """REPLICA IDENTITY FULL sends the row before with each UPDATE; the primary key says whether it moved."""
    source.publisher.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    reader = flat(source)
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1); UPDATE orders SET customer = 'b'")
    source.publisher.execute("UPDATE orders SET id = 2; DELETE FROM orders")
    assert [row[:4] for row in of_orders(changes(reader, start)[0])] == [
        ("INSERT", 0, 1, "a"),
        ("UPDATE", 1, 1, "b"),
        ("DELETE", 0, 1, "b"),
        ("UPDATE", 0, 2, "b"),
        ("DELETE", 1, 2, "b"),
    ]


def test_the_key_is_that_of_the_change(source):
    """Not the one that the catalog has when the batch is read: a batch has the same rows each time."""
    reader = flat(source)
    start = reader.initialOffset()
    source.publisher.execute("INSERT INTO orders VALUES (1, 'a', 1); UPDATE orders SET id = 2; DELETE FROM orders")
    source.publisher.execute(
        "ALTER TABLE orders ALTER customer SET NOT NULL; CREATE UNIQUE INDEX i ON orders (customer)"
    )
    source.publisher.execute("ALTER TABLE orders REPLICA IDENTITY USING INDEX i")
    assert [row[:3] for row in of_orders(changes(reader, start)[0])] == [
        ("INSERT", 0, 1),
        ("DELETE", 1, 1),
        ("UPDATE", 1, 2),
        ("DELETE", 2, 2),
    ]


def test_a_table_without_a_key_moves_with_each_update(source):
    """All of its columns together are what identifies a row."""
    reader = flat(source, table="public.notes")
    start = reader.initialOffset()
    source.publisher.execute(
        "INSERT INTO notes VALUES ('n'); UPDATE notes SET note = 'm'; UPDATE notes SET note = note"
    )
    rows, _ = changes(reader, start)
    assert [(row["_operation"], row["note"]) for row in rows] == [
        ("INSERT", "n"),
        ("DELETE", "n"),
        ("UPDATE", "m"),
        ("UPDATE", "m"),
    ]


def test_what_cannot_be_flat_is_refused(source):
    with pytest.raises(ConfigError, match='shape = "flat" is of one table'):
        source.reader(shape="flat")
    with pytest.raises(ConfigError, match='option "shape" is images or flat, not "wide"'):
        source.reader(shape="wide", table="public.orders")
    with pytest.raises(ConfigError, match='has a column "_XID"'):
        flat_schema([("id", pa.int32()), ("_XID", pa.int32())])
    reader, images = flat(source), source.reader(table="public.orders")
    with pytest.raises(ConfigError, match="a flat one begins with _operation, _commit_lsn"):
        type(reader)(reader._options, images._schema)

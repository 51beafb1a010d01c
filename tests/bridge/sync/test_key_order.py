"""Rows of a large table are divided by ranges of its key, which the server's statistics tell."""

from __future__ import annotations

import random
import uuid

import pyarrow as pa
import pytest

from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.sync import key_order
from pgbridge.bridge.sync.key_order import LEAST_BYTES, MOST_BYTES, CopyOrder

TYPES = {"id": pa.string(), "n": pa.int64(), "ratio": pa.float64()}


@pytest.mark.parametrize(
    ("bounds", "values", "parts"),
    [
        ((10, 20), pa.array([-5, 9, 10, 19, 20, 1 << 62], pa.int64()), [0, 0, 1, 1, 2, 2]),
        ((0,), pa.array([-1, 0, 1], pa.int16()), [0, 1, 1]),
        ((b"b", b"b\xc3\xa4"), pa.array(["", "a", "b", "bz", "bä", "bä€", "😀"]), [0, 0, 1, 1, 2, 2, 2]),
        ((b"x" * 64,), pa.array(["x" * 63, "x" * 64, "x" * 65]), [0, 1, 1]),
        ((b"b",), pa.array([], pa.string()), []),
        ((b"b",), pa.array(["-", "a", "c", "-"]).slice(1, 2), [0, 1]),
    ],
)
def test_a_rows_part_is_the_last_one_whose_bound_is_not_above_it(bounds, values, parts):
    assert CopyOrder("id", bounds).part_of(values).to_pylist() == parts
    assert CopyOrder("id", bounds).parts == len(bounds) + 1


def test_parts_are_in_the_order_of_spark():
    """UTF-8 bytes, whatever the server's collation; then each part sorted makes all of it sorted."""
    chosen = random.Random(5)
    values = ["".join(chosen.choice("aAzZ _äß€😀") for _ in range(chosen.randrange(4))) for _ in range(300)]
    order = CopyOrder("id", key_order._bounds(values[:50], 7, texts=True))
    parts = order.part_of(pa.array(values)).to_pylist()
    by_part = sorted(zip(parts, (value.encode() for value in values), strict=True))
    assert [value for _, value in by_part] == sorted(value.encode() for value in values)
    assert set(parts) == set(range(order.parts))


@pytest.mark.parametrize(
    ("values", "parts", "bounds"),
    [
        (["1", "2", "3", "4", "5"], 2, (3,)),
        (["9", "10", "11", "-1", "0"], 100, tuple(range(11))),
        (["-9223372036854775808", "9223372036854775807"], 4, (-(1 << 62) - 1, -1, (1 << 62) - 1)),
        (["1", "2"], 5, ()),
        (["7"], 5, ()),
        (["1", "2", "3", "4", "5"], 1, ()),
    ],
)
def test_bounds_divide_evenly(values, parts, bounds):
    assert key_order._bounds(values, parts, texts=False) == bounds


@pytest.fixture
def ordered(publisher):
    """The order that a table of the publisher would be copied in, by its columns."""

    def order(table, *key, size=LEAST_BYTES + 1, parts=4):
        with Publisher(publisher.conninfo, application_name="test") as server:
            relid = server.connection.execute("SELECT %s::regclass::oid", [f"public.{table}"]).fetchone()
            assert relid is not None
            return key_order.copy_order(
                server, relid[0], {name: TYPES[name] for name in key}, table_bytes=size, parts=parts
            )

    return order


def test_statistics_tell_whether_and_how_rows_are_divided(publisher, ordered):
    publisher.execute(
        """CREATE TABLE t (id uuid PRIMARY KEY, n bigint, ratio float8);
        INSERT INTO t SELECT md5(i::text)::uuid, i, 1 FROM generate_series(1, 3000) i;
        CREATE TABLE parent (id uuid, n bigint) PARTITION BY HASH (n);
        CREATE TABLE child PARTITION OF parent FOR VALUES WITH (MODULUS 1, REMAINDER 0);
        INSERT INTO parent SELECT id, n FROM t"""
    )
    assert ordered("t", "id") is None
    publisher.execute("ANALYZE t; ANALYZE parent")
    order = ordered("t", "id")
    assert order.column == "id"
    assert order.parts == 4
    assert [uuid.UUID(bound.decode()).bytes[0] // 32 for bound in order.bounds] == pytest.approx([2, 4, 6], abs=1)
    assert ordered("parent", "id").parts == 4
    assert ordered("t", "n") is None  # its blocks are in this order
    publisher.execute("CREATE TABLE back AS SELECT * FROM t ORDER BY n DESC; ANALYZE back")
    assert ordered("back", "n") is None
    publisher.execute("CREATE TABLE mixed AS SELECT * FROM t ORDER BY id; ANALYZE mixed")
    assert ordered("mixed", "n").bounds == pytest.approx((750, 1500, 2250), abs=60)
    for nothing in (
        ordered("mixed", "n", size=LEAST_BYTES),
        ordered("mixed", "n", size=MOST_BYTES + 1),
        ordered("mixed", "n", size=None),
        ordered("mixed", "n", parts=1),
        ordered("mixed", "ratio"),
        ordered("mixed", "n", "id"),
        ordered("mixed"),
    ):
        assert nothing is None


def test_a_role_that_sees_no_statistics_copies_rows_as_they_come(publisher):
    publisher.execute(
        """CREATE TABLE t AS SELECT md5(i::text) AS id FROM generate_series(1, 100) i; ANALYZE t;
        REVOKE SELECT ON pg_stats FROM PUBLIC"""
    )
    (relid,) = publisher.query("SELECT 't'::regclass::oid")[0]
    for role, seen in (("none", True), ("pg_signal_backend", False)):
        conninfo = f"{publisher.conninfo} options='-c role={role}'"
        with Publisher(conninfo, application_name="test") as server:
            found = key_order.copy_order(server, relid, {"id": pa.string()}, table_bytes=MOST_BYTES, parts=2)
            assert (found is not None) == seen

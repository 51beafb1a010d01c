"""A locked table: its size and ranges, that nobody rewrites it meanwhile, and the privileges that a lock needs.

The COPY statement of a range, with the table's row filters and column list.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import psycopg
import pytest
from hypothesis import given, strategies as st
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.runtime.errors import PublisherError, TableAltered
from pgbridge.bridge.sync import table_reading
from pgbridge.bridge.sync.table_reading import (
    RANGE_BYTES,
    BlockRange,
    CopySize,
    TableLock,
    block_ranges,
    copy_select,
    copy_statement,
)
from pgbridge.protocol.values.pg_type import BUILTIN

SETUP = """
CREATE TABLE t (id int, pad text, secret text) WITH (autovacuum_enabled = off);
ALTER TABLE t ALTER pad SET STORAGE EXTERNAL;
CREATE TABLE root (id int) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE inner_root PARTITION OF root FOR VALUES FROM (10) TO (1000000) PARTITION BY RANGE (id);
CREATE TABLE inner_leaf PARTITION OF inner_root FOR VALUES FROM (10) TO (1000000) WITH (autovacuum_enabled = off);
CREATE TABLE empty (id int);
CREATE PUBLICATION pub FOR TABLE t (id, pad) WHERE (id <= 1000), TABLE root, TABLE empty
    WITH (publish_via_partition_root = true, publish = 'insert');
"""


@pytest.fixture
def locked(publisher):
    """Locks a published table: `locked(name)`."""
    publisher.execute(SETUP)

    with Publisher(publisher.conninfo, application_name="test") as catalog:
        tables = {table.name: table for table in catalog.tables(["pub"])}

    def locked(name, conninfo=publisher.conninfo, snapshot=None):
        return TableLock(conninfo, tables[name], snapshot, application_name="test")

    return locked


def test_size_and_ranges(publisher, locked, monkeypatch):
    monkeypatch.setattr(table_reading, "RANGE_BYTES", 64 * 8192)
    publisher.execute(
        "INSERT INTO t SELECT g, repeat('x', 3000), repeat('y', 300) FROM generate_series(1, 2000) g; ANALYZE t;"
        "INSERT INTO root SELECT generate_series(0, 60000); ANALYZE root"
    )
    with locked("t") as lock:
        assert lock.size.rows == pytest.approx(1000, rel=0.1), "those that the row filter passes"
        assert lock.size.row_bytes < 300, "without the column that is not published; what lies in TOAST is a pointer"
        assert len(lock.ranges) == 1
    with locked("root") as lock:
        assert len(lock.ranges) > 3
        assert lock.size.rows == pytest.approx(60001, rel=0.01)
        assert lock.size.row_bytes == 2 + 4 + 4
        assert lock.rows_per_file == 1_000_000
        lock.size = CopySize(3_000_000 * len(lock.ranges), 10)
        assert lock.rows_per_file == 6_000_000
    with locked("empty") as lock:
        assert lock.ranges == [BlockRange()]


@pytest.mark.parametrize(
    ("name", "rewriting"),
    [
        ("t", "VACUUM FULL t"),
        ("t", "ALTER TABLE t ALTER secret TYPE varchar(9)"),
        ("root", "VACUUM FULL inner_leaf"),
        ("root", "ALTER TABLE root DETACH PARTITION leaf"),
        ("root", "DROP TABLE leaf"),
    ],
)
def test_nobody_rewrites_it_meanwhile(publisher, locked, name, rewriting):
    publisher.execute("SET lock_timeout = '50ms'")
    with locked(name):
        for harmless in ("INSERT INTO t VALUES (1)", "INSERT INTO root VALUES (1)", "VACUUM t", "VACUUM leaf"):
            publisher.execute(harmless)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            publisher.execute(rewriting)
    publisher.execute(rewriting)


MADE_ANEW = [
    ("t", "ALTER TABLE t ALTER secret TYPE text USING secret || 'x'"),
    ("t", "ALTER TABLE t ADD serial int GENERATED ALWAYS AS (id * 2) STORED"),
    ("t", "TRUNCATE t"),
    ("t", "TRUNCATE t; INSERT INTO t VALUES (7)"),
    ("t", "DROP TABLE t; CREATE TABLE t (id int, pad text)"),
    ("root", "TRUNCATE leaf"),
    ("root", "ALTER TABLE root ADD number bigserial"),
    ("t", "ALTER TABLE t RENAME TO before; CREATE TABLE t (id int, pad text)"),
    ("t", "ALTER TABLE t RENAME TO before; ALTER TABLE empty RENAME TO t; ALTER TABLE t ADD pad text"),
    ("root", "ALTER TABLE root ATTACH PARTITION empty FOR VALUES FROM (1000000) TO (2000000)"),
    ("root", "CREATE TABLE another PARTITION OF root FOR VALUES FROM (1000000) TO (2000000)"),
]
KEPT = [
    ("t", "VACUUM FULL t"),
    ("t", "CREATE INDEX by_id ON t (id); CLUSTER t USING by_id"),
    ("t", "ALTER TABLE t ADD later int DEFAULT 1; UPDATE t SET later = 2; DELETE FROM t WHERE id > 1; VACUUM t"),
    ("root", "INSERT INTO root VALUES (1); DELETE FROM root; VACUUM leaf"),
]


@pytest.mark.parametrize(("name", "statements", "kept"), [(*n, False) for n in MADE_ANEW] + [(*n, True) for n in KEPT])
def test_rows_that_were_made_anew_since_the_snapshot_are_not_in_it(publisher, locked, name, statements, kept):
    """Most commands that rewrite a table are not MVCC-safe: the snapshot would show a table without its rows."""
    publisher.execute("INSERT INTO t SELECT generate_series(1, 100); INSERT INTO root SELECT generate_series(1, 100)")
    with publisher.connect() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = other.execute("SELECT pg_export_snapshot()").fetchall()
        locked(name, snapshot=snapshot).close()
        for statement in statements.split("; "):
            publisher.execute(statement)
        with nullcontext() if kept else pytest.raises(TableAltered, match=f'"public.{name}" was rewritten'):
            locked(name, snapshot=snapshot).close()


def test_a_snapshot_that_is_gone(locked):
    with pytest.raises(PublisherError, match='cannot copy table "public.t": snapshot .* does not exist'):
        locked("t", snapshot="00000003-0000001B-1")


def test_a_lock_that_was_lost_is_noticed(publisher, locked):
    with locked("t") as lock:
        lock.check()
        publisher.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE relation = 't'::regclass")
        with pytest.raises(PublisherError, match="the lock on a table was lost") as caught:
            lock.check()
        assert caught.value.retry


def test_privileges_on_what_is_published_are_enough(publisher, locked, monkeypatch):
    """On the columns, and on a root without its partitions: as for PostgreSQL's own copy.

    With columns only, PostgreSQL refuses ctid: the table is read at once.
    """
    monkeypatch.setattr(table_reading, "RANGE_BYTES", 64 * 8192)
    publisher.execute(
        "INSERT INTO t SELECT g, 'pad', repeat('y', 300) FROM generate_series(1, 10000) g;"
        "INSERT INTO root SELECT generate_series(0, 60000)"
    )
    role = f"{publisher.name}_reader"
    publisher.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'; GRANT SELECT ON root TO {role}")
    conninfo = make_conninfo(publisher.conninfo, user=role, password="p")

    def copied(name):
        """How many ranges a table has, and whether each can be copied."""
        with locked(name, conninfo) as lock, Publisher(publisher.conninfo, application_name="test") as catalog:
            (published,) = (one for one in catalog.tables(["pub"]) if one.name == name)
            assert lock.table_bytes > 1 << 20
            for blocks in lock.ranges:
                statement = copy_statement(copy_select(published, BUILTIN), published.row_filters, blocks.condition)
                with psycopg.connect(conninfo) as reader, reader.cursor().copy(statement.encode()) as rows:
                    assert b"".join(rows)
            return len(lock.ranges)

    try:
        assert copied("root") > 3
        with pytest.raises(PublisherError, match='cannot copy table "public.t": permission denied') as caught:
            locked("t", conninfo)
        assert "SELECT on the table" in caught.value.hint
        publisher.execute(f"GRANT SELECT (id, pad) ON t TO {role}")
        assert copied("t") == 1
        publisher.execute(f"GRANT SELECT ON t TO {role}")
        assert copied("t") > 3
    finally:
        publisher.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


BLOCK = 8192
PER_RANGE = RANGE_BYTES // BLOCK


def within(found: BlockRange, blocks: int) -> int:
    """How many of a relation's blocks are in a range."""
    return max(0, min(blocks, blocks if found.end is None else found.end) - found.first)


@pytest.mark.parametrize(
    ("found", "condition"),
    [
        (BlockRange(), ""),
        (BlockRange(0, 7), "ctid < '(7,0)'::tid"),
        (BlockRange(7, 9), "ctid >= '(7,0)'::tid AND ctid < '(9,0)'::tid"),
        (BlockRange(9), "ctid >= '(9,0)'::tid"),
    ],
)
def test_conditions(found, condition):
    assert found.condition == condition


@pytest.mark.parametrize("blocks", [[], [0], [1], [PER_RANGE], [10] * (2 * PER_RANGE)])
def test_what_is_small_is_read_at_once(blocks):
    assert block_ranges(blocks, BLOCK) == [BlockRange()]


def test_a_large_table():
    assert block_ranges([2 * PER_RANGE + 2], BLOCK) == [
        BlockRange(0, (2 * PER_RANGE + 2) // 3),
        BlockRange((2 * PER_RANGE + 2) // 3, (4 * PER_RANGE + 4) // 3),
        BlockRange((4 * PER_RANGE + 4) // 3, None),
    ]


def test_partitions_of_unlike_sizes_divide_evenly():
    blocks = [PER_RANGE // 4] * 4 + [4 * PER_RANGE]
    sizes = [sum(within(found, one) for one in blocks) for found in block_ranges(blocks, BLOCK)]
    assert len(sizes) == 5
    assert max(sizes) - min(sizes) <= 2 * len(blocks)


@given(st.lists(st.integers(0, 40 * PER_RANGE), max_size=12))
def test_every_block_is_in_one_range(blocks):
    found = block_ranges(blocks, BLOCK)
    assert (found[0].first, found[-1].end) == (0, None)
    assert all(one.end == other.first and one.first < one.end for one, other in pairwise(found))
    assert [sum(within(one, count) for one in found) for count in blocks] == blocks
    sizes = [sum(within(one, count) for count in blocks) for one in found]
    if len(found) > 1:
        assert max(sizes) <= 2 * PER_RANGE + len(blocks)


A = PublishedColumn("a", 23, -1, in_primary_key=True, in_replica_identity_index=False)
POINT = PublishedColumn('p"q', 600, -1, in_primary_key=False, in_replica_identity_index=False)


def table(relkind="r", columns=(A,), row_filters=()):
    return PublishedTable(1, "public", "My t", relkind, "d", tuple(columns), tuple(row_filters))


@pytest.mark.parametrize(
    ("published", "blocks", "statement"),
    [
        (table(), BlockRange(), 'SELECT "a" FROM ONLY "public"."My t"'),
        (table("p"), BlockRange(), 'SELECT "a" FROM "public"."My t"'),
        (
            table(row_filters=["(a > 1)", "(a < 0)"]),
            BlockRange(),
            'SELECT "a" FROM ONLY "public"."My t" WHERE ((a > 1)) OR ((a < 0))',
        ),
        (
            table(row_filters=["(a > 1)", "(a < 0)"]),
            BlockRange(7, 9),
            (
                """SELECT "a" FROM ONLY "public"."My t" WHERE (((a > 1)) OR ((a < 0))) """
                """AND ctid >= '(7,0)'::tid AND ctid < '(9,0)'::tid"""
            ),
        ),
    ],
)
def test_copy_statement(published, blocks, statement):
    found = copy_statement(copy_select(published, BUILTIN), published.row_filters, blocks.condition)
    assert found == f"COPY ({statement}) TO STDOUT (FORMAT binary)"


def test_types_without_a_binary_reader_are_copied_as_text():
    assert 'pg_catalog.concat("p""q")' in copy_select(table(columns=[POINT]), BUILTIN)

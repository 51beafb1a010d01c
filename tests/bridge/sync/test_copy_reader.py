"""The copy's reader: what it asks the server, and the rows of ranges under a snapshot."""

from __future__ import annotations

import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pgbridge.bridge.publication.published_table import PublishedColumn, PublishedTable
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.publisher import Publisher
from pgbridge.bridge.receive.slot import ReplicationConnection
from pgbridge.bridge.runtime.errors import PublisherError
from pgbridge.bridge.sync import copy_reader, table_reading
from pgbridge.bridge.sync.copy_reader import CopySpec, key_of, read_ranges
from pgbridge.bridge.sync.table_reading import TableLock, copy_select
from pgbridge.protocol.values.pg_type import BUILTIN
from pgbridge.protocol.values.types import resolve

A = PublishedColumn("a", 23, -1, in_primary_key=True, in_replica_identity_index=False)

SPEC = CopySpec(
    "host=x",
    "app",
    "snap",
    "public.t",
    "SELECT 1",
    ["f"],
    ["ctid < '(7,0)'::tid", "ctid >= '(7,0)'::tid"],
    [("a", 23, -1)],
    pa.schema({"a": pa.int64()}),
    [{"oid": 1}],
    "error",
    ["a"],
)


def test_spec_goes_to_executors_and_not_into_texts():
    spec = replace(SPEC, conninfo="host=x password=hidden")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert "hidden" not in repr(spec)


@pytest.mark.parametrize(("identity", "key"), [("d", ["a"]), ("f", ["a"]), ("i", ["b"]), ("n", [])])
def test_the_key_is_that_of_the_changes_to_come(identity, key):
    """Its values must be held, or no change would find its row."""
    indexed = PublishedColumn("b", 23, -1, in_primary_key=False, in_replica_identity_index=True)
    assert key_of(PublishedTable(1, "public", "t", "r", identity, (A, indexed), ())) == key


@pytest.fixture
def small_ranges(monkeypatch):
    """Ranges of 64 blocks, so that a test's table has some."""
    monkeypatch.setattr(table_reading, "RANGE_BYTES", 64 * 8192)


def read_range(spec, number):
    """A range's batches, as an executor reads them."""
    return read_ranges(spec, [pa.RecordBatch.from_pydict({"id": [number]})])


def read_table(publisher, name, snapshot):
    """Rows of each range of a published table, read here."""
    with Publisher(publisher.conninfo, application_name="test") as catalog:
        published = next(t for t in catalog.tables(["pub"]) if t.name == name)
    with TableLock(publisher.conninfo, published, application_name="test") as lock:
        spec = CopySpec(
            publisher.conninfo,
            "test",
            snapshot,
            published.qualified_name,
            copy_select(published, BUILTIN),
            list(published.row_filters),
            [blocks.condition for blocks in lock.ranges],
            [(column.name, column.type_oid, column.typmod) for column in published.columns],
            pa.schema([(c.name, resolve(c.type_oid, c.typmod).arrow) for c in published.columns]),
            [],
            "error",
            [],
        )
        return [[row for batch in read_range(spec, n) for row in batch.to_pylist()] for n in range(len(spec.ranges))]


def test_ranges_together_are_the_snapshots_rows(publisher, small_ranges):
    """Of a table with a row filter, of a root whose partitions have their columns in other places, and of a leaf."""
    publisher.execute(
        """CREATE TABLE t (id int PRIMARY KEY, pad text) WITH (autovacuum_enabled = off);
        CREATE TABLE root (id int, pad text) PARTITION BY RANGE (id);
        CREATE TABLE small PARTITION OF root FOR VALUES FROM (0) TO (1000);
        CREATE TABLE other (dropped int, pad text, id int);
        ALTER TABLE other DROP COLUMN dropped;
        ALTER TABLE root ATTACH PARTITION other FOR VALUES FROM (1000) TO (1000000);
        INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 12000) g;
        UPDATE t SET pad = 'moved to the end' WHERE id % 10 = 0;
        INSERT INTO root SELECT g, repeat('x', 200) FROM generate_series(1, 12000) g;
        CREATE PUBLICATION pub FOR TABLE t WHERE (id % 3 = 0 OR id < 100), TABLE root
            WITH (publish_via_partition_root = true, publish = 'insert');"""
    )
    with ReplicationConnection(publisher.conninfo, application_name="test") as replication:
        snapshot = replication.create_slot("copy_test", temporary=True).name
        publisher.execute(
            "UPDATE t SET pad = 'later'; DELETE FROM root WHERE id > 500; INSERT INTO root VALUES (0, 'later')"
        )
        parts = {name: read_table(publisher, name, snapshot) for name in ("t", "root")}
        publisher.execute("ALTER PUBLICATION pub SET (publish_via_partition_root = false)")
        parts["other"] = read_table(publisher, "other", snapshot)
    assert all(len(part) > 3 for part in parts.values())
    assert all(sum(map(bool, part)) > 3 for part in parts.values()), "each range has its rows"
    rows = {name: sorted((row["id"], row["pad"][:5]) for some in part for row in some) for name, part in parts.items()}
    assert rows["t"] == [(n, "moved" if n % 10 == 0 else "xxxxx") for n in range(1, 12001) if n % 3 == 0 or n < 100]
    assert rows["root"] == [(n, "xxxxx") for n in range(1, 12001)]
    assert rows["other"] == [(n, "xxxxx") for n in range(1000, 12001)]


def test_a_reader_does_not_wait_for_who_waits_for_the_copy(publisher, monkeypatch):
    """VACUUM FULL waits for the lock, and a later reader would wait for VACUUM FULL."""
    monkeypatch.setitem(copy_reader._SETTINGS, "lock_timeout", "'200ms'")
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    with (
        ReplicationConnection(publisher.conninfo, application_name="test") as replication,
        Publisher(publisher.conninfo, application_name="test") as catalog,
        ThreadPoolExecutor() as pool,
    ):
        snapshot = replication.create_slot("copy_test", temporary=True).name
        (published,) = catalog.tables(["pub"])
        with TableLock(publisher.conninfo, published, application_name="test"):
            rewriting = pool.submit(publisher.execute, "VACUUM FULL t")
            waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'public.t'::regclass AND NOT granted"
            while catalog.connection.execute(waiting).fetchone() == (0,):
                assert not rewriting.done()
            with pytest.raises(PublisherError, match=f"(?s)lock timeout.*executor on {socket.gethostname()}") as caught:
                read_locked_table(publisher, published, snapshot)
            assert caught.value.retry
            assert not rewriting.done()
        rewriting.result(10)


def read_locked_table(publisher, published, snapshot):
    spec = replace(
        SPEC,
        conninfo=publisher.conninfo,
        snapshot=snapshot,
        select=copy_select(published, BUILTIN),
        row_filters=[],
        ranges=[""],
        columns=[("id", 23, -1)],
        types=[],
    )
    return list(read_range(spec, 0))


def test_a_copy_keeps_to_its_rate(publisher, monkeypatch):
    """What is read is told to the pace before the next is."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 1000)")
    told: list[tuple[float | None, float]] = []
    monkeypatch.setattr(
        copy_reader,
        "Pace",
        lambda max_rate: SimpleNamespace(read=lambda size_bytes, seconds: told.append((max_rate, size_bytes))),
    )
    with connect(publisher.conninfo, application_name="test") as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = connection.execute("SELECT pg_export_snapshot()")
        spec = replace(
            SPEC,
            conninfo=publisher.conninfo,
            snapshot=snapshot,
            select="SELECT id FROM public.t",
            row_filters=[],
            ranges=[""],
            columns=[("id", 23, -1)],
            types=[],
            max_rate=5.0,
        )
        assert sum(batch.num_rows for batch in read_range(spec, 0)) == 1000
    assert {rate for rate, _ in told} == {5.0}
    assert sum(size_bytes for _, size_bytes in told) >= 1000 * 10

"""PostgreSQL's subscription catches up from a slot, on a server of its own."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks.checksum import in_postgresql
from benchmarks.measure import BenchmarkError
from benchmarks.native import SETTINGS, NativeSubscriber
from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.protocol.lsn import Lsn

TABLES = {"t": [("id", "integer"), ("note", "text")]}


@pytest.fixture
def native(private, publisher):
    """A subscriber that has the published table's first row, and a slot with the second one."""
    publisher.execute("CREATE TABLE t (id int PRIMARY KEY, note text); INSERT INTO t VALUES (1, 'x')")
    publisher.execute("CREATE PUBLICATION p FOR TABLE t")
    publisher.execute("SELECT pg_create_logical_replication_slot('bench_native', 'pgoutput')")
    with EmbeddedPostgres(settings=SETTINGS, fsync=False) as server:
        subscriber = NativeSubscriber(server, private, publisher.name)
        subscriber.prepare()
        publisher.execute("INSERT INTO t VALUES (2, 'y')")
        yield subscriber
        subscriber.drop()


def end_lsn(publisher):
    return Lsn.parse(publisher.query("SELECT pg_current_wal_insert_lsn()::text")[0][0])


def test_catches_up_to_the_lsn(native, publisher):
    with closing(publisher.connect()) as connection:
        expected = in_postgresql(connection, TABLES)
    run = native.catch_up("bench_native", "p", end_lsn(publisher), TABLES, rest_s=0)
    assert run.checksums == expected
    assert 0 < run.seconds < 60
    assert run.cpu_s >= 0
    assert publisher.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'bench_native'") == [(1,)]


def test_a_conflict_is_told_with_the_log(native, publisher):
    publisher.execute("DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 'z'); ALTER TABLE t ADD COLUMN more int")
    publisher.execute("INSERT INTO t VALUES (3, 'z', 4)")
    with pytest.raises(BenchmarkError, match='(?s)not at .*missing replicated column: "more"'):
        native.catch_up("bench_native", "p", end_lsn(publisher), TABLES, rest_s=0)

"""A standby is promoted: with `failover = true` and several hosts in the connection the stream goes on there."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.faults.standby import Pair
from tests.fix_bridge import WithoutCommitLog


@pytest.fixture
def private_server():
    """A primary and its standby."""
    with Pair({"autovacuum": False}) as pair:
        if int(pair.primary.version.partition(".")[0]) < 17:
            pytest.skip("failover slots need PostgreSQL 17")
        yield pair


class Source:
    """What `Pipeline` needs of a publisher: its name, and a connection to whichever is the primary."""

    def __init__(self, pair: Pair) -> None:
        assert pair.standby is not None
        servers = (pair.primary, pair.standby)
        hosts = ",".join(str(server.folder) for server in servers)
        ports = ",".join(str(server.port) for server in servers)
        self.name = "promoted"
        self.conninfo = f"host={hosts} port={ports} user=postgres dbname=postgres target_session_attrs=read-write"


def wait_until(condition, timeout_s: float = 120.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.2)


def test_a_standby_is_promoted(tables, private_server, tmp_path):
    """Nothing is lost and nothing comes twice: the keyless table would show it."""
    pair = private_server

    def execute(statement: str) -> None:
        with psycopg.connect(pair.primary.conninfo(), autocommit=True) as connection:
            connection.execute(statement.encode())

    execute("CREATE TABLE t (n int); ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (0)")
    execute("CREATE PUBLICATION pub FOR TABLE t")
    bridge = WithoutCommitLog(tables, Source(pair), tmp_path, failover=True, workers__retry_max_s=1.0)
    worker = bridge.worker(until_caught_up=False)
    worker.thread.start()
    try:
        wait_until(lambda: bridge.catalog.remote_lsn("promoted") is not None)
        number = 0

        def one_more() -> bool:
            nonlocal number
            number += 1
            execute(f"INSERT INTO t VALUES ({number})")
            return bool(pair.is_synchronized("promoted"))

        wait_until(one_more)
        pair.fail_over()
        for _ in range(20):
            number += 1
            execute(f"INSERT INTO t VALUES ({number})")
        with psycopg.connect(pair.primary.conninfo()) as connection:
            expected = sorted(n for (n,) in connection.execute("SELECT n FROM t"))
        wait_until(lambda: len(bridge.rows("t")) >= len(expected))
        assert sorted(row["n"] for row in bridge.rows("t")) == expected
        assert {*range(number - 19, number + 1)} <= set(expected)
    finally:
        worker.stop()
        worker.thread.join(60)
        bridge.catalog.close()

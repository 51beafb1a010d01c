"""pg_upgrade to another major version, under load until it asks to stop: the daemon and the data source go on.

The older version's programs are not a requirement of the tests: PGBRIDGE_OLD_BINDIR names their folder.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psycopg
import pytest

from pgbridge.protocol.lsn import Lsn
from tests.bridge.source.without_spark import Source, eventually, planned, rows_of
from tests.faults.load import SCHEMA, TABLES, Load
from tests.faults.proxy import Proxy
from tests.faults.standby import ForkedServer
from tests.faults.test_takeover import NAME, Machine
from tests.oracle.delta import differences
from tests.oracle.native import DatabaseRows

BINDIR = os.environ.get("PGBRIDGE_OLD_BINDIR", "")


@pytest.fixture
def server():
    with ForkedServer(bindir=Path(BINDIR)) as made:
        made.postgres.stop()
        # from 18 on a new server has them
        made.postgres.programs.run("pg_checksums", "--enable", "--pgdata", made.postgres.datadir)
        made.postgres.start()
        yield made


class Inserts:
    """Puts one row after the other into `orders`, in a thread."""

    def __init__(self, server: ForkedServer) -> None:
        self._server, self._stop, self.last = server, threading.Event(), 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._server.connect() as connection:
            while not self._stop.is_set():
                connection.execute(f"INSERT INTO orders VALUES ({self.last + 1}, 'a', 1)".encode())
                self.last += 1

    def end(self) -> int:
        """Returns the last row's id."""
        self._stop.set()
        self._thread.join()
        return self.last


def read(reader, start):
    """The ids that come from an offset on, up to where the server is now; and that offset, which is committed."""
    end = planned(reader, start)
    ids = [row["public.orders"]["new"]["id"] for row in rows_of(reader, start, end)]
    reader.commit(end)
    return ids, end


@pytest.mark.soak
@pytest.mark.skipif(not BINDIR, reason="PGBRIDGE_OLD_BINDIR is not set")
@pytest.mark.timeout(900)
def test_the_daemon_and_the_data_source_go_on(spark, server, tmp_path):
    server.execute(SCHEMA)
    ((before,),) = server.query("SHOW server_version_num")
    source = Source(server)
    reader = source.reader()
    start = reader.initialOffset()
    password = server.postgres.password
    with Proxy(lambda: ("127.0.0.1", server.postgres.port)) as way:
        machine = Machine(tmp_path / "daemon", server.postgres, way.port)
        machine.start()
        machine.wait_for('"streaming"', 120)
        load, inserts = Load(lambda: server.conninfo, 1, pause_s=0.02), Inserts(server)
        load.start()
        time.sleep(20)
        load.stop()
        last = inserts.end()
        assert machine.command("wait", NAME, "--timeout", "120").returncode == 0
        ids, offset = read(reader, start)
        assert eventually(lambda: planned(reader, offset) and source.confirmed() >= Lsn.parse(offset["lsn"]))
        assert ids == list(range(1, last + 1))
        reader.stop()
        assert machine.end(signal.SIGTERM) == 0
        copied = machine.said.count("table copy started")

        server.upgrade()
        server.postgres.password = password  # roles are the former server's
        ((after,),) = server.query("SHOW server_version_num")
        assert int(after) // 10_000 > int(before) // 10_000
        machine.start()
        machine.wait_for(f"run: pgbridge origin {NAME} --upgraded", 120)
        machine.end(signal.SIGTERM)
        done = machine.command("origin", NAME, "--upgraded")
        assert done.returncode == 0, done
        load = Load(lambda: server.conninfo, 2, pause_s=0.02)
        load.start()
        machine.start()
        time.sleep(20)
        load.stop()
        assert machine.command("wait", NAME, "--timeout", "120").returncode == 0, machine.said[-3000:]
        assert machine.end(signal.SIGTERM) == 0
    assert machine.said.count("table copy started") == copied == len(TABLES) + 1
    rows = DatabaseRows(server.conninfo)
    for table in TABLES:
        path = str(tmp_path / "lake" / "public" / table)
        assert differences(spark, path, rows, f"public.{table}", rows.columns(f"public.{table}")) == []
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("INSERT INTO orders SELECT %s + n, 'a', 1 FROM generate_series(1, 100) n", (last,))
    ids, _ = read(source.reader(upgradedFrom=offset["system_identifier"]), offset)
    assert ids == list(range(last + 1, last + 101))
    source.close()

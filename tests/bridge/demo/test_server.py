"""The private server does what its docstrings say, on real processes; `psycopg` looks at it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from pgbridge.bridge.demo import server as module
from pgbridge.bridge.demo.programs import EmbeddedPostgresError
from pgbridge.bridge.demo.server import EmbeddedPostgres


@pytest.fixture(scope="module")
def private_server():
    """A server that these tests may stop and kill."""
    with EmbeddedPostgres(settings={"work_mem": "5MB", "application_name": "it's"}, fsync=False) as server:
        yield server


def ask(conninfo: str, query: str) -> str:
    """The text of the only value that a query returns."""
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(f"SELECT ({query})::text".encode()).fetchone()
    assert row is not None
    return str(row[0])


def gone(pid: int) -> bool:
    """Whether no process has this id; a zombie counts as gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def eventually(condition, timeout_s: float = 20.0) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_running(server: EmbeddedPostgres) -> bool:
    """Whether it has a process."""
    with suppress(EmbeddedPostgresError):
        return server.pid > 0
    return False


def test_both_ways_in_lead_to_the_same_server(private_server):
    for conninfo in (private_server.conninfo(), private_server.tcp_conninfo()):
        assert ask(conninfo, "current_setting('data_directory')") == str(private_server.datadir)


def test_tcp_asks_for_the_password(private_server):
    conninfo = f"host=127.0.0.1 port={private_server.port} user=postgres dbname=postgres password=wrong"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(conninfo)


def test_database_name_is_quoted_in_the_connection_string(private_server):
    with psycopg.connect(private_server.conninfo(), autocommit=True) as connection:
        connection.execute('CREATE DATABASE "it\'s a \\ name"')
    assert ask(private_server.conninfo("it's a \\ name"), "current_database()") == "it's a \\ name"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wal_level", "logical"),  # the default of ours
        ("work_mem", "5MB"),  # the caller's
        ("application_name", "it's"),  # a value with a quote
        ("fsync", "off"),
        ("TimeZone", "UTC"),
        ("server_encoding", "UTF8"),
        ("max_prepared_transactions", "20"),
    ],
)
def test_settings_are_in_force_from_the_first_start(private_server, name, value):
    assert ask(private_server.conninfo(), f"current_setting('{name}')") == value


def test_text_is_ordered_by_code_point(private_server):
    assert ask(private_server.conninfo(), "SELECT datcollate FROM pg_database WHERE datname = 'postgres'") == "C.UTF-8"
    assert ask(private_server.conninfo(), "'Z' < 'a'") == "true"


def test_server_does_not_run_as_root(private_server):
    assert Path(f"/proc/{private_server.pid}").stat().st_uid != 0


def test_folder_is_closed_to_other_users(private_server):
    assert private_server.folder.stat().st_mode & 0o077 == 0


def test_killed_server_recovers_what_was_committed(private_server):
    """A busy backend outlives its postmaster and holds the shared memory; the start waits for its end."""
    busy_for_a_second = """
        DO $$
        DECLARE until timestamptz := clock_timestamp() + '1 s';
        BEGIN WHILE clock_timestamp() < until LOOP END LOOP; END $$"""
    with closing(psycopg.connect(private_server.conninfo(), autocommit=True)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
        connection.pgconn.send_query(busy_for_a_second.encode())
        assert eventually(
            lambda: (
                ask(
                    private_server.conninfo(),
                    "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'LOOP END'",
                )
                == "2"
            )
        ), "the query that asks is the second"
        before = private_server.pid
        private_server.kill()
        assert gone(before)
        private_server.start()
    assert "pre-existing shared memory block" in private_server.log_tail(100)
    assert private_server.pid != before
    assert ask(private_server.conninfo(), "SELECT n FROM kept") == "42"


def test_restart_applies_changed_settings_and_keeps_the_address(private_server):
    conninfo = private_server.tcp_conninfo()
    private_server.settings["work_mem"] = "6MB"
    private_server.restart()
    assert ask(conninfo, "current_setting('work_mem')") == "6MB"


def test_bad_setting_is_named_and_a_corrected_one_starts(private_server):
    private_server.stop()
    private_server.settings["work_mem"] = "bananas"
    with pytest.raises(EmbeddedPostgresError, match='invalid value for parameter "work_mem": "bananas"'):
        private_server.start()
    assert not is_running(private_server)
    assert "bananas" in private_server.log_tail(5)
    private_server.settings["work_mem"] = "4MB"
    private_server.start()
    assert ask(private_server.conninfo(), "current_setting('work_mem')") == "4MB"


def test_second_start_is_refused(private_server):
    with pytest.raises(EmbeddedPostgresError, match=f"already runs, as process {private_server.pid}"):
        private_server.start()


def test_too_slow_a_start_is_given_up(private_server, monkeypatch):
    private_server.stop("immediate")
    monkeypatch.setattr(module, "_START_S", 0.0)
    monkeypatch.setattr(module, "_ESCALATE_S", 1.0)  # so early, the server may not see its signal
    with pytest.raises(EmbeddedPostgresError, match="was not ready after 0 s"):
        private_server.start()
    assert not is_running(private_server)
    monkeypatch.undo()
    private_server.start()


def test_stop_does_not_wait_for_ever_for_a_stuck_walsender(private_server, monkeypatch):
    """A fast shutdown waits for a walsender whose client does not read; the time-out ends that."""
    monkeypatch.setattr(module, "_STOP_S", 1.0)
    slot = "CREATE_REPLICATION_SLOT stuck TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')"
    with (
        closing(psycopg.connect(private_server.conninfo(), autocommit=True)) as writer,
        closing(psycopg.connect(f"{private_server.conninfo()} replication=database", autocommit=True)) as walsender,
    ):
        writer.execute("CREATE TABLE much (t text)")
        writer.execute("CREATE PUBLICATION much FOR TABLE much")
        walsender.execute(slot)
        walsender.execute("START_REPLICATION SLOT stuck LOGICAL 0/0 (proto_version '1', publication_names 'much')")
        writer.execute("INSERT INTO much SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        private_server.stop("fast")
    assert "received immediate shutdown request" in private_server.log_tail(200)
    private_server.start()


@pytest.mark.usefixtures("starts_server")
def test_what_is_closed_is_gone():
    with EmbeddedPostgres(fsync=False) as server:
        folder, pid = server.folder, server.pid
    assert gone(pid)
    assert not folder.exists()
    with pytest.raises(EmbeddedPostgresError, match="is closed"):
        server.conninfo()


@pytest.mark.usefixtures("starts_server")
def test_failed_first_start_leaves_nothing(monkeypatch):
    monkeypatch.setattr(module, "_SHORT_FOLDERS", ())
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    server = EmbeddedPostgres(settings={"shared_buffers": "x"})
    with pytest.raises(EmbeddedPostgresError, match='invalid value for parameter "shared_buffers"'):
        server.start()
    place.rmdir()  # it is empty


@pytest.mark.usefixtures("starts_server")
def test_server_ends_with_a_process_that_is_killed():
    """`kill -9` of the owner leaves neither a server nor its data."""
    program = """
import time
from pgbridge.bridge.demo.server import EmbeddedPostgres
server = EmbeddedPostgres(fsync=False)
server.start()
print(server.pid, server.folder, flush=True)
time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert not gone(int(pid))
        owner.kill()
    assert eventually(lambda: gone(int(pid)))
    assert eventually(lambda: not Path(folder).exists())

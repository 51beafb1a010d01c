"""The fixtures keep README.md's promises: one server, fresh databases, nothing left behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests import fix_postgres, fix_selection
from tests.fix_postgres import Publisher

# Tests as somebody may write them. With --fast, two are left out, one passes, and those that hide what they need fail.
SAMPLES = """
import subprocess
import pytest

@pytest.fixture
def spark():
    return None

@pytest.fixture
def postgresql_server():
    return None

def test_needs_spark(spark): pass
def test_needs_a_server(postgresql_server): pass
def test_needs_neither(tmp_path): pass
def test_hides_a_fixture(request): request.getfixturevalue("spark")
def test_hides_a_server(): subprocess.run(["/nowhere/postgres", "-D", "/nowhere"])
def test_hides_a_jvm(): subprocess.run("java")
def test_hides_spark(): subprocess.run(["/nowhere/bin/spark-submit", "pyspark-shell"])
"""


def test_noproc_database_is_on_the_server(postgresql, postgresql_server):
    """pytest-postgresql's factories made the database, on the same server that `conninfo` leads to."""
    query = "SELECT pg_postmaster_start_time()::text"
    with postgresql_server.connect() as connection:
        assert postgresql.execute(query).fetchone() == connection.execute(query).fetchone()
    assert postgresql.info.dbname.startswith("pgbridge_test")


def test_server_is_ready_to_replicate(postgresql_server):
    with postgresql_server.connect() as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


def test_publishers_are_apart(publisher, postgresql_server):
    """Two publishers are two empty databases; statements commit at once."""
    other = Publisher(postgresql_server, f"{publisher.name}_2")
    try:
        publisher.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
        publisher.execute("INSERT INTO t VALUES (%s)", (2,))
        with psycopg.connect(publisher.conninfo) as connection:
            assert connection.execute("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (2,)]
        assert publisher.query("SELECT n FROM t WHERE n > %s", (1,)) == [(2,)]
        assert other.query("SELECT to_regclass('t')") == [(None,)]
    finally:
        other.drop()


def test_publisher_goes_with_all_that_holds_it(postgresql_server):
    """A slot in use, a subscription, a companion database and a prepared transaction do not keep it."""
    made = Publisher(postgresql_server, "pub_to_drop")
    made.execute("CREATE TABLE t (n int); CREATE PUBLICATION p FOR TABLE t")
    made.query("SELECT pg_create_logical_replication_slot('held', 'pgoutput')")
    made.execute("BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'pending'")
    companion = Publisher(postgresql_server, "pub_to_drop_2")
    companion.execute("CREATE TABLE t (n int)")
    companion.execute(f"CREATE SUBSCRIPTION leftover CONNECTION '{made.conninfo}' PUBLICATION p WITH (connect = false)")
    walsender = psycopg.connect(made.conninfo, autocommit=True, replication="database")
    walsender.execute("START_REPLICATION SLOT held LOGICAL 0/0 (proto_version '1', publication_names 'p')")
    made.drop()
    walsender.close()
    companion.close()
    with postgresql_server.connect() as connection:
        left = connection.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, 'pub_to_drop')"
            " UNION ALL SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'held'"
            " UNION ALL SELECT subname FROM pg_subscription WHERE subname = 'leftover'"
            " UNION ALL SELECT gid FROM pg_prepared_xacts WHERE gid = 'pending'"
        ).fetchall()
    assert left == []


def test_header_names_the_server(request):
    assert fix_postgres.pytest_report_header(request.config).startswith("postgresql: ")


def test_order_is_pure_then_postgres_then_spark():
    """Within a group the order stays as it was."""
    wanted = {
        "a": ["spark"],
        "b": ["publisher", "postgresql_server"],
        "c": [],
        "d": ["postgresql_server", "spark"],
        "e": ["tmp_path"],
    }
    items: list[Any] = [SimpleNamespace(name=name, fixturenames=fixtures) for name, fixtures in wanted.items()]
    items.sort(key=fix_selection.rank)
    assert [item.name for item in items] == ["c", "e", "b", "a", "d"]


def test_files_with_spark_and_with_a_server_alternate():
    """In each kind the order stays as it was; what needs neither comes first."""
    wanted = {"a": "tmp_path", "b": "publisher", "c": "publisher", "d": "publisher", "e": "spark", "f": "spark"}
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{file}::{number}", fixturenames=[fixture, "postgresql_server"][: 1 + (file > "a")])
        for file, fixture in wanted.items()
        for number in range(2)
    ]
    fix_selection.mix(items)
    assert list(dict.fromkeys(item.nodeid[0] for item in items)) == ["a", "b", "e", "c", "f", "d"]


def test_run_is_in_that_order(request):
    """The order of this very run: no test with a server comes before one without."""
    wants_server = [fix_selection.rank(item) > 0 for item in request.session.items]
    if True not in wants_server:
        pytest.skip("this run has no test with a server")
    assert all(wants_server[wants_server.index(True) :])


def test_files_go_to_processes_in_that_order(tmp_path):
    """The longest come first, though the others have more tests."""
    names = {name: tmp_path / f"test_{name}.py" for name in ("long", "many")}
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    names["long"].write_text("def test_a(): pass\n")
    names["many"].write_text("".join(f"def test_{i}(): pass\n" for i in range(9)))
    command = [sys.executable, "-m", "pytest", "-p", "tests.fix_selection", "-p", "no:cacheprovider"]
    command += ["-n", "1", "--dist", "loadfile", "-v", *names.values()]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    begun = re.findall(r"PASSED \S*/test_(\w+)\.py", done.stdout)
    assert list(dict.fromkeys(begun)) == ["long", "many"], done.stdout


def test_fast_run_starts_neither_server_nor_jvm(tmp_path):
    """Collection leaves out what asks for them; what asks later, or starts them itself, fails."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_samples.py").write_text(SAMPLES)
    command = [sys.executable, "-m", "pytest", "-p", "tests.fix_selection", "-p", "no:cacheprovider", "--fast", "-rA"]
    root = Path(__file__).parents[1]
    done = subprocess.run([*command, tmp_path], cwd=root, capture_output=True, text=True, check=False)
    outcomes = {name: outcome for outcome, name in re.findall(r"^([A-Z]+) \S+::(\w+)", done.stdout, re.MULTILINE)}
    assert outcomes == {
        "test_needs_neither": "PASSED",
        "test_hides_a_fixture": "FAILED",
        "test_hides_a_server": "FAILED",
        "test_hides_a_jvm": "FAILED",
        "test_hides_spark": "FAILED",
    }, done.stdout
    for program in ("postgres", "java", "spark-submit"):
        assert f"RuntimeError: a test of --fast started {program};" in done.stdout
    assert "RuntimeError: the fixture 'spark' is not for --fast" in done.stdout

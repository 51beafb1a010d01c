"""The fixtures keep README.md's promises: one server, fresh databases, nothing left behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests import fix_postgres
from tests.fix_postgres import Publisher


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
    fix_postgres.pytest_collection_modifyitems(items)
    assert [item.name for item in items] == ["c", "e", "b", "a", "d"]


def test_run_is_in_that_order(request):
    """The order of this very run: no test with a server comes before one without."""
    wants_server = [
        bool(set(item.fixturenames) & (fix_postgres.POSTGRES_FIXTURES | fix_postgres.SPARK_FIXTURES))
        for item in request.session.items
    ]
    if True not in wants_server:
        pytest.skip("this run has no test with a server")
    assert all(wants_server[wants_server.index(True) :])

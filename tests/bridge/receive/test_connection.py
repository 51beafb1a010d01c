"""Sessions mean the same whatever the server's defaults say, and a refusal says what to run."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.demo.server import EmbeddedPostgres
from pgbridge.bridge.receive import connection as module
from pgbridge.bridge.receive.connection import (
    SESSION_SETTINGS,
    Login,
    connect,
    dictionaries,
    has_password,
    login,
    read_rows,
    stream_name,
    translated,
)
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError
from tests.bridge.receive.pooler import Pooler

CONTRARY = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-5",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "array_nulls": "off",
    "xmloption": "document",
    "xmlbinary": "hex",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
    "statement_timeout": "100ms",
    "lock_timeout": "100ms",
    "idle_in_transaction_session_timeout": "100ms",
    "idle_session_timeout": "10s",
    "transaction_timeout": "10s",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "row_security": "on",
    "client_min_messages": "error",
    "search_path": "public",
}
"""For each setting something that would change what is read."""


def contrary_settings(publisher) -> dict[str, str]:
    """Those of the settings that the server has."""
    return {name: value for name, value in CONTRARY.items() if name != "transaction_timeout" or publisher.version >= 17}


VALUES = """
SELECT '2026-03-01'::date, '2026-03-01 12:00+00'::timestamptz, '1 day 02:00'::interval,
       0.1::float8 + 0.2::float8, '\\x00ff'::bytea, 'ключ'::text
"""
AS_TEXT = ["2026-03-01", "2026-03-01 12:00:00+00", "1 day 02:00:00", "0.30000000000000004", "\\x00ff", "ключ"]


@pytest.fixture
def role(publisher):
    """A new role that may log in and replicate, and goes after the test; its conninfo."""
    name = f"{publisher.name}_role"
    publisher.execute(f"CREATE ROLE {name} LOGIN REPLICATION SUPERUSER PASSWORD 'right'")
    yield name
    publisher.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def as_role(publisher, role: str, **more: str) -> str:
    return make_conninfo(publisher.conninfo, user=role, password="right", **more)


def texts(connection: psycopg.Connection) -> list[str]:
    """The values as the server writes them."""
    result = connection.pgconn.exec_(VALUES.encode())
    return [(result.get_value(0, i) or b"").decode() for i in range(result.nfields)]


def value_of(connection: psycopg.Connection, query: str) -> str:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return str(row[0])


def refusal(conninfo: str, *, replication: bool = False) -> PublisherError:
    with pytest.raises(PublisherError) as caught:
        connect(conninfo, application_name="test", replication=replication)
    return caught.value


# --- what a session is ------------------------------------------------------------------------------------------------


def test_contrary_settings_cover_all():
    assert CONTRARY.keys() == SESSION_SETTINGS.keys()


@pytest.mark.parametrize("replication", [False, True])
def test_settings_hold_against_role_and_database(publisher, role, replication):
    """Both kinds of session; the walsender's settings are those that values are decoded with."""
    for name, value in contrary_settings(publisher).items():
        publisher.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
        publisher.execute(f"ALTER DATABASE {publisher.name} SET {name} = '{value}'")
        publisher.execute(f"ALTER ROLE {role} IN DATABASE {publisher.name} SET {name} = '{value}'")
    conninfo = as_role(publisher, role)
    with psycopg.connect(conninfo) as contrary:
        assert value_of(contrary, "SELECT date '2026-03-01'::text") == "01.03.2026"
    with connect(conninfo, application_name="test", replication=replication) as connection:
        known = contrary_settings(publisher)
        in_force = {name: value_of(connection, f"SELECT current_setting('{name}')") for name in known}
        assert in_force == {name: SESSION_SETTINGS[name] for name in known}
        assert texts(connection) == AS_TEXT


@pytest.mark.parametrize("replication", [False, True])
def test_a_transaction_outlasts_the_roles_timeouts(publisher, role, replication):
    """The connection of a copy, and the one that holds its snapshot."""
    for name in contrary_settings(publisher):
        if name.endswith("_timeout"):
            publisher.execute(f"ALTER ROLE {role} SET {name} = '100ms'")
    with connect(as_role(publisher, role), application_name="test", replication=replication) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_sleep(0.3)")
        time.sleep(0.3)
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_setting_that_the_server_does_not_have_is_left_out(publisher, monkeypatch):
    """An older server gets it neither in `options`, which it would refuse, nor later."""
    monkeypatch.setitem(module.SESSION_SETTINGS, "setting_of_a_later_version", "on")
    monkeypatch.setattr(module, "_NOT_ASKED", module._NOT_ASKED | {"setting_of_a_later_version"})
    with connect(publisher.conninfo, application_name="test") as connection:
        assert texts(connection) == AS_TEXT


@pytest.mark.parametrize("replication", [False, True])
def test_settings_hold_against_the_environment(publisher, monkeypatch, replication):
    """Also PGDATESTYLE and PGTZ, which the server gets in a place that wins over `options`."""
    monkeypatch.setenv("PGDATESTYLE", "German")
    monkeypatch.setenv("PGTZ", "Asia/Kathmandu")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    monkeypatch.setenv("PGOPTIONS", "-c extra_float_digits=-5")
    with connect(publisher.conninfo, application_name="test", replication=replication) as connection:
        assert texts(connection) == AS_TEXT


@pytest.mark.parametrize("replication", [False, True])
def test_settings_hold_behind_a_pooler_that_drops_them(publisher, role, replication):
    """As pgbouncer with ignore_startup_parameters and pool_mode = session; a walsender is in no pool."""
    for name, value in contrary_settings(publisher).items():
        publisher.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
    with Pooler(publisher.conninfo) as pooler:
        conninfo = as_role(publisher, role, host="127.0.0.1", port=str(pooler.port), sslmode="disable")
        with connect(conninfo, application_name="test", replication=replication) as connection:
            assert pooler.dropped
            assert texts(connection) == AS_TEXT
            assert value_of(connection, "SHOW search_path") == "pg_catalog"


def test_a_pooler_is_in_between(publisher):
    """It shares sessions, as with pool_mode = transaction: what one transaction sets, the next may not have."""
    with Pooler(publisher.conninfo, shared=True) as pooler:
        error = refusal(make_conninfo(publisher.conninfo, host="127.0.0.1", port=str(pooler.port), sslmode="disable"))
    assert "a pooler drops the settings" in str(error)
    assert "pool_mode = session" in error.hint
    assert not error.retry


def test_a_setting_that_cannot_be_set_is_named(publisher, monkeypatch):
    monkeypatch.setitem(module.SESSION_SETTINGS, "work_mem", "4096kB")  # which the server shows as 4MB
    error = refusal(publisher.conninfo)
    assert "work_mem is '4MB' after it was set to '4096kB'" in str(error)


def test_options_of_the_connection_string_are_kept(publisher):
    """But for what the bridge decodes with."""
    conninfo = make_conninfo(publisher.conninfo, options="-c work_mem=5MB -c bytea_output=escape")
    with connect(conninfo, application_name="test") as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert connection.execute("SHOW bytea_output").fetchone() == ("hex",)


@pytest.mark.parametrize("replication", [False, True])
def test_the_text_of_money(publisher, role, replication):
    """The connection string may keep it, against the role and the database: docs/types.md."""
    for whose in (f"ROLE {role}", f"DATABASE {publisher.name}", f"ROLE {role} IN DATABASE {publisher.name}"):
        publisher.execute(f"ALTER {whose} SET lc_monetary = 'POSIX'")
    for more, expected in [({}, "POSIX"), ({"options": "-c lc_monetary=C"}, "C")]:
        with connect(as_role(publisher, role, **more), application_name="test", replication=replication) as connection:
            assert value_of(connection, "SHOW lc_monetary") == expected


@pytest.mark.parametrize("replication", [False, True])
def test_application_name(publisher, monkeypatch, replication):
    """The bridge's own, whatever the connection string or the environment has: others know the session by it."""
    monkeypatch.setenv("PGAPPNAME", "mine")
    for more in ({}, {"application_name": "mine"}, {"options": "-c application_name=mine"}):
        conninfo = make_conninfo(publisher.conninfo, **more)
        with connect(conninfo, application_name="shop", replication=replication) as connection:
            assert connection.execute("SHOW application_name").fetchone() == ("shop",)


def test_a_server_that_vanished_is_noticed_in_a_minute(publisher):
    """By libpq's settings; the connection string's override them."""
    for more, expected in [({}, "60000"), ({"tcp_user_timeout": "5000"}, "5000")]:
        with connect(make_conninfo(publisher.conninfo, **more), application_name="shop") as connection:
            parameters = connection.info.get_parameters()
        assert (parameters["tcp_user_timeout"], parameters["keepalives_idle"]) == (expected, "30")


def test_replication_connection_is_a_walsender_that_serves_sql(publisher):
    with connect(publisher.conninfo, application_name="shop", replication=True) as connection:
        query = "SELECT backend_type FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        assert connection.execute(query).fetchone() == ("walsender",)
        assert connection.execute("SELECT current_database()").fetchone() == (publisher.name,)


def test_uri(publisher):
    server = publisher.server
    uri = f"postgresql://{server.user}@/{publisher.name}?host={server.host}&port={server.port}"
    if server.password:
        uri += f"&password={server.password}"
    with connect(uri, application_name="test") as connection:
        assert connection.info.dbname == publisher.name
        assert connection.autocommit


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conninfo", ["nonsense", "hostt=x", "host='x", "postgresql://[", "dbname"])
def test_connection_string_that_cannot_be_read(conninfo):
    """An error of the configuration, since no server was asked."""
    with pytest.raises(ConfigError, match="connection: not a libpq connection string or URI"):
        connect(conninfo, application_name="test")


def test_nobody_listens():
    """A server that is being restarted is the usual reason: tried again."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    error = refusal(f"host=127.0.0.1 port={port}")
    assert "cannot connect to the publisher: " in str(error)
    assert "Connection refused" in str(error)
    assert f"{port}" in str(error)
    assert error.retry


def test_unknown_host():
    error = refusal("host=no-such-host.invalid")
    assert "no-such-host.invalid" in str(error)
    assert error.retry


def test_no_such_database(publisher):
    error = refusal(make_conninfo(publisher.conninfo, dbname="no_such_db"))
    assert 'database "no_such_db" does not exist' in str(error)
    assert error.hint == "check dbname in the connection string"
    assert not error.retry


def test_no_such_role(publisher):
    error = refusal(make_conninfo(publisher.conninfo, user="nobody_here"))
    assert "nobody_here" in str(error)
    assert error.hint.startswith("check ")
    assert not error.retry


def test_the_password_is_refused(publisher, role):
    """Over TCP, where the server asks for one."""
    server = publisher.server
    if server.embedded is None:
        pytest.skip("another server's pg_hba.conf may not ask for a password")
    conninfo = f"host=127.0.0.1 port={server.port} dbname={publisher.name} user={role} password=wrong"
    error = refusal(conninfo)
    assert "password authentication failed" in str(error)
    assert error.hint.startswith("check role and password in the connection string")
    assert not error.retry
    connect(conninfo.replace("wrong", "right"), application_name="test").close()


def test_role_that_may_not_log_in(publisher, role):
    publisher.execute(f"ALTER ROLE {role} NOLOGIN")
    error = refusal(as_role(publisher, role))
    assert "is not permitted to log in" in str(error)
    assert not error.retry


def test_role_without_replication(publisher, role):
    """It may connect, and not stream; the hint is the statement."""
    publisher.execute(f"ALTER ROLE {role} NOSUPERUSER NOREPLICATION")
    connect(as_role(publisher, role), application_name="test").close()
    error = refusal(as_role(publisher, role), replication=True)
    assert re.search("WAL sender|walsender", str(error))
    assert f'ALTER ROLE "{role}" REPLICATION' in error.hint
    assert not error.retry


def test_the_server_has_no_connection_left(publisher, role):
    """Somebody may end one of them: tried again."""
    publisher.execute(f"ALTER ROLE {role} NOSUPERUSER CONNECTION LIMIT 0")
    error = refusal(as_role(publisher, role))
    assert "too many connections" in str(error)
    assert "CONNECTION LIMIT" in error.hint
    assert error.retry


def test_messages_hold_no_password(publisher, role):
    """They are logged and kept in the catalog."""
    error = refusal(as_role(publisher, role, dbname="no_such_db"))
    assert "right" not in str(error)


@pytest.fixture
def private_server():
    """A server that cannot serve a subscription, with room for a single walsender."""
    with EmbeddedPostgres(settings={"wal_level": "replica", "max_wal_senders": 1}, fsync=False) as server:
        yield server


def test_server_that_cannot_serve(private_server):
    """wal_level and max_wal_senders: what to set, and that the server has to be restarted."""
    with closing(connect(private_server.conninfo(), application_name="test", replication=True)) as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("CREATE_REPLICATION_SLOT s LOGICAL pgoutput")
        error = translated(caught.value, "cannot create replication slot")
        assert str(error).startswith("cannot create replication slot: ")
        assert error.hint == "run on the server: ALTER SYSTEM SET wal_level = logical; then restart it"
        assert not error.retry
        error = refusal(private_server.conninfo(), replication=True)
        assert "max_wal_senders" in str(error)
        assert "ALTER SYSTEM SET max_wal_senders" in error.hint
        assert error.retry


def test_a_primary_that_its_standby_waits_for():
    """Nothing can be set on the standby itself; PostgreSQL 19 says effective_wal_level."""
    for level in ("wal_level", "effective_wal_level"):
        message = f'logical decoding on standby requires "{level}" >= "logical" on the primary'
        error = translated(psycopg.errors.ObjectNotInPrerequisiteState(message), "cannot create replication slot")
        assert error.hint == "run on the primary: ALTER SYSTEM SET wal_level = logical; then restart it"


# --- errors of statements ---------------------------------------------------------------------------------------------


def failed(connection: psycopg.Connection, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode())
    return caught.value


def test_unknown_errors_are_not_retried_and_keep_the_servers_hint(publisher):
    """The list of what may be retried is short on purpose."""
    with connect(publisher.conninfo, application_name="test") as connection:
        error = translated(failed(connection, "SELECT no_such_function()"), "cannot ask")
        assert str(error).startswith("cannot ask: function no_such_function() does not exist")
        assert error.hint.startswith("No function matches")
        assert not error.retry


def test_missing_privilege(publisher, role):
    publisher.execute(f"CREATE TABLE t (n int); ALTER ROLE {role} NOSUPERUSER")
    with connect(as_role(publisher, role), application_name="test") as connection:
        error = translated(failed(connection, "SELECT * FROM public.t"), "cannot copy")
        assert "permission denied for table t" in str(error)
        assert "SELECT on the table" in error.hint
        assert not error.retry


def test_terminated_session_is_retried(publisher):
    """As in a restart; also when the connection is found dead later."""
    with connect(publisher.conninfo, application_name="test") as connection:
        publisher.query("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        for _ in range(2):
            assert translated(failed(connection, "SELECT 1"), "cannot ask").retry


def test_dictionaries(publisher):
    with connect(publisher.conninfo, application_name="test") as connection:
        cursor = connection.execute(
            sql.SQL("SELECT 1 AS a, 'x' AS {} UNION ALL SELECT 2, NULL").format(sql.Identifier("b c"))
        )
        assert list(dictionaries(cursor)) == [{"a": 1, "b c": "x"}, {"a": 2, "b c": None}]


# --- who logs in ------------------------------------------------------------------------------------------------------


def test_login_by_the_string_or_the_environment(monkeypatch):
    monkeypatch.setenv("PGUSER", "env_user")
    monkeypatch.delenv("PGDATABASE", raising=False)
    assert login("user=repl dbname=shop password=x") == Login("repl", "shop")
    assert login("host=x") == Login("env_user", "env_user")
    assert login("postgresql://repl@host/shop") == Login("repl", "shop")


@pytest.mark.parametrize(
    "conninfo",
    ["postgresql://u:p%20w@h/d", "postgresql://u@h/d?password=p", "host=h sslkey=k sslpassword='p w'", "password=p"],
)
def test_a_password_in_the_string_is_seen(conninfo):
    assert has_password(conninfo)


@pytest.mark.parametrize(
    "conninfo", ["", "host=h user=u", "postgresql://u@h/d", "service=shop", "password", "p4ss w0rd"]
)
def test_no_password_in_the_string(conninfo):
    """Where it cannot be read, another error says so."""
    assert not has_password(conninfo)


@pytest.mark.parametrize(
    "conninfo",
    [
        "password=p4ss w0rd host=x",
        "postgresql://u:p4ss w0rd@h:port/d",
        "p4ss",
        'postgresql://u:%zz"p4ss"w0rd@h',
        "postgresql://u:x@p4ssw0rd@h/d",
        "postgresql://u:x@p4ss/w0rd@h/d",
        "postgresql://u:p4ss/w0rd@h/d",
        "postgresql://u:123/p4ssw0rd@h/d",
        "postgresql://u:x?p4ss@w0rd@h/d",
        "postgresql://u:p4ssw0rd",
        "host=h port=p4ssw0rd",
        "host=h port=5432,99999",
    ],
)
def test_a_wrong_connection_string_is_not_shown(conninfo):
    """Libpq's message quotes the place where it stops, which may be within a password.

    What it takes for a host, a port or a database may be a part of one, too, and later errors would show it.
    """
    with pytest.raises(ConfigError) as caught:
        login(conninfo)
    assert "p4ss" not in str(caught.value)
    assert "w0rd" not in str(caught.value)


@pytest.mark.parametrize(
    "conninfo",
    [
        "postgresql://u%40corp:p%40%2F%3F@h/d",
        "postgresql://u:p@h1:5432,h2:/d?application_name=a@b",
        "postgres://%2Fvar%2Frun/d%40x",
        "host=@abstract port=5432,5433 dbname=a@b/c@d",
        "postgresql://u@[::1]:5432/d",
        "postgresql://u:p?w=x@h/d",
    ],
)
def test_what_only_looks_like_a_cut_password(conninfo):
    login(conninfo)


@pytest.mark.parametrize(
    ("limit", "remedy"),
    [
        ('ALTER ROLE "{role}" NOLOGIN', 'ALTER ROLE "{role}" LOGIN;'),
        ('ALTER ROLE "{role}" CONNECTION LIMIT 0', 'ALTER ROLE "{role}" CONNECTION LIMIT -1;'),
        ('ALTER DATABASE "{database}" CONNECTION LIMIT 0', 'ALTER DATABASE "{database}" CONNECTION LIMIT -1;'),
        ('ALTER ROLE "{role}" NOREPLICATION', 'ALTER ROLE "{role}" REPLICATION;'),
    ],
)
def test_what_the_hint_says_lets_the_role_in(publisher, role, limit, remedy):
    """O6: the printed statement, as it stands, is what helps."""
    names = {"role": role, "database": publisher.name}
    conninfo = as_role(publisher, role)
    replication = "REPLICATION" in limit
    publisher.execute(f'ALTER ROLE "{role}" NOSUPERUSER')
    connect(conninfo, application_name="test", replication=replication).close()
    publisher.execute(limit.format(**names))
    hint = refusal(conninfo, replication=replication).hint
    statement = re.search(r"run on the server: ([^;]+;)", hint)
    assert statement is not None, hint
    assert statement[1] == remedy.format(**names)
    publisher.execute(statement[1])
    connect(conninfo, application_name="test", replication=replication).close()


def test_a_server_that_does_not_answer_is_given_up(publisher, monkeypatch):
    """A proxy may keep the connection of a server that is gone: nothing ends the wait then."""
    monkeypatch.setattr(module, "_CATALOG_SILENT_S", 0.2)
    with closing(connect(publisher.conninfo, application_name="silent")) as connection:
        pid = connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(PublisherError, match="cannot read the publisher's catalog") as caught:
                read_rows(connection, "server")
        finally:
            os.kill(pid, signal.SIGCONT)
    assert caught.value.retry


@pytest.mark.parametrize(
    ("conninfo", "name"), [("host=a", "shop"), ("host=a application_name=lake", "lake"), ("postgresql://a", "shop")]
)
def test_the_name_of_a_stream(conninfo, name):
    assert stream_name(conninfo, "shop") == name

"""A password by a command: found in a connection string, asked for at each connection, and never shown."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgbridge.bridge.receive import password_command
from pgbridge.bridge.receive.connection import connect, conninfo_parameters
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError


@pytest.mark.parametrize(
    ("conninfo", "rest", "command"),
    [
        ("host=h user=u", "host=h user=u", None),
        ("host=h password_command='echo  a b' user=u", "host=h user=u", "echo  a b"),
        ("password_command=token user=u", "user=u", "token"),
        (r"user=u password_command = 'printf \'%s\' \\\\x'", "user=u", r"printf '%s' \\x"),
        ("application_name='password_command=x' host=h", "application_name='password_command=x' host=h", None),
        ("application_name='a b' password_command=x\\ y", "application_name='a b'", "x y"),
        (
            "postgresql://u@h/db?password_command=a%20b%26c&sslmode=require",
            "postgresql://u@h/db?sslmode=require",
            "a b&c",
        ),
        ("postgres://u@h/db?sslmode=require&password_command=x", "postgres://u@h/db?sslmode=require", "x"),
        ("postgres://u@h/db?password_command=x", "postgres://u@h/db", "x"),
        ("password_command='unfinished", "password_command='unfinished", None),
    ],
)
def test_the_command_is_taken_out(conninfo, rest, command):
    found, asked = password_command.apart(conninfo)
    assert (found.split(), asked) == (rest.split(), command)
    if command is not None:
        conninfo_to_dict(found)
        assert "password_command" not in conninfo_parameters(conninfo)


@pytest.mark.parametrize(
    ("conninfo", "message"),
    [
        ("password_command=a password_command=b", "must be there once"),
        ("postgres://h/d?password_command=a&password_command=b", "must be there once"),
        ("host=h password_command=''", "must be there once, and not empty"),
        ("password=a password_command=b", "a password and a password_command"),
        ("postgres://u:secret@h/db?password_command=b", "a password and a password_command"),
        ("password_command='unfinished", "not a libpq connection string"),
    ],
)
def test_what_contradicts_itself_is_refused(conninfo, message):
    with pytest.raises(ConfigError, match=message) as raised:
        conninfo_parameters(conninfo)
    assert "secret" not in str(raised.value)


def test_its_first_line_is_the_password():
    assert password_command.asked("echo 'p w'; echo more") == "p w"


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("echo secret; exit 3", "ended with status 3"),
        ("true", "printed no password"),
        ("sleep 9", "did not end within"),
    ],
)
def test_a_command_that_fails_is_told_without_its_output(monkeypatch, command, how):
    monkeypatch.setattr(password_command, "_TIMEOUT_S", 0.3)
    with pytest.raises(PublisherError, match=how) as raised:
        password_command.asked(command)
    assert raised.value.retry
    assert "secret" not in f"{raised.value} {raised.value.hint}"


def test_it_is_asked_at_each_connection(publisher, tmp_path):
    """A password that has changed is used at once; one that is not the server's any more is refused."""
    server = publisher.server
    if server.embedded is None:
        pytest.skip("another server's pg_hba.conf may not ask for a password")
    role = f"rotating_{publisher.name}"[:63].lower()
    publisher.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'first'")
    token = tmp_path / "token"
    where = f"host=127.0.0.1 port={server.port} dbname={publisher.name} user={role}"
    conninfo = f"{where} password_command='cat {token}'"
    try:
        token.write_text("first\n")
        connect(conninfo, application_name="test").close()
        publisher.execute(f"ALTER ROLE {role} PASSWORD 'second'")
        with pytest.raises(PublisherError, match="password authentication failed"):
            connect(conninfo, application_name="test")
        token.write_text("second\n")
        with connect(conninfo, application_name="test") as connection:
            assert connection.execute("SELECT current_user").fetchall() == [(role,)]
    finally:
        publisher.execute(f"DROP ROLE {role}")

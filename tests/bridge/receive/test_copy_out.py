"""A COPY's messages come whole and in order, whatever their sizes, by libpq and from the socket; so do its errors."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgbridge.bridge.receive import copy_out as module
from pgbridge.bridge.receive.connection import connect
from pgbridge.bridge.receive.copy_out import copy_out
from pgbridge.protocol.bulk.copy import CopyDecoder
from pgbridge.protocol.values.pg_type import BUILTIN
from pgbridge.protocol.values.types import resolve

TYPES = [resolve(23, -1, BUILTIN), resolve(17, -1, BUILTIN)]
WAYS = ("libpq", "socket")


@pytest.fixture(params=WAYS)
def run(request, publisher, monkeypatch):
    """Runs a COPY one way: `run(query)` yields the sizes of what came at once, and the rows."""
    monkeypatch.setattr(module, "_encrypted", lambda *_: request.param == "libpq")

    def run(query):
        decoder = CopyDecoder(TYPES, ["n", "b"])
        rows, sizes = [], []
        with closing(connect(publisher.conninfo, application_name="test")) as connection:
            connection.execute("BEGIN")
            for messages in copy_out(connection, f"COPY ({query}) TO STDOUT (FORMAT binary)", len(TYPES)):
                sizes.append(len(messages.starts))
                rows += [(row["n"], row["b"]) for row in decoder.decode(messages).to_pylist()]
        decoder.finish()
        return sizes, rows

    return run


def test_rows_of_all_sizes(run):
    """Smaller and larger than what is taken at once, and NULL."""
    query = """SELECT n, CASE WHEN n % 1000 = 5 THEN NULL ELSE convert_to(repeat(chr(97 + n % 26),
        CASE WHEN n IN (3000, 20000) THEN 9000000 ELSE n % 700 END), 'UTF8') END FROM generate_series(1, 40000) n"""
    sizes, rows = run(query)
    assert len(sizes) >= 5
    for n, value in rows:
        expected = bytes([97 + n % 26]) * (9_000_000 if n in {3000, 20000} else n % 700)
        assert value == (None if n % 1000 == 5 else expected)
    assert [n for n, _ in rows] == list(range(1, 40001))


def test_rows_that_hold_what_looks_like_messages(run):
    query = r"SELECT n, decode('6400000006000264000000100002', 'hex') FROM generate_series(1, 30000) n"
    _, rows = run(query)
    assert rows == [(n, bytes.fromhex("6400000006000264000000100002")) for n in range(1, 30001)]


def test_what_is_taken_at_once_may_end_anywhere(run, monkeypatch):
    monkeypatch.setattr(module, "_BUFFER_BYTES", 61)
    _, rows = run(r"SELECT n, decode(repeat('5a0000000554', n % 7), 'hex') FROM generate_series(1, 300) n")
    assert rows == [(n, bytes.fromhex("5a0000000554") * (n % 7)) for n in range(1, 301)]


def test_no_rows(run):
    assert run("SELECT 1, ''::bytea WHERE false")[1] == []


@pytest.mark.parametrize("first", [1, 20000], ids=["at once", "on the way"])
def test_an_error_of_the_server(run, first):
    with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"):
        run(f"SELECT n / (n - {first}), ''::bytea FROM generate_series(1, 30000) n")
    with pytest.raises(psycopg.errors.UndefinedTable, match='relation "missing" does not exist'):
        run("SELECT * FROM missing")


def test_a_lost_connection(run, publisher):
    with pytest.raises(psycopg.OperationalError, match="terminating connection due to administrator command"):
        run("SELECT 1, ''::bytea FROM pg_terminate_backend(pg_backend_pid())")


def test_end_without_a_word():
    server, client = socket.socketpair()

    def answer():
        server.recv(100)
        server.sendall(b"d\0\0")
        server.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with client, pytest.raises(psycopg.OperationalError, match="closed the connection unexpectedly"):
        list(module._by_socket(client, "COPY", 1))
    thread.join()


def test_only_what_nothing_encrypts_is_read_from_the_socket(publisher):
    """On TCP the server is asked about GSSAPI; libpq knows about TLS."""
    password = publisher.server.embedded.password if publisher.server.embedded else publisher.server.password
    over_tcp = make_conninfo(publisher.conninfo, host="127.0.0.1", password=password)
    for conninfo in (publisher.conninfo, over_tcp):
        with (
            closing(connect(conninfo, application_name="test")) as connection,
            socket.socket(fileno=os.dup(connection.pgconn.socket)) as opened,
        ):
            assert module._encrypted(connection, opened) == bool(connection.pgconn.ssl_in_use)
            pretended: Any = SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=1))
            assert module._encrypted(pretended, opened)
            says = SimpleNamespace(fetchone=lambda: (True,))
            gss: Any = SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=0), execute=lambda _, says=says: says)
            assert module._encrypted(gss, opened) == (opened.family != socket.AF_UNIX)

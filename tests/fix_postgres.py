"""One PostgreSQL server for the whole run, and a database of its own for each test that asks for one.

The server is private (`bridge.demo.server`) unless pytest-postgresql's options name another. Its databases
come from pytest-postgresql's `noproc` factory (`postgresql`, for a test that needs a connection), or from
`publisher` (for a test that replicates: slots and subscriptions pin a database, so they go before it).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pytest_postgresql import factories
from pytest_postgresql.config import get_config

from pgbridge.bridge.demo.programs import Account, EmbeddedPostgresError, Programs
from pgbridge.bridge.demo.server import EmbeddedPostgres
from tests.oracle.native import disable, text_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.oracle.native import Row

# for tests only: nothing has to survive a crash of the machine, and retries should not wait for seconds
TEST_SETTINGS: Final[dict[str, str | int | bool]] = {
    "full_page_writes": False,
    "autovacuum": False,  # where everything streams, its transactions come too, empty, whenever it likes
    "wal_retrieve_retry_interval": "200ms",
}


@dataclass(frozen=True)
class Server:
    """A running server, private or not, as pytest-postgresql's factories want to see one.

    Attributes:
        host: Host name, or the folder of the Unix socket.
        port: TCP port, or the socket's.
        user: A superuser.
        password: None where none is asked for.
        embedded: The private server, to restart or to read its log; None for one that belongs to others.
    """

    host: str
    port: int
    user: str
    password: str | None
    embedded: EmbeddedPostgres | None = None
    options: str = ""
    maintenance_dbname: str = "postgres"
    template_dbname: None = None  # nothing below it: the noproc fixture makes the template

    def conninfo(self, dbname: str = "postgres") -> str:
        """A libpq connection string for a database of this server."""
        return make_conninfo(host=self.host, port=self.port, user=self.user, password=self.password, dbname=dbname)

    def connect(self, dbname: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection in autocommit mode."""
        # of a SQL_ASCII database psycopg would return names as bytes
        return psycopg.connect(self.conninfo(dbname), autocommit=True, client_encoding="UTF8")


def _foreign_server(config: pytest.Config) -> bool:
    """Whether options name a server; in an ini file the port does, the host having a default there."""
    named = config.getoption("postgresql_host") or config.getoption("postgresql_port")
    return bool(named or config.getini("postgresql_port"))


@pytest.fixture(scope="session")
def postgresql_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server of this run: private, or the one of --postgresql-host/--postgresql-port."""
    if _foreign_server(request.config):
        config = get_config(request)
        yield Server(config.host, int(config.port or 5432), config.user, config.password)
        return
    with EmbeddedPostgres(settings=TEST_SETTINGS, fsync=False) as server:
        yield Server(str(server.folder), server.port, server.user, None, server)


postgresql_noproc = factories.postgresql_noproc(depends_on="postgresql_server", dbname="pgbridge_test")
postgresql = factories.postgresql("postgresql_noproc")


class Publisher:
    """A database of its own on the run's server, with an open autocommit connection.

    Databases named `<name>_…` are taken for this one's companions (a subscriber's, for one) and go with it.
    """

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        with server.connect() as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        self._connection = self.connect()

    @property
    def conninfo(self) -> str:
        """A libpq connection string for this database."""
        return self.server.conninfo(self.name)

    @property
    def version(self) -> int:
        """The server's major version."""
        return self._connection.info.server_version // 10000

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection in autocommit mode; the caller closes it."""
        return self.server.connect(self.name)

    def execute(self, statements: str, parameters: tuple[Any, ...] | None = None) -> None:
        """Run one statement with parameters, or any number without, in one transaction if they do not say otherwise."""
        self._connection.execute(statements.encode(), parameters)

    def query(self, statement: str, parameters: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return self._connection.execute(statement.encode(), parameters).fetchall()

    def rows(self, table: str, columns: Iterable[str] | None = None) -> list[Row]:
        """A table's rows, as `text_rows` gives them: for `differences`, where the publisher is the oracle."""
        return text_rows(self.conninfo, table, columns)

    def needs(self, major: int) -> None:
        """Skip the test on a server before a major version of PostgreSQL."""
        if self.version < major:
            pytest.skip(f"needs PostgreSQL {major}")

    def needs_unix_socket(self) -> None:
        """Skip the test on a server that is reached over TCP."""
        if not self.server.host.startswith("/"):
            pytest.skip("needs a Unix socket")

    def stream_everything(self) -> None:
        """Have walsenders of this database stream every change at once where streaming = on.

        The test is skipped on a server without debug_logical_replication_streaming (before PostgreSQL 16).
        """
        self.needs(16)
        # of the database: a subscription's walreceiver has `options` of its own over those of its connection string
        setting = sql.SQL("ALTER DATABASE {} SET debug_logical_replication_streaming = immediate")
        self._connection.execute(setting.format(sql.Identifier(self.name)))

    def close(self) -> None:
        """Close the connection that is open; `drop` does, too."""
        self._connection.close()

    def drop(self) -> None:
        """Drop the database and its companions with their subscriptions, slots and prepared transactions."""
        self.close()
        with self.server.connect() as admin:
            names = [
                name
                for (name,) in admin.execute(
                    "SELECT datname FROM pg_database WHERE datname = %s OR starts_with(datname, %s)",
                    (self.name, f"{self.name}_"),
                )
            ]
        for name in names:
            with self.server.connect(name) as connection:
                _clear(connection)
        with self.server.connect() as admin:
            for name in names:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _clear(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Remove what would keep the connection's database from being dropped, or outlive it."""
    subscriptions = connection.execute(
        "SELECT subname FROM pg_subscription"
        " WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchall()
    for (name,) in subscriptions:
        disable(connection, name)
        connection.execute(sql.SQL("ALTER SUBSCRIPTION {} SET (slot_name = NONE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("DROP SUBSCRIPTION {}").format(sql.Identifier(name)))
    prepared = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
    for (gid,) in prepared:
        connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    # a temporary slot ends with its walsender, some moments after the client has gone
    connection.execute(
        "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots"
        " WHERE database = current_database() AND temporary AND active_pid IS NOT NULL"
    )
    slots = connection.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
    ).fetchall()
    for (name,) in slots:
        # a walsender that was told to end, or whose client is gone, holds its slot for some moments
        connection.execute(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid IS NOT NULL",
            (name,),
        )
        with contextlib.suppress(psycopg.errors.UndefinedObject):
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))


_serial = itertools.count(1)


@pytest.fixture
def publisher(postgresql_server: Server) -> Iterator[Publisher]:
    """A fresh database to publish from; dropped after the test with its slots and subscriptions."""
    made = Publisher(postgresql_server, f"pub_{os.getpid()}_{next(_serial)}")
    try:
        yield made
    finally:
        made.drop()


def pytest_report_header(config: pytest.Config) -> str:
    """Name the server and its version, the first thing to know about a failure."""
    if config.getoption("fast"):
        return "postgresql: none (--fast)"
    if not _foreign_server(config):
        try:
            said = Programs.find().run("postgres", "--version").strip()
            return f"postgresql: private server, {said}, user {Account.choose().name}"
        except EmbeddedPostgresError as error:
            return f"postgresql: none ({error.message})"
    place = {
        key: config.getoption(f"postgresql_{key}") or config.getini(f"postgresql_{key}")
        for key in ("host", "port", "user", "password")
    }
    try:
        with psycopg.connect(make_conninfo(**place, dbname="postgres", connect_timeout=10)) as connection:
            version = connection.info.parameter_status("server_version")
    except psycopg.OperationalError as error:
        version = f"no answer ({error})"
    return f"postgresql: {version} at {place['host']}:{place['port'] or 5432}"

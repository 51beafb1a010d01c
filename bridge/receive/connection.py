"""Connections to the publisher: their session settings, and the server's errors with hints."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from pgbridge import sql
from pgbridge.bridge.receive import password_command
from pgbridge.bridge.receive.readiness import cut_after, readable, shut_down
from pgbridge.bridge.runtime import remedies
from pgbridge.bridge.runtime.errors import ConfigError, PublisherError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from psycopg.abc import Buffer

_CANCEL_TIMEOUT_S = 2.0

SESSION_SETTINGS = {
    # The text of values, in and out, and that of expressions, does not depend on the server, the database or the role.
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "array_nulls": "on",
    "xmloption": "content",
    "xmlbinary": "base64",
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
    "transform_null_equals": "off",
    # A walsender or a long COPY must not be ended by timeouts meant for the application's sessions.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    # A statement by itself sees what is committed, and waits for nobody.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    # Row security must not remove rows silently: the statement fails instead, as pg_dump's does.
    "row_security": "off",
    # PostgreSQL 18 warns of a missing publication.
    "client_min_messages": "notice",
    # Unqualified names in the bridge's own statements are pg_catalog's (CVE-2018-1058).
    "search_path": "pg_catalog",
}
"""A session's settings, as `current_setting` shows them. They are asked for at the start, and looked at afterwards:
libpq's PGDATESTYLE and PGTZ win over `options`, and a pooler may drop these (ignore_startup_parameters).

lc_monetary stays the session's, as PostgreSQL's own subscriber has it: with 'C' another currency would have dollars,
and one without cents a hundredth of its amounts. The connection string's `options` may have one."""

_NOT_ASKED = frozenset({"client_encoding", "transaction_timeout"})
"""Not in `options`: libpq sends the first by itself; a server before 17 does not know the second, and would refuse."""

_POOLER_ANSWERS_S = 2.0
"""How long a second session waits: with none left in a pool, a pooler lets it wait for much longer."""

_CONNECT_TIMEOUT_S = 10
_SILENT_S, _CATALOG_SILENT_S = 60.0, 600.0
"""How long a server may take for the first statement, and for one about its catalog, which may wait for a lock. One
that takes longer is a proxy that answers for a server which is away."""
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
"""A server that vanishes is noticed within a minute: by the first three while no data is on its way to it, by the last
(in milliseconds) while some is, which the kernel would retransmit for some 15 minutes."""

_BY_SQLSTATE: dict[str, tuple[str, bool]] = {
    # SQLSTATE: (hint, whether a retry may succeed without anybody's help)
    "28000": (
        "check user in the connection string, and that the server's pg_hba.conf has an entry for it and the database",
        False,
    ),
    "28P01": ("check role and password in the connection string, ~/.pgpass or the service file", False),
    "3D000": ("check dbname in the connection string", False),
    "42501": ("run on the server: ALTER ROLE … REPLICATION; and GRANT SELECT on the published tables", False),
    "53300": (
        "run on the server: ALTER SYSTEM SET max_wal_senders = …; or max_connections; then restart it",
        True,
    ),
    "53400": ("run on the server: ALTER SYSTEM SET max_replication_slots = …; then restart it", False),
    "55P03": ("another statement needs a lock on the table (ALTER TABLE, VACUUM FULL, …): let it finish first", True),
    "55006": ("another process holds the slot; it is released when that process ends", True),
}
_CONNECTING = (
    # libpq gives no SQLSTATE for a connection that fails; these are the server's messages in English
    (re.compile("no pg_hba.conf entry|is not permitted to log in|role .* does not exist"), "28000"),
    (re.compile("password authentication failed|no password supplied"), "28P01"),
    (re.compile("database .* does not exist"), "3D000"),
    (re.compile("permission denied to start WAL sender|replication role to start walsender"), "42501"),
    (re.compile("too many (clients|connections)|connection slots are reserved|max_wal_senders"), "53300"),
)
_OF_A_NAME = (
    # the statement that helps, with the name that the server's message has in quotes
    (re.compile('too many connections for role (".*")'), "ALTER ROLE {} CONNECTION LIMIT -1;"),
    (re.compile('too many connections for database (".*")'), "ALTER DATABASE {} CONNECTION LIMIT -1;"),
    (re.compile('role (".*") is not permitted to log in'), "ALTER ROLE {} LOGIN;"),
)
_REFUSED_HERE = (
    # what libpq refuses by itself, which no later try changes; it gives no SQLSTATE for it
    (
        re.compile("certificate verify failed"),
        "sslrootcert must have the certificate of the authority that signed the server's, which must not have expired",
    ),
    (
        re.compile("does not match host name|host name must be specified for a verified"),
        "set host to a name in the server's certificate; with hostaddr=ADDRESS beside it, the name need not resolve",
    ),
    (
        re.compile("root certificate file|weak sslmode"),
        "set sslrootcert to the certificate of the authority that signed the server's, or to system with verify-full",
    ),
    (
        re.compile("server does not support SSL"),
        "turn on ssl on the server: ALTER SYSTEM SET ssl = on; with ssl_cert_file and ssl_key_file",
    ),
    (
        re.compile("private key|certificate file|client certificate"),
        "check sslcert and sslkey in the connection string, and that nobody else can read the key's file",
    ),
    (re.compile(r"invalid \w+ value: "), "correct the connection string"),
)

_SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
"""The parameters of libpq that nobody else may know."""

_QUOTED = re.compile('".*"', re.DOTALL)
_ENCODED = "in a URI, write %40 for @, %2F for /, %3A for :, %3F for ? and %25 for % in the user and the password"
_URI = re.compile("postgres(?:ql)?://(?:[^@/]*@)?")
_LAST_PORT = 65535
_NOT_GRANTED = re.compile("permission denied for (table|schema|sequence|view|partitioned table)")
_DROPPED_MEANWHILE = frozenset({"42704", "42P01", "XX000"})
"""A catalog function of the server opens what it is asked for by itself, outside of the statement's snapshot."""


def connect(conninfo: str, *, application_name: str, replication: bool = False) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection, in autocommit, with the bridge's settings.

    Args:
        conninfo: The subscription's connection string; its parameters override the bridge's.
        application_name: For pg_stat_activity. A connection string's own does not count: a standby's lease and the
            progress of copies know sessions by this name. Only the stream has that one (`stream_name`).
        replication: Connect to a walsender of the database, which runs SQL as well.

    Raises:
        ConfigError: The connection string cannot be read.
        PublisherError: The server cannot be reached or refuses; `retry` tells whether trying again may help.
    """
    parameters = conninfo_parameters(conninfo)
    asked = [(name, value.replace(" ", "\\ ")) for name, value in SESSION_SETTINGS.items() if name not in _NOT_ASKED]
    settings = " ".join(f"-c {name}={value}" for name, value in asked)
    own = {"application_name": application_name, "client_encoding": SESSION_SETTINGS["client_encoding"]}
    parameters = {"connect_timeout": _CONNECT_TIMEOUT_S, **_KEEPALIVES, **parameters, **own}
    parameters.pop("replication", None)
    _, command = password_command.apart(conninfo)
    if command is not None:
        parameters["password"] = password_command.asked(command)
    parameters["options"] = f"{parameters.get('options') or ''} {settings}".strip()
    if replication:
        parameters["replication"] = "database"
    try:
        connection = psycopg.connect(**parameters, autocommit=True)
        try:
            with cut_after(connection.fileno(), _SILENT_S):
                if _settle(connection) and not replication:  # a walsender is never shared
                    _refuse_shared(connection, parameters)
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as error:
        refused = translated(error, "cannot connect to the publisher")
        role = login(conninfo).role.replace('"', '""')
        refused.hint = refused.hint.replace("ALTER ROLE … REPLICATION", f'ALTER ROLE "{role}" REPLICATION')
        raise PublisherError(refused.message, hint=refused.hint, retry=refused.retry) from error
    return connection


def _settle(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """Look at the session's settings, and set those that are not as they should be.

    Returns:
        Whether somebody between here and the server may have changed them: some were different, and the server's
        process is not the one that the connection began with.

    Raises:
        PublisherError: A setting stays different.
    """
    settings = {"names": list(SESSION_SETTINGS), "wanted": list(SESSION_SETTINGS.values())}
    # a walsender knows the simple query protocol only, in which the client writes parameters into the statement
    rows = psycopg.ClientCursor(connection).execute(sql.load("session"), settings).fetchall()
    for _, name, wanted, setting in rows:
        if setting != wanted:
            raise PublisherError(
                f"cannot use the connection: {name} is {setting!r} after it was set to {wanted!r}",
                hint="connect to the server itself: a pooler or an extension of the server keeps the setting",
            )
    pid, name, *_ = rows[0]
    return name is not None and pid != connection.info.backend_pid


def _refuse_shared(connection: psycopg.Connection[tuple[Any, ...]], parameters: Mapping[str, Any]) -> None:
    """Raise a PublisherError if a pooler gives others this idle connection's session, or this one another session."""
    select = b"SELECT pg_catalog.pg_backend_pid()"
    (before,) = connection.execute(select).fetchone() or (0,)
    pids = []
    with suppress(psycopg.OperationalError), closing(psycopg.connect(**parameters, autocommit=True)) as other:
        other.pgconn.send_query(b"BEGIN; " + select)
        while readable(other.pgconn.socket, _POOLER_ANSWERS_S) and (result := other.pgconn.get_result()) is not None:
            pids += [int(result.get_value(0, 0) or 0)] if result.ntuples else []
        pids += connection.execute(select).fetchone() or ()
    if pids and (pids[0] == before or pids[-1] != before):
        raise PublisherError(
            "cannot use the connection: a pooler drops the settings that are asked for at its start, and gives the "
            "server's session to others between two transactions",
            hint="connect to the server itself, or to a pool with pool_mode = session",
        )


def follow_encoding(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Have a SQL_ASCII database take and send bytes as they are, UTF-8 or not; the decoder looks at each value."""
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        connection.execute("SET client_encoding = 'SQL_ASCII'")
        for type_ in ("text", "name"):  # which psycopg would return as bytes
            connection.adapters.register_loader(type_, _AnyText)


class _AnyText(psycopg.adapt.Loader):
    def load(self, data: Buffer) -> str:
        return bytes(data).decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Login:
    """The role that connects, and the database; both are known without a connection."""

    role: str
    database: str


def login(conninfo: str) -> Login:
    """Return what libpq would log in with: by the connection string, a service file or the environment.

    Raises:
        ConfigError: The connection string cannot be read.
    """
    parameters = conninfo_parameters(conninfo)
    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in psycopg.pq.Conninfo.get_defaults()}
    role = str(parameters.get("user") or defaults["user"])
    return Login(role, str(parameters.get("dbname") or defaults["dbname"] or role))


def has_password(conninfo: str) -> bool:
    """Return whether a connection string itself has a password or another secret; False if it cannot be read."""
    try:
        return not _SECRETS.isdisjoint(conninfo_parameters(conninfo))
    except ConfigError:
        return False


def stream_name(conninfo: str, subscription: str) -> str:
    """The application_name of a subscription's stream: the connection string's, as PostgreSQL's own subscriber has it.

    By it synchronous_standby_names knows the stream.

    Raises:
        ConfigError: The connection string cannot be read.
    """
    return conninfo_parameters(conninfo).get("application_name") or subscription


def conninfo_parameters(conninfo: str) -> dict[str, Any]:
    """Return libpq's parameters of a connection string or URI.

    Raises:
        ConfigError: It cannot be read.
    """
    conninfo, command = password_command.apart(conninfo)
    try:
        parameters = dict(psycopg.conninfo.conninfo_to_dict(conninfo))
    except psycopg.ProgrammingError as error:
        # what it quotes may be a part of the password
        reason = _QUOTED.sub('"…"', str(error).strip())
        raise ConfigError(f"connection: not a libpq connection string or URI ({reason})") from None
    if command is not None and parameters.get("password") is not None:
        raise ConfigError("connection: it has a password and a password_command", hint="leave out one of them")
    if _URI.match(conninfo) and _is_cut(conninfo):
        raise ConfigError("connection: the URI has an @ or a / that would end the password", hint=_ENCODED)
    if not all(port == "" or _is_port(port) for port in str(parameters.get("port", "")).split(",")):
        raise ConfigError("connection: a port is not a number from 1 to 65535", hint=_ENCODED)
    return parameters


def _is_cut(uri: str) -> bool:
    """Whether libpq would take a part of the password for the host, the port or the database, and show it in errors."""
    return "@" in _URI.sub("", uri, count=1).partition("?")[0]


def _is_port(text: str) -> bool:
    return text.isascii() and text.strip().isdigit() and 1 <= int(text) <= _LAST_PORT


def cut(connection: psycopg.Connection[Any]) -> None:
    """End a connection from another thread: who waits for an answer on it gets an error.

    The statement is cancelled, because a server that waits for a lock does not notice the connection's end.
    """
    with suppress(psycopg.Error):  # it has ended, or the server does not answer
        connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
    with suppress(psycopg.Error, OSError):
        shut_down(connection.fileno())


def translated(error: psycopg.Error, doing: str) -> PublisherError:
    """Turn a server's error into a PublisherError: what failed, the server's words, and a hint."""
    sqlstate = error.sqlstate or next((code for words, code in _CONNECTING if words.search(str(error))), None)
    hint, retry = _BY_SQLSTATE.get(sqlstate or "", ("", False))
    if "wal_level" in str(error):
        where = "primary" if "on the primary" in str(error) else "server"
        hint = f"run on the {where}: ALTER SYSTEM SET wal_level = logical; then restart it"
    for pattern, statement in _OF_A_NAME:
        if match := pattern.search(str(error)):
            hint = f"run on the server: {statement.format(match[1])}"
    if sqlstate == "42501" and _NOT_GRANTED.search(str(error)):
        hint = (
            f"the role needs SELECT on the table, and USAGE on its schema; for the statements, run: {remedies.check()}"
        )
    refused_here = [words for pattern, words in _REFUSED_HERE if sqlstate is None and pattern.search(str(error))]
    if refused_here:
        return PublisherError(f"{doing}: {str(error).strip()}", hint=refused_here[0])
    if sqlstate is None or sqlstate[:2] in {"08", "57"}:
        retry = True  # the connection failed or was lost, or the server is stopping or starting
    if error.diag.message_hint and not hint:
        hint = error.diag.message_hint
    return PublisherError(f"{doing}: {str(error).strip()}", hint=hint, retry=retry)


def read_rows(
    connection: psycopg.Connection[tuple[Any, ...]], statement: str, parameters: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Run `sql/<statement>.sql`; return its rows, each by column name.

    Raises:
        PublisherError: The server cannot answer.
    """
    try:
        with cut_after(connection.fileno(), _CATALOG_SILENT_S):
            return list(dictionaries(connection.execute(sql.load(statement), parameters)))
    except psycopg.Error as error:
        refused = translated(error, f"cannot read the publisher's catalog (sql/{statement}.sql)")
        refused.retry |= error.sqlstate in _DROPPED_MEANWHILE
        raise refused from error


def dictionaries(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """The rows of a result, each as a dictionary by column name."""
    names = [column.name for column in cursor.description or ()]
    for row in cursor:
        yield dict(zip(names, row, strict=True))
